// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/p4/program"
	"github.com/libra-ina/libra/wire"
)

// testPorts is the number of ports of the switch. Port n of the model is port n + 1.
const (
	testPorts = 3
)

// needBmv2 is the only reason to skip a test of this package with a real switch.
func needBmv2(tb testing.TB) string {
	tb.Helper()
	path, err := exec.LookPath("simple_switch_grpc")
	if err != nil {
		tb.Skip("simple_switch_grpc is not on the PATH: the P4 program does not run in this test (docs/p4.md says how to get it)")
	}
	if os.Geteuid() != 0 {
		tb.Skip("the switch's ports are veth interfaces, which need root: the P4 program does not run in this test")
	}
	return path
}

// wired is bmv2 with a port on each of some veth pairs. It is a
// [conformance.Device].
type wired struct {
	*Plane
	tb       testing.TB
	taps     [testPorts + 1]int // sockets on the other ends, by port
	passed   uint64             // markers, by result
	refusals uint64

	undelivered uint64 // frames that the kernel does not deliver
	last        aggregator.Counters
	buf         [9216]byte
	oob         [256]byte
}

var _ conformance.Device = (*wired)(nil)

// startBmv2 starts a switch without a program and returns its P4Runtime address and
// the sockets on the other ends of its ports.
func startBmv2(tb testing.TB) (target string, taps [testPorts + 1]int) {
	tb.Helper()
	path := needBmv2(tb)
	ns, err := testbed.NewNamespace()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ns.Close() })
	socket := filepath.Join(tb.TempDir(), "p4rt")
	target = "unix:" + socket
	var ports []string
	for port := 1; port <= testPorts; port++ {
		cfg := testbed.VethConfig{Names: [2]string{fmt.Sprintf("port%d", port), fmt.Sprintf("host%d", port)}, MTU: 9000}
		if err := ns.Veth(cfg); err != nil {
			tb.Fatal(err)
		}
		ports = append(ports, fmt.Sprintf("port%d", port))
	}
	var output bytes.Buffer
	cmd := testbed.SimpleSwitch(path, target, ports)
	cmd.Stdout, cmd.Stderr = &output, &output
	err = ns.Do(func() error {
		for port := 1; port <= testPorts; port++ {
			if taps[port], err = openTap(fmt.Sprintf("host%d", port)); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, fd := range taps[1:] {
			unix.Close(fd)
		}
		if tb.Failed() {
			tb.Logf("simple_switch_grpc:\n%s", output.String())
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return target, taps
		}
		if time.Now().After(deadline) {
			tb.Fatal("simple_switch_grpc does not listen")
		}
	}
}

// openTap opens a packet socket on an interface of the calling thread's namespace.
func openTap(name string) (int, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return 0, err
	}
	timeout := unix.NsecToTimeval(int64(10 * time.Second))
	return fd, errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
	)
}

// openWired starts a switch with a program and an aggregator at the address of
// [conformance.Aggregator].
func openWired(tb testing.TB, compiled *program.Compiled) *wired {
	tb.Helper()
	target, taps := startBmv2(tb)
	p, err := Open(Options{
		Target: target, Program: compiled, Address: conformance.Aggregator.IP, Ports: []uint32{elsewhere},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	d := &wired{Plane: p, tb: tb, taps: taps}
	for port := 1; port <= testPorts; port++ {
		if err := p.AddRoute(marker(port), uint32(port)); err != nil {
			tb.Fatal(err)
		}
	}
	return d
}

// marker is the destination of frames that go to a port of the switch.
func marker(port int) [6]byte { return [6]byte{2, 0x4c, 0x42, 0xff, 0, byte(port)} }

// ProcessFrom implements [conformance.Device].
func (d *wired) ProcessFrom(port int, frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	port++
	if len(frame) < 20 && frame[12] == 0x81 && frame[13] == 0 {
		// The kernel removes VLAN tags, and needs two bytes after them (skb_vlan_untag). A frame
		// that ends before that reaches no packet socket, neither the switch's nor the test's. The
		// program would forward it.
		d.undelivered++
		d.last.Passed++
		return aggregator.Verdict{Action: aggregator.Pass}, 0, nil
	}
	if _, err := unix.Write(d.taps[port], frame); err != nil {
		return v, 0, fmt.Errorf("send %d bytes: %w", len(frame), err)
	}
	got, err := d.collect(port, port)
	if err != nil {
		return v, 0, err
	}
	if len(got) == 1 && toAll(got[0]) && !toAll(frame) {
		return aggregator.Verdict{Action: aggregator.Broadcast}, copy(reply, got[0]), nil
	}
	if len(got) == 1 && !bytes.Equal(got[0], frame) {
		return aggregator.Verdict{Action: aggregator.Reply}, copy(reply, got[0]), nil
	}
	if len(got) > 0 {
		return v, 0, fmt.Errorf("frame %x: %d frames come back: %x", frame, len(got), got)
	}
	out := 0 // port
	for other := 1; other <= testPorts; other++ {
		if other == port {
			continue
		}
		got, err := d.collect(port, other)
		if err != nil {
			return v, 0, err
		}
		if len(got) == 1 && toAll(got[0]) && !toAll(frame) {
			return aggregator.Verdict{Action: aggregator.Broadcast}, copy(reply, got[0]), nil
		}
		if len(got) > 1 || out != 0 && len(got) > 0 || len(got) == 1 && !bytes.Equal(got[0], frame) {
			return v, 0, fmt.Errorf("frame %x: out of port %d come %x", frame, other, got)
		}
		if len(got) == 1 {
			out = other
		}
	}
	before := d.last
	if d.last, err = d.Counters(); err != nil {
		return v, 0, err
	}
	switch {
	case d.last.Passed > before.Passed:
		return aggregator.Verdict{Action: aggregator.Pass}, 0, nil
	case d.last.Forwarded > before.Forwarded && out != 0:
		return aggregator.Verdict{Action: aggregator.Forward, Port: out - 1}, 0, nil
	case out != 0:
		return v, 0, fmt.Errorf("frame %x comes out of port %d, and is not counted", frame, out)
	}
	return aggregator.Verdict{Action: aggregator.Drop}, 0, nil
}

// collect sends a marker into a port and returns the frames that come out of another before it. A
// marker leaves after all frames that entered the switch before it and go to the same port. The
// switch sends no frame back to its ingress port, so for the same port the marker is a frame of
// another version, which the aggregator refuses.
func (d *wired) collect(in, out int) (frames [][]byte, err error) {
	var sent, want []byte
	if in == out {
		sent, want = d.refused()
	} else {
		sent, want = d.passing(out)
	}
	if _, err := unix.Write(d.taps[in], sent); err != nil {
		return nil, fmt.Errorf("send a marker: %w", err)
	}
	for {
		frame, err := d.receive(d.taps[out])
		if err != nil {
			return nil, err
		}
		if bytes.Equal(frame, want) {
			return frames, nil
		}
		frames = append(frames, frame)
	}
}

// passing returns a marker that goes through the switch to a port.
func (d *wired) passing(port int) (sent, want []byte) {
	d.passed++
	to := marker(port)
	sent = binary.BigEndian.AppendUint64(append(to[:], 2, 0, 0, 0, 0, 1, 0x88, 0xb5), d.passed)
	return sent, sent
}

// refused returns a marker that the aggregator refuses, and the ERROR.
func (d *wired) refused() (sent, want []byte) {
	d.refusals++
	e, err := wire.NewEnvelope(conformance.Host(77), conformance.Aggregator)
	if err != nil {
		d.tb.Fatal(err)
	}
	sent = make([]byte, e.Len()+wire.HeaderLen)
	wire.Header{Type: wire.TypeHot, Seq: uint32(d.refusals)}.Put(sent[e.Len():])
	sent[e.Len()] = 0x21
	e.Seal(sent)
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP, AnswerEach: true})
	if err != nil {
		d.tb.Fatal(err)
	}
	reply := make([]byte, aggregator.MaxReply)
	_, n := m.Process(sent, reply)
	return sent, reply[:n]
}

// auxdataLen is the size of struct tpacket_auxdata of <linux/if_packet.h>.
const auxdataLen = 20

// receive returns the next frame of a socket, with the VLAN tag that the kernel has
// taken out of it.
func (d *wired) receive(fd int) ([]byte, error) {
	n, oobn, _, _, err := unix.Recvmsg(fd, d.buf[:], d.oob[:], 0)
	for errors.Is(err, unix.EINTR) {
		n, oobn, _, _, err = unix.Recvmsg(fd, d.buf[:], d.oob[:], 0)
	}
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	frame := bytes.Clone(d.buf[:n])
	messages, err := unix.ParseSocketControlMessage(d.oob[:oobn])
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < auxdataLen {
			continue
		}
		const statusAt, tciAt, tpidAt = 0, 16, 18
		if binary.NativeEndian.Uint32(m.Data[statusAt:])&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		tag := make([]byte, 4)
		binary.BigEndian.PutUint16(tag, binary.NativeEndian.Uint16(m.Data[tpidAt:]))
		binary.BigEndian.PutUint16(tag[2:], binary.NativeEndian.Uint16(m.Data[tciAt:]))
		frame = append(frame[:12:12], append(tag, frame[12:]...)...)
	}
	return frame, nil
}

// Counters are those of the switch without the markers, and with the frames that it
// would pass on if it saw them.
func (d *wired) Counters() (aggregator.Counters, error) {
	c, err := d.Plane.Counters()
	c.Passed += d.undelivered - d.passed
	c.Refused[wire.CodeWrongVersion] -= d.refusals
	return c, err
}

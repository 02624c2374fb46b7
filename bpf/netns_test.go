// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

// inNamespace runs test in a fresh network namespace with pairs of veth interfaces: an aggregator's
// port "port0", "port1", ... and the host's end "host0", "host1", ....
func inNamespace(t *testing.T, pairs int, test func()) {
	t.Helper()
	inNetwork(t, pairs, testbed.VethConfig{}, test)
}

// inNetwork is inNamespace with pairs of the configuration cfg.
func inNetwork(t *testing.T, pairs int, cfg testbed.VethConfig, test func()) {
	t.Helper()
	needPrivileges(t)
	ns, err := testbed.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range pairs {
		cfg.Names = [2]string{fmt.Sprintf("port%d", i), fmt.Sprintf("host%d", i)}
		if err := ns.Veth(cfg); err != nil {
			t.Fatal(err)
		}
	}
	if err := ns.Do(func() error { test(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// equipHost attaches the program of a host with AF_XDP sockets to an interface. With it, a veth
// also receives frames that its peer sends by XDP.
func equipHost(t *testing.T, iface string) *afxdp.Attachment {
	t.Helper()
	a, err := afxdp.Attach(afxdp.AttachConfig{Interface: iface, Match: afxdp.MatchUDP(wire.DefaultPort)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// tap is a packet socket on an interface: it sends raw frames and sees the frames that the kernel
// receives after XDP.
type tap struct {
	fd       int
	iface    string
	outgoing bool // arrived counts what the interface transmits instead
}

func openTap(t *testing.T, iface string) *tap {
	t.Helper()
	ifi, err := net.InterfaceByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index}); err != nil {
		t.Fatal(err)
	}
	timeout := unix.NsecToTimeval(int64(200 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	return &tap{fd: fd, iface: iface}
}

func (w *tap) send(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := unix.Write(w.fd, frame); err != nil {
		t.Fatalf("%s: send: %v", w.iface, err)
	}
}

// expect waits for a frame and fails if it does not arrive. It ignores others: a veth's kernel may
// send some.
func (w *tap) expect(t *testing.T, frame []byte) {
	t.Helper()
	buf := make([]byte, 4096)
	var others []string
	for deadline := time.Now().Add(eventLimit); time.Now().Before(deadline); {
		n, from, err := unix.Recvfrom(w.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: receive: %v", w.iface, err)
		}
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if bytes.Equal(buf[:n], frame) {
			return
		}
		others = append(others, fmt.Sprintf("%x", buf[:n]))
	}
	t.Fatalf("%s: frame did not come:\n%x\nothers did: %v", w.iface, frame, others)
}

// programOn returns the id of the XDP program on an interface, 0 for none.
func programOn(t *testing.T, iface string) uint32 {
	t.Helper()
	l, err := netlink.LinkByName(iface)
	if err != nil {
		t.Fatal(err)
	}
	if x := l.Attrs().Xdp; x != nil {
		return x.ProgId
	}
	return 0
}

// between returns a frame from one host to another.
func between(t *testing.T, src, dst wire.Endpoint) []byte {
	t.Helper()
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.ColdLen(3, 2))
	payload := frame[e.Len():]
	wire.Header{Type: wire.TypeCold, Job: 3, Sender: 1, Epoch: 7, Seq: wire.FirstSeq}.Put(payload)
	wire.PutRows(payload, wire.TypeCold, 3, 2)
	e.Seal(frame)
	return frame
}

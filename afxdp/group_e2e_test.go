// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

const questions = 40

// twoQueues returns a machine, "host0", whose interface has two queues, and a switch connected to
// it.
func twoQueues() *testbed.Bed {
	bed, err := testbed.New(context.Background(), testbed.Config{Hosts: 1, Queues: 2})
	if err != nil {
		fatal(err)
	}
	return bed
}

// clients returns sockets of the switch's kernel, connected to a port of host0. Their ports differ,
// so that their packets arrive on all queues.
func clients(bed *testbed.Bed, port uint16) []*net.UDPConn {
	conns := make([]*net.UDPConn, questions)
	err := bed.Switch().Do(func() (err error) {
		for i := range conns {
			if conns[i], err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(bed.Host(0).IP, port))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		fatal(err)
	}
	return conns
}

// send sends a packet from each of the clients.
func send(bed *testbed.Bed, port uint16, payload string) {
	for _, c := range clients(bed, port) {
		if _, err := c.Write([]byte(payload)); err != nil {
			fatal(err)
		}
		c.Close()
	}
}

// ask sends the question from each of the clients, and returns the answers.
func ask(bed *testbed.Bed, port uint16, question string) string {
	answered, last := 0, ""
	for _, c := range clients(bed, port) {
		answer, err := exchange(c, []byte(question), func([]byte) bool { return true })
		if err == nil {
			answered, last = answered+1, string(answer)
		}
		c.Close()
	}
	return fmt.Sprintf("%d answers: %s", answered, last)
}

// exchange sends a packet, again each second, until there is a valid answer.
func exchange(c net.Conn, packet []byte, is func(answer []byte) bool) ([]byte, error) {
	buf := make([]byte, 2048)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if _, err := c.Write(packet); err != nil {
			return nil, err
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return nil, err
		}
		for {
			n, err := c.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, err
			}
			if is(buf[:n]) {
				return buf[:n], nil
			}
		}
	}
	return nil, os.ErrDeadlineExceeded
}

// ping sends an ICMP echo request (RFC 792) to host0 and waits for the reply.
func ping(bed *testbed.Bed) error {
	var c net.Conn
	err := bed.Switch().Do(func() (err error) {
		c, err = net.Dial("ip4:icmp", bed.Host(0).IP.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	const identifier = 0x4c69
	request := []byte{8, 0, 0, 0, identifier >> 8, identifier & 0xff, 0, 1}
	sum := ^uint16(0x0800 + identifier + 1)
	request[2], request[3] = byte(sum>>8), byte(sum)
	_, err = exchange(c, request, func(b []byte) bool {
		b = b[min(len(b), 20):] // after the IP header
		return len(b) == 8 && b[0] == 0 && b[4] == request[4] && b[5] == request[5]
	})
	return err
}

// A program on all queues takes only matching packets: ping, ARP before it, and the kernel's own
// UDP sockets keep working on both queues.
func TestKernelAnswersMeanwhile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	bed := twoQueues()
	defer bed.Close()
	var group *afxdp.Group
	var kernel *net.UDPConn
	host := bed.Host(0)
	err := host.Do(func() (err error) {
		if kernel, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(host.IP, 8))); err != nil {
			return err
		}
		group, err = afxdp.OpenAll(host.Interface, afxdp.GroupConfig{Match: afxdp.MatchUDP(7), Frames: 256})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer kernel.Close()
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := kernel.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = kernel.WriteToUDPAddrPort(append(buf[:n], " by the kernel"...), from)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- group.Run(ctx, afxdp.Serve(func(s *afxdp.Socket, packets []afxdp.Desc) error {
			answers := packets[:0]
			for _, d := range packets {
				u, ok := afxdp.ParseUDP(s.UMEM().Packet(d))
				if !ok {
					return fmt.Errorf("not a UDP packet: %x", s.UMEM().Packet(d))
				}
				n, err := u.Reply(append(u.Payload(), " by us"...))
				if err != nil {
					return err
				}
				d.Len = uint32(n)
				answers = append(answers, d)
			}
			_, err := s.Send(answers)
			return err
		}))
	}()
	for range 3 {
		if err := ping(bed); err != nil {
			t.Error("ping:", err)
		}
		for port, want := range map[uint16]string{7: "40 answers: hello by us", 8: "40 answers: hello by the kernel"} {
			if got := ask(bed, port, "hello"); got != want {
				t.Errorf("port %d: %s", port, got)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, s := range group.Sockets() {
		if st, err := s.Snapshot(); err != nil || st.RxReceived == 0 || st.TxSubmitted == 0 {
			t.Errorf("queue %d: %+v, %v", s.Info().Queue, st.Counters, err)
		}
	}
	if err := group.Close(); err != nil {
		t.Error(err)
	}
	if err := ping(bed); err != nil {
		t.Error("ping afterwards:", err)
	}
}

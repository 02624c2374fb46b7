// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/wire"
)

// TestJoin checks that a link accepts frames to its job's group, and to no other, and that the
// interface's membership ends with the link.
func TestJoin(t *testing.T) {
	const job = 0x0107
	bed := bedtest.New(t, testbed.Config{Hosts: 2})
	in := func(host int, fn func()) {
		if err := bed.Host(host).Do(func() error { fn(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	member := func() (is bool) {
		in(0, func() {
			list, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
			if err != nil {
				t.Fatal(err)
			}
			is = strings.Contains(string(list), "01005e4c0107")
		})
		return is
	}
	var link Link
	in(0, func() {
		var err error
		if link, err = OpenAFXDP(AFXDPConfig{Interface: bed.Host(0).Interface, Local: netip.AddrPortFrom(bed.Host(0).IP, wire.DefaultPort)}); err != nil {
			t.Fatal(err)
		}
		if member() {
			t.Error("the interface is in the group before Join")
		}
		for range 2 {
			if err := Join(link, job); err != nil {
				t.Fatal(err)
			}
		}
		if err := Join(link, job+1); !errors.Is(err, ErrConfig) {
			t.Errorf("joining a second job: %v", err)
		}
	})
	if !member() {
		t.Error("the interface is not in the group")
	}
	from := wire.Endpoint{MAC: [6]byte(bed.Host(1).MAC), IP: bed.Host(1).IP, Port: wire.DefaultPort}
	in(1, func() {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for i, id := range []uint16{job + 1, job} {
			e, err := wire.NewEnvelope(from, wire.AllOf(id, wire.DefaultPort))
			if err != nil {
				t.Fatal(err)
			}
			frame := make([]byte, e.Len()+wire.ScaleLen)
			wire.Header{Type: wire.TypeAck, Seq: uint32(i)}.Put(frame[e.Len():])
			e.Seal(frame)
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: bed.Host(1).Index}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if h, err := wire.ParseHeader(receiveOne(deadline(t), t, link).Payload); err != nil || h.Seq != 1 {
		t.Errorf("received %+v, %v", h, err)
	}
	if s := link.Stats(); s.Foreign != 0 || s.Received != 1 {
		t.Errorf("%+v, want one frame, and that of the other group left to the kernel", s)
	}
	if err := link.Close(); err != nil {
		t.Error(err)
	}
	if member() {
		t.Error("the interface is still in the group")
	}
}

// The kernel refuses a membership: the error names the interface and the group, and no descriptor
// stays open.
func TestJoinRefused(t *testing.T) {
	h := bedtest.New(t, testbed.Config{Hosts: 1}).Host(0)
	if err := h.Do(func() error {
		l, err := OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
		if err != nil {
			return err
		}
		before := refuse.CountDescriptors(t)
		for call, says := range map[uintptr]string{
			unix.SYS_SOCKET:     "link: afxdp on " + h.Interface + ": socket: ",
			unix.SYS_SETSOCKOPT: "link: afxdp on " + h.Interface + ": joining 239.",
		} {
			err := refuse.Run(func() error { return Join(l, 1) }, refuse.Call{Number: call, Err: unix.ENOBUFS})
			if !errors.Is(err, unix.ENOBUFS) || !strings.HasPrefix(err.Error(), says) {
				t.Errorf("error %v, want one that begins with %q", err, says)
			}
		}
		if after := refuse.CountDescriptors(t); after != before {
			t.Errorf("%d descriptors are open, %d before", after, before)
		}
		return l.Close()
	}); err != nil {
		t.Fatal(err)
	}
}

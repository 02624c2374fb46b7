// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/wire"
)

// TestUDPFullSocket lets the kernel report that the socket's buffer is full. Nothing of the batch
// is taken or shown, answers are lost and counted, and Wait ends when there is room.
func TestUDPFullSocket(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EAGAIN, unix.ENOBUFS} {
		l := openTestUDP(t, "127.0.0.1:0")
		sendAll(t, l, l.Local(), 2, 20)
		pkts := receiveAll(t, l, 2)
		pkts[0].Reply, pkts[1].Reply = wire.HeaderLen, wire.HeaderLen
		path, err := l.Path(t.Context(), l.Local())
		if err != nil {
			t.Fatal(err)
		}
		b, _ := l.Alloc()
		frames := []Frame{{Buf: b, Len: 20, To: path}, {Buf: b, Len: 20, To: path}}
		shown := listen(t, l, 1<<20)
		err = refuse.Run(func() error {
			if n, err := l.Send(frames); n != 0 || err != nil {
				return fmt.Errorf("Send: %d, %w", n, err)
			}
			return l.Reply(pkts)
		}, refuse.Call{Number: unix.SYS_SENDMMSG, Err: errno})
		if err != nil {
			t.Fatal(err)
		}
		if s := l.Stats(); s.NoRoom != 2 || s.Sent != 2 || s.SendError != 0 || s.LastError != nil {
			t.Errorf("%v: %+v, want two answers without room", errno, s)
		}
		if all := readAll(shown); len(all) != 0 {
			t.Errorf("%v: the tap shows %d frames, and none has left", errno, len(all))
		}
		start := time.Now()
		limit := eventLimit
		if errno == unix.ENOBUFS {
			limit = 10 * time.Millisecond // poll does not know when an interface has room
		}
		if err := l.Wait(limit); err != nil || time.Since(start) >= eventLimit {
			t.Errorf("%v: Wait: %v, after %v", errno, err, time.Since(start))
		}
		if n, err := l.Send(frames); n != 2 || err != nil {
			t.Errorf("%v: Send: %d, %v", errno, n, err)
		}
	}
}

// TestUDPReceiveErrors lets receiving fail: a signal or an ICMP answer is ignored, any other error
// ends the link.
func TestUDPReceiveErrors(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0")
	for errno, end := range map[unix.Errno]bool{unix.EINTR: false, unix.ECONNREFUSED: false, unix.EAGAIN: false, unix.EPERM: true} {
		err := refuse.Run(func() error {
			_, err := l.Receive(make([]Packet, 1))
			return err
		}, refuse.Call{Number: unix.SYS_RECVMMSG, Err: errno})
		if end != errors.Is(err, errno) || !end && err != nil {
			t.Errorf("with %v: %v", errno, err)
		}
		err = refuse.Run(func() error { return l.Wait(time.Millisecond) }, refuse.Call{Number: unix.SYS_PPOLL, Err: errno})
		if ignored := errno == unix.EINTR; ignored != (err == nil) {
			t.Errorf("Wait with %v: %v", errno, err)
		}
	}
}

// The kernel refuses a call during opening: no link is opened, the error names the call, and no
// descriptor stays.
func TestUDPOpenRefused(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	for name, call := range map[string]refuse.Call{
		"socket": {Number: unix.SYS_SOCKET}, "bind": {Number: unix.SYS_BIND}, "getsockname": {Number: unix.SYS_GETSOCKNAME},
		"setsockopt": {Number: unix.SYS_SETSOCKOPT}, "getsockopt SO_RCVBUF": {Number: unix.SYS_GETSOCKOPT, Args: map[int]uint32{2: unix.SO_RCVBUF}},
		"eventfd": {Number: unix.SYS_EVENTFD2},
	} {
		call.Err = unix.ENOMEM
		var before, after []string
		err := refuse.Run(func() error {
			before = sockets(t)
			s, _, err := openUDPSocket(local, 0, udpBuffer)
			if err == nil {
				err = errors.Join(errors.New("it is opened"), s.closeSocket())
			}
			after = sockets(t)
			return err
		}, call)
		if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("error %v, want that of %s", err, name)
		}
		if !slices.Equal(before, after) {
			t.Errorf("%s: the sockets were %v, and are %v", name, before, after)
		}
	}
	err := refuse.Run(func() error {
		_, err := OpenUDP(local)
		return err
	}, refuse.Call{Number: unix.SYS_SETSOCKOPT, Err: unix.ENOMEM})
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "link: udp: setsockopt: ") {
		t.Errorf("error %v, want that of setsockopt", err)
	}
}

// A host whose kernel has no IPv6 has links over IPv4.
func TestUDPWithoutIPv6(t *testing.T) {
	for local, want := range map[string]error{"127.0.0.1:0": nil, "[::1]:0": unix.EAFNOSUPPORT} {
		err := refuse.Run(func() error {
			l, err := OpenUDP(netip.MustParseAddrPort(local))
			if err == nil {
				err = l.Close()
			}
			return err
		}, refuse.Call{Number: unix.SYS_SOCKET, Args: map[int]uint32{0: unix.AF_INET6}, Err: unix.EAFNOSUPPORT})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", local, err, want)
		}
	}
}

// sockets returns this process's open sockets.
func sockets(t *testing.T) (all []string) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil && strings.HasPrefix(to, "socket:") {
			all = append(all, to)
		}
	}
	slices.Sort(all)
	return all
}

// A sleep that a wake-up has ended leaves no wake-up that would end the next one.
func TestUDPWakeUpEndsOneSleep(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0").(*udpLink)
	s := l.sock.(*mmsgSocket)
	pending := func() int {
		t.Helper()
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.wake.FD()), Events: unix.POLLIN}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.wake.Interrupt()
	if pending() != 1 {
		t.Fatal("an interruption cannot be seen: this test sees nothing")
	}
	if err := l.Wait(time.Minute); err != nil || pending() != 0 {
		t.Errorf("%v; afterwards, %d wake-ups are pending", err, pending())
	}
}

// The tap shows sent answers, and not those in between that the kernel has refused.
func TestTapShowsAnswersThatWereSent(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0").(*udpLink)
	const frames = 6
	sendAll(t, l, l.Local(), frames, 40)
	pkts := receiveAll(t, l, frames)
	var want []int
	for i := range pkts {
		switch i {
		case 0, 3: // not answered
			continue
		case 1, 4: // cannot be sent from the loopback interface's address
			name := (*unix.RawSockaddrInet4)(unsafe.Pointer(&l.sock.(*mmsgSocket).rx.names[pkts[i].Handle]))
			name.Addr = [4]byte{192, 0, 2, 1}
		default:
			want = append(want, wire.HeaderLen+i)
		}
		pkts[i].Reply = wire.HeaderLen + i
	}
	tap := listen(t, l, 1<<20)
	if err := l.Reply(pkts); err != nil {
		t.Fatal(err)
	}
	var shown []int
	for _, f := range readAll(tap) {
		p, err := wire.ParseFrame(f.Data, l.Local().Port)
		if err != nil || f.Direction != Outbound {
			t.Errorf("%v, direction %d", err, f.Direction)
		}
		shown = append(shown, len(p.Payload))
	}
	if s := l.Stats(); !slices.Equal(shown, want) || s.SendError != 2 {
		t.Errorf("the tap shows answers of %v bytes, and %v were sent: %+v", shown, want, s)
	}
}

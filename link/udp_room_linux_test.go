// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/wire"
)

// A link's pending frames may become unnecessary while its queue is full, so that no Send follows.
// Then a wait for room must not end at once repeatedly, because there is room.
func TestUDPWaitsForRoomOnce(t *testing.T) {
	l, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket := l.(*udpLink).sock.(*mmsgSocket)
	socket.full = true // as after EAGAIN; by now the kernel has sent everything
	for range 100 {    // a signal also ends a wait
		if err := l.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
		if !socket.full {
			return
		}
	}
	t.Error("the link waits for room that there is, and so does not wait")
}

// A Wake during a sleep ends one Wait. The next ones sleep.
func TestUDPWakeEndsOneWait(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	for name, open := range map[string]func(netip.AddrPort) (Link, error){"mmsg": OpenUDP, "net": OpenNetUDP} {
		l, err := open(local)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if s, ok := l.(*udpLink).sock.(*mmsgSocket); ok {
			s.wake.Interrupt() // as Wake does if the link sleeps
		}
		l.Wake()
		if !waitsOnce(t, l) {
			t.Errorf("%s: no wait lasts until its limit", name)
		}
	}
}

// waitsOnce reports whether a wait lasts until its limit.
func waitsOnce(t *testing.T, l Link) bool {
	t.Helper()
	const limit = 10 * time.Millisecond
	for range 100 { // a signal also ends a wait
		start := time.Now()
		if err := l.Wait(limit); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) >= limit {
			return true
		}
	}
	return false
}

// While there is no room, an arriving frame ends a wait, and the link still waits for room.
func TestUDPWaitsForRoomAndFrames(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0")
	socket := l.(*udpLink).sock.(*mmsgSocket)
	// A pair of which one end has data to read and no room to write.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	for err == nil {
		_, err = unix.Write(pair[0], make([]byte, 1000))
	}
	if _, err := unix.Write(pair[1], []byte{1}); err != nil {
		t.Fatal(err)
	}
	socket.fds[0].Fd, socket.full = int32(pair[0]), true
	start := time.Now()
	if err := l.Wait(time.Minute); err != nil || time.Since(start) >= time.Minute {
		t.Errorf("%v, after %v", err, time.Since(start))
	}
	if !socket.full {
		t.Error("the link no longer waits for room, and there is none")
	}
}

// Events found by a wait stay until the next Receive with room for them, and the one after that is
// not affected.
func TestUDPKeepsWhatWaitFinds(t *testing.T) {
	for name, open := range map[string]func(netip.AddrPort) (Link, error){"mmsg": OpenUDP, "net": OpenNetUDP} {
		l, err := open(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := l.Wait(0); err != nil {
			t.Error(err)
		}
		path, err := l.Path(t.Context(), l.Local())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			b, _ := l.Alloc()
			wire.Header{Type: wire.TypePull, Seq: uint32(i)}.Put(l.Payload(b))
			if n, err := l.Send([]Frame{{Buf: b, Len: wire.HeaderLen, To: path}}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		pkts := make([]Packet, 1)
		for i, n := uint32(0), 0; i < 2; n = 0 {
			for end := time.Now().Add(eventLimit); n == 0; n, err = l.Receive(pkts) {
				if err != nil || time.Now().After(end) {
					t.Fatal("nothing comes: ", err)
				}
				if err := l.Wait(time.Second); err != nil {
					t.Fatal(err)
				}
				if n, err := l.Receive(nil); n != 0 || err != nil {
					t.Fatal(n, err)
				}
			}
			if err := l.Wait(time.Millisecond); err != nil { // for the next one, while this is in use
				t.Fatal(err)
			}
			if h, err := wire.ParseHeader(pkts[0].Payload); err != nil || h.Seq != i {
				t.Errorf("%s: frame %d is %+v, %v", name, i, h, err)
			}
			i++
		}
	}
}

// Answers that the kernel refuses are counted, each once, and other frames are not.
func TestUDPRefusedAnswers(t *testing.T) {
	l, err := OpenNetUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	good := Packet{Packet: wire.Packet{Src: l.Local(), Payload: make([]byte, 100)}, Reply: 20}
	bad, none := good, good
	bad.Src.IP = netip.MustParseAddr("192.0.2.1")
	none.Reply = 0
	for range 2 {
		if err := l.Reply([]Packet{none, bad, good, good}); err != nil {
			t.Fatal(err)
		}
		if err := l.Reply([]Packet{good}); err != nil {
			t.Fatal(err)
		}
	}
	if s := l.Stats(); s.Sent != 6 || s.SendError != 2 || s.NoRoom != 0 || s.LastError == nil {
		t.Errorf("%+v, want 6 answers sent and 2 errors", s)
	}
}

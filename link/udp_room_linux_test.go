package link

import (
	"net/netip"
	"testing"
	"time"
)

// What a link has to send may become needless while its queue is full, so that no Send
// follows. A wait for room that there is must not end at once then, again and again.
func TestUDPWaitsForRoomOnce(t *testing.T) {
	l, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket := l.(*udpLink).sock.(*mmsgSocket)
	socket.full = true // as after EAGAIN; by now the kernel has sent everything
	for range 100 {    // a signal ends a wait, too
		if err := l.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
		if !socket.full {
			return
		}
	}
	t.Error("the link waits for room that there is, and so does not wait")
}

// A Wake that came while the link slept ends one Wait. The next ones sleep.
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
	for range 100 { // a signal ends a wait, too
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

// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/internal/test/refuse"
	"github.com/libra-ina/libra/wire"
)

// linkAndFrame opens a link on the first host, and returns a frame for it from the other end of the
// cable.
func linkAndFrame(t *testing.T, bed *testbed.Bed) (l *afxdpLink, frame []byte) {
	t.Helper()
	h, sw := bed.Host(0), bed.Switch()
	if err := h.Do(func() error {
		opened, err := OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
		if err == nil {
			l = opened.(*afxdpLink)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	envelope, err := wire.NewEnvelope(wire.Endpoint{MAC: [6]byte(sw.MAC), IP: sw.IP, Port: 7}, l.Local())
	if err != nil {
		t.Fatal(err)
	}
	frame = make([]byte, envelope.Len()+100)
	wire.Header{Type: wire.TypeHot}.Put(frame[envelope.Len():])
	envelope.Seal(frame)
	return l, frame
}

// linkWithFrames opens a link in whose RX ring frames from the other end of the cable wait. Each
// requests an answer to the other end.
func linkWithFrames(t *testing.T, frames int) (*testbed.Node, *afxdpLink) {
	t.Helper()
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	h, sw := bed.Host(0), bed.Switch()
	l, frame := linkAndFrame(t, bed)
	end := time.Now().Add(eventLimit)
	for arrived := 0; arrived < frames; {
		if time.Now().After(end) {
			t.Fatalf("%d of %d frames have arrived", arrived, frames)
		}
		more := slices.Repeat([][]byte{frame}, min(batchSize, frames-arrived))
		if err := sw.Do(func() error { return sendFrom(h.PortName, 0, more) }); err != nil {
			t.Fatal(err)
		}
		for want := arrived + len(more); arrived < want && !time.Now().After(end); {
			c, err := l.tx.Rings()
			if err != nil {
				t.Fatal(err)
			}
			arrived = c.Rx
		}
	}
	return h, l
}

// answerAll receives frames and answers each.
func answerAll(t *testing.T, l Link, frames int) {
	t.Helper()
	pkts := make([]Packet, batchSize)
	for answered := 0; answered < frames; {
		n, err := l.Receive(pkts[:min(batchSize, frames-answered)])
		if n == 0 || err != nil {
			t.Fatalf("%d, %v, after %d frames of %d", n, err, answered, frames)
		}
		for i := range pkts[:n] {
			pkts[i].Reply = wire.HeaderLen
		}
		if err := l.Reply(pkts[:n]); err != nil {
			t.Fatal(err)
		}
		answered += n
	}
}

// The kernel gets the frames of sent answers back, also from a link that only receives and has no
// spare frame.
func TestAFXDPAnsweredFramesReturn(t *testing.T) {
	_, l := linkWithFrames(t, batchSize)
	for _, ok := l.Alloc(); ok; _, ok = l.Alloc() {
	}
	answerAll(t, l, batchSize)
	seen := listen(t, l, 1<<20)
	filling := 0
	for end := time.Now().Add(eventLimit); filling < rxFrames; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the kernel has %d frames to fill of %d", filling, rxFrames)
		}
		if n, err := l.Receive(make([]Packet, 1)); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		filling = l.umem.Census().Filling
	}
	select {
	case <-seen.More():
		t.Error("a listener is told to look, and nothing has come")
	default:
	}
}

// A listener is notified of new frames. A packet cannot be answered after the link's end.
func TestAFXDPAnswersAfterClose(t *testing.T) {
	_, l := linkWithFrames(t, 1)
	seen := listen(t, l, 1<<20)
	pkts := make([]Packet, 1)
	if n, err := l.Receive(pkts); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	select {
	case <-seen.More():
	default:
		t.Error("the listener is not told to look")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	pkts[0].Reply = wire.HeaderLen
	if err := l.Reply(pkts); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Reply: %v", err)
	}
}

// While the interface is down, answers and frames fill the TX ring. Send takes as many as fit, and
// the rest when the interface is up again; answers are lost.
func TestAFXDPFullRing(t *testing.T) {
	const (
		answers = 1100
		late    = 5    // further ones
		ring    = 2048 // entries
	)
	h, l := linkWithFrames(t, answers+2*late)
	set := func(change func(netlink.Link) error) {
		t.Helper()
		if err := h.Do(func() error {
			ifi, err := netlink.LinkByName(h.Interface)
			if err != nil {
				return err
			}
			return change(ifi)
		}); err != nil {
			t.Fatal(err)
		}
	}
	path, err := l.Path(t.Context(), wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: h.IP.Next(), Port: 7})
	if err != nil {
		t.Fatal(err)
	}
	set(netlink.LinkSetDown)
	answerAll(t, l, answers)
	if err := l.Stats().LastError; !errors.Is(err, afxdp.ErrLinkDown) {
		t.Errorf("the last error is %v, want that of the answers", err)
	}
	var frames []Frame
	for b, ok := l.Alloc(); ok; b, ok = l.Alloc() {
		frames = append(frames, Frame{Buf: b, Len: 100, To: path})
	}
	n, err := l.Send(frames)
	if n != ring-answers || n >= len(frames) || err != nil {
		t.Fatalf("%d of %d frames are taken, %v; want %d", n, len(frames), err, ring-answers)
	}
	if again, err := l.Send(frames[n:]); again != 0 || err != nil {
		t.Errorf("%d frames are taken where there is no room, %v", again, err)
	}
	// Frames in flight need no room; those that are taken do not depend on how many are skipped.
	if again, err := l.Send(frames[n-2:]); again != 2 || err != nil {
		t.Errorf("%d frames are taken of 2 in flight, and others for which there is no room, %v; want 2", again, err)
	}
	answerAll(t, l, late)
	answerAll(t, l, late)
	set(netlink.LinkSetUp)
	for end := time.Now().Add(eventLimit); n < len(frames); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d frames are taken after the interface is up again", n, len(frames))
		}
		more, err := l.Send(frames[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += more
	}
	if s := l.Stats(); s.Sent != uint64(answers+len(frames)) || s.NoRoom != 2*late {
		t.Errorf("%+v, want %d frames sent, and %d answers without room", s, answers+len(frames), 2*late)
	}
}

// A frame that is already in flight is sent once. Those after it are also sent.
func TestAFXDPSendsABufferOnce(t *testing.T) {
	_, links, path := afxdpPair(t)
	var frames []Frame
	for i := range 2 {
		b, _ := links[0].Alloc()
		wire.Header{Type: wire.TypeHot, Seq: uint32(i)}.Put(links[0].Payload(b))
		frames = append(frames, Frame{Buf: b, Len: wire.HeaderLen, To: path})
	}
	twice := []Frame{frames[0], frames[0], frames[1]}
	if n, err := links[0].Send(twice); n != len(twice) || err != nil {
		t.Fatalf("%d, %v; want all taken", n, err)
	}
	if s := links[0].Stats(); s.Sent != 2 {
		t.Errorf("%+v, want 2 frames sent", s)
	}
	seen := map[uint32]bool{}
	for _, p := range receiveAll(t, links[1], 2) {
		h, err := wire.ParseHeader(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		seen[h.Seq] = true
	}
	if len(seen) != 2 {
		t.Errorf("received %v, want both frames", seen)
	}
}

// Frames that a driver refuses after taking them are counted, on every queue.
func TestAFXDPDriverRefuses(t *testing.T) {
	_, links, path := afxdpPair(t)
	b, _ := links[0].Alloc()
	for range 2 {
		if err := refuse.Run(func() error {
			_, err := links[0].Send([]Frame{{Buf: b, Len: wire.HeaderLen, To: path}})
			return err
		}, refuse.Call{Number: unix.SYS_SENDTO, Err: unix.EBUSY}); err != nil {
			t.Fatal(err)
		}
	}
	if s := links[0].Stats(); s.SendError != 2 {
		t.Errorf("%+v, want 2 errors", s)
	}
	if err := links[0].Close(); err != nil {
		t.Error(err)
	}
	if s := links[0].Stats(); s.SendError != 2 {
		t.Errorf("after Close: %+v, want 2 errors", s)
	}
}

// A link without a spin time uses the default, otherwise the given one.
func TestAFXDPSpin(t *testing.T) {
	h := bedtest.New(t, testbed.Config{Hosts: 1}).Host(0)
	for ask, want := range map[time.Duration]time.Duration{0: 20 * time.Microsecond, time.Millisecond: time.Millisecond, -1: -1} {
		if err := h.Do(func() error {
			l, err := OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort), Spin: ask})
			if err != nil {
				return err
			}
			if got := l.(*afxdpLink).cfg.Spin; got != want {
				t.Errorf("asked for %v, the link spins for %v, want %v", ask, got, want)
			}
			return l.Close()
		}); err != nil {
			t.Fatal(err)
		}
	}
}

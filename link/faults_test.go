// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/libra-ina/libra/wire"
)

// reluctant is a UDP link that takes part of its frames.
type reluctant struct {
	Link
	take  int   // frames of each batch
	fail  error // of a batch of one frame
	paths int   // asked for
}

func (l *reluctant) Send(frames []Frame) (int, error) {
	if l.fail != nil && len(frames) == 1 {
		return 0, l.fail
	}
	return l.Link.Send(frames[:min(l.take, len(frames))])
}

func (l *reluctant) Path(ctx context.Context, to wire.Endpoint) (Path, error) {
	l.paths++
	return l.Link.Path(ctx, to)
}

// openReluctant adds faults to a reluctant link, and prepares frames that the link sends to itself.
func openReluctant(t *testing.T, f Faults, frames int) (l Link, below *reluctant, batch []Frame) {
	t.Helper()
	below = &reluctant{Link: openTestUDP(t, "127.0.0.1:0"), take: batchSize}
	l, err := WithFaults(below, f)
	if err != nil {
		t.Fatal(err)
	}
	path, err := l.Path(t.Context(), l.Local())
	if err != nil {
		t.Fatal(err)
	}
	for range frames {
		b, ok := l.Alloc()
		if !ok {
			t.Fatal("no buffer")
		}
		wire.Header{Type: wire.TypePull}.Put(l.Payload(b))
		batch = append(batch, Frame{Buf: b, Len: wire.HeaderLen, To: path})
	}
	return l, below, batch
}

// TestFaultsWithoutRoom uses a link that does not take all frames: they are lost, and counted.
func TestFaultsWithoutRoom(t *testing.T) {
	l, below, batch := openReluctant(t, Faults{}, 10)
	below.take = 3
	for range 2 {
		if n, err := l.Send(batch); n != len(batch) || err != nil {
			t.Fatal(n, err)
		}
	}
	if s := l.Stats(); s.Sent != 6 || s.Dropped != 14 {
		t.Errorf("%+v, want 6 frames sent and 14 dropped", s)
	}
	l, below, batch = openReluctant(t, Faults{Duplicate: 0.999999, Delay: 1}, 1)
	below.take = 0
	const frames = 10
	for range frames {
		if n, err := l.Send(batch); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	// All originals, and their copies except the one that is held back.
	if s := l.Stats(); s.Sent != 0 || s.Dropped < 2*frames-2 || s.Dropped > 2*frames {
		t.Errorf("%+v, want about %d frames dropped", s, 2*frames)
	}
}

// TestFaultsPassErrors uses a link that ends.
func TestFaultsPassErrors(t *testing.T) {
	l, below, batch := openReluctant(t, Faults{Duplicate: 0.999999, Delay: 1}, 3)
	below.fail = errors.New("the end")
	for try := 0; ; try++ {
		_, err := l.Send(batch) // only copies are sent alone
		if errors.Is(err, below.fail) {
			break
		}
		if err != nil || try == 10 {
			t.Fatalf("Send: %v, want %v", err, below.fail)
		}
	}
	pkts := receiveSome(t, l)
	pkts[0].Reply = wire.HeaderLen
	if err := l.Reply(pkts); !errors.Is(err, below.fail) {
		t.Errorf("Reply: %v, want %v", err, below.fail)
	}
}

// TestFaultsReceived counts losses on receiving, and requests one path to each peer that it
// answers.
func TestFaultsReceived(t *testing.T) {
	l, below, _ := openReluctant(t, Faults{Drop: 0.5, Seed: 1}, 0)
	from := openTestUDP(t, "127.0.0.1:0")
	const frames = 40
	sendAll(t, from, l.Local(), frames, 20)
	below.paths = 0
	got := 0
	for end := time.Now().Add(eventLimit); ; {
		pkts := make([]Packet, 8)
		n, err := l.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		for i := range pkts[:n] {
			pkts[i].Reply = wire.HeaderLen
		}
		if err := l.Reply(pkts[:n]); err != nil {
			t.Fatal(err)
		}
		if got += n; below.Stats().Received == frames {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", below.Stats())
		}
	}
	s := l.Stats()
	// Answers use the faulty path, too.
	answers := s.Sent + s.Dropped - uint64(frames-got)
	if got == 0 || got == frames || answers != uint64(got) {
		t.Errorf("%d of %d frames came; %+v", got, frames, s)
	}
	if below.paths != 1 {
		t.Errorf("%d paths to one peer", below.paths)
	}
}

// TestFaultsKeepWhatIsDue receives one frame at a time when more are due: Wait does not sleep,
// except on a closed link.
func TestFaultsKeepWhatIsDue(t *testing.T) {
	l, _, batch := openReluctant(t, Faults{Duplicate: 0.999999, Delay: 1}, 10)
	if n, err := l.Send(batch); n != len(batch) || err != nil {
		t.Fatal(n, err)
	}
	inner := l.(*faultyLink)
	pkt := make([]Packet, 1)
	for end := time.Now().Add(eventLimit); len(inner.ready) == 0; {
		if _, err := l.Receive(pkt); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("no copy was due")
		}
	}
	// Nothing else ends this sleep early.
	for n := 1; n > 0; {
		var err error
		if n, err = inner.Link.Receive(make([]Packet, batchSize)); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	if err := l.Wait(eventLimit); err != nil || time.Since(start) >= eventLimit {
		t.Errorf("Wait: %v, after %v", err, time.Since(start))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Wait(-1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Wait after Close: %v", err)
	}
}

// receiveSome receives the first payloads that come.
func receiveSome(t *testing.T, l Link) []Packet {
	t.Helper()
	pkts := make([]Packet, 8)
	for range 1000 {
		n, err := l.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return pkts[:n]
		}
		if err := l.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing received")
	return nil
}

// TestUDPWithoutAddress opens a link without an address.
func TestUDPWithoutAddress(t *testing.T) {
	if l, err := OpenUDP(netip.AddrPort{}); !errors.Is(err, ErrConfig) {
		t.Errorf("%v, %v; want an ErrConfig", l, err)
	}
}

// mute is a link that takes every frame and always receives the same packet.
type mute struct{ Link }

func (mute) Send(frames []Frame) (int, error)   { return len(frames), nil }
func (mute) Receive(pkts []Packet) (int, error) { pkts[0] = Packet{}; return 1, nil }

// TestFaultsAllocateNothing checks frames that pass: garbage of the faults would count as the cost
// of a loss.
func TestFaultsAllocateNothing(t *testing.T) {
	l, err := WithFaults(mute{}, Faults{Drop: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	frames, pkts := make([]Frame, 8), make([]Packet, 8)
	if n := testing.AllocsPerRun(100, func() {
		if n, err := l.Send(frames); n != len(frames) || err != nil {
			t.Fatal(n, err)
		}
		if n, err := l.Receive(pkts); n > 1 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%g allocations for a batch sent and one received", n)
	}
}

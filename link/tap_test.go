// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// readAll empties a listener's queue.
func readAll(l *Listener) []TappedFrame {
	var all []TappedFrame
	for f, ok := l.Read(); ok; f, ok = l.Read() {
		f.Data = bytes.Clone(f.Data)
		all = append(all, f)
	}
	return all
}

func listen(t testing.TB, link Link, queue int) *Listener {
	t.Helper()
	l, err := TapOf(link).Listen(queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// TestTapRing compares the ring with a plain queue of limited length.
func TestTapRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newTapRing(1)
		var queue []TappedFrame
		for i := range rapid.IntRange(1, 400).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "what") == 0 {
				for range rapid.IntRange(1, 30).Draw(t, "reads") {
					got, ok := r.nextFrame()
					if ok != (len(queue) > 0) {
						t.Fatalf("got a frame: %v, %d are queued", ok, len(queue))
					}
					if !ok {
						break
					}
					want := queue[0]
					queue = queue[1:]
					if !got.Time.Equal(want.Time) || got.Direction != want.Direction || got.Len != want.Len || got.Lost != want.Lost || !bytes.Equal(got.Data, want.Data) {
						t.Fatalf("got %v, want %v", got, want)
					}
				}
				continue
			}
			n := rapid.IntRange(0, TapSnapLen).Draw(t, "length")
			f := TappedFrame{Time: time.Unix(0, int64(i)), Direction: Direction(1 + i%2), Len: n + i, Lost: uint64(i), Data: bytes.Repeat([]byte{byte(i)}, n)}
			if r.putFrame(&f) {
				queue = append(queue, f)
			} else if len(queue) < tapRingMin/(tapHeader+TapSnapLen+tapAlign)-1 {
				t.Fatalf("full with %d frames", len(queue))
			}
		}
	})
}

// TestTapConcurrent runs a slow reader concurrently with the link: its frames are intact and in
// order, and missed ones are counted where they are missing.
func TestTapConcurrent(t *testing.T) {
	tap := newTap()
	l, err := tap.Listen(tapRingMin)
	if err != nil {
		t.Fatal(err)
	}
	const frames = 50_000
	go func() {
		frame := make([]byte, 200)
		for i := range frames {
			b, _ := tap.beginBatch()
			for k := range frame {
				frame[k] = byte(i)
			}
			b.addFrame(Outbound, frame[:1+i%len(frame)])
			b.endBatch()
		}
		tap.closeListeners()
	}()
	next, ended := 0, false
	for !ended {
		select {
		case <-l.More():
		case <-l.Done():
			ended = true
		}
		for f, ok := l.Read(); ok; f, ok = l.Read() {
			next += int(f.Lost)
			want := bytes.Repeat([]byte{byte(next)}, 1+next%200)
			if !bytes.Equal(f.Data, want) {
				t.Fatalf("frame %d: %d bytes of %d, want %d", next, len(f.Data), f.Data[0], len(want))
			}
			next++
		}
	}
	queued, dropped := l.Counts()
	if queued+dropped != frames || queued == 0 || next > frames {
		t.Errorf("%d queued, %d dropped of %d; the last was %d", queued, dropped, frames, next)
	}
}

// TestTapDrops fills the queue of a listener that does not read. The link continues, and another
// listener gets everything.
func TestTapDrops(t *testing.T) {
	link := openTestUDP(t, "127.0.0.1:0")
	full, other := listen(t, link, 1), listen(t, link, 1<<20)
	const frames = 100
	sendAll(t, link, link.Local(), frames, link.Limits().MaxPayload)
	queued, dropped := full.Counts()
	if queued == 0 || dropped == 0 || queued+dropped != frames {
		t.Errorf("%d queued and %d dropped of %d", queued, dropped, frames)
	}
	if n := len(readAll(other)); n != frames {
		t.Errorf("the other listener has %d frames of %d", n, frames)
	}
	if n := len(readAll(full)); uint64(n) != queued {
		t.Errorf("%d frames read, %d queued", n, queued)
	}
	sendAll(t, link, link.Local(), 1, 20)
	if got := readAll(full); len(got) != 1 || got[0].Lost != dropped {
		t.Errorf("after the drops: %v, want one frame that tells of %d", got, dropped)
	}
}

// sendAll sends frames of n bytes and frees their buffers.
func sendAll(t *testing.T, l Link, to wire.Endpoint, frames, n int) {
	t.Helper()
	path, err := l.Path(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	for range frames {
		b, ok := l.Alloc()
		if !ok {
			t.Fatal("no buffer")
		}
		if sent, err := l.Send([]Frame{{Buf: b, Len: n, To: path}}); sent != 1 || err != nil {
			t.Fatalf("sent %d, %v", sent, err)
		}
		l.Free(b)
	}
}

// TestTapListeners attaches and detaches listeners while frames pass.
func TestTapListeners(t *testing.T) {
	link, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	tap := TapOf(link)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				l, err := tap.Listen(1)
				if err != nil {
					t.Error(err)
					return
				}
				l.Read()
				l.Close()
			}
		})
	}
	sendAll(t, link, link.Local(), 200, wire.HeaderLen)
	wg.Wait()
	if tap.hearing.Load() != nil {
		t.Error("the link still believes that it has a listener")
	}
	l := listen(t, link, 1)
	if err := link.Close(); err != nil {
		t.Fatal(err)
	}
	<-l.Done()
	if _, err := tap.Listen(1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Listen on a closed link: %v", err)
	}
}

// TestTapUDP checks the frames around a UDP link's payloads: below injected faults, in both
// directions, including answers.
func TestTapUDP(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		a, b := openTestUDP(t, host), openTestUDP(t, host)
		lossy, err := WithFaults(a, Faults{Drop: 0.5, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		atA, atB := listen(t, lossy, 1<<20), listen(t, b, 1<<20)
		sendAll(t, lossy, b.Local(), 40, 100)
		out := readAll(atA)
		if len(out) == 0 || len(out) == 40 {
			t.Fatalf("%d frames of 40 pass a link that loses half", len(out))
		}
		pkts := receiveAll(t, b, len(out))
		for i := range pkts {
			pkts[i].Reply = wire.HeaderLen
		}
		if err := b.Reply(pkts); err != nil {
			t.Fatal(err)
		}
		got := readAll(atB)
		if len(got) != 2*len(out) {
			t.Fatalf("%d frames at the receiver, want %d", len(got), 2*len(out))
		}
		for i, f := range slices.Concat(out, got) {
			src, dst, way, n := a.Local(), b.Local(), Outbound, 100
			if i >= len(out) {
				way = Inbound
			}
			if i >= 2*len(out) {
				src, dst, way, n = dst, src, Outbound, wire.HeaderLen
			}
			p, err := wire.ParseFrame(f.Data, dst.Port)
			if err != nil || p.Src != src || p.Dst != dst || len(p.Payload) != n || f.Direction != way || f.Len != len(f.Data) || f.Time.IsZero() {
				t.Errorf("%s: frame %d: %v -> %v, %d bytes, direction %d, %v", host, i, p.Src, p.Dst, len(p.Payload), f.Direction, err)
			}
		}
	}
}

// A frame that the tap shows has the bytes and the addresses of its payload, whichever peer the
// previous one went to; and showing changes no payload.
func TestTapUDPTellsPeersApart(t *testing.T) {
	a := openTestUDP(t, "127.0.0.1:0")
	peers := []Link{openTestUDP(t, "127.0.0.1:0"), openTestUDP(t, "127.0.0.1:0")}
	sent := listen(t, a, 1<<20)
	taps := []*Listener{listen(t, peers[0], 1<<20), listen(t, peers[1], 1<<20)}
	const frames = 4
	var want [frames][]byte
	for i := range want {
		path, err := a.Path(t.Context(), peers[i%2].Local())
		if err != nil {
			t.Fatal(err)
		}
		b, ok := a.Alloc()
		if !ok {
			t.Fatal("no buffer")
		}
		want[i] = bytes.Repeat([]byte{byte('a' + i)}, 40+i)
		copy(a.Payload(b), want[i])
		if n, err := a.Send([]Frame{{Buf: b, Len: len(want[i]), To: path}}); n != 1 || err != nil {
			t.Fatalf("sent %d, %v", n, err)
		}
		a.Free(b)
	}
	check := func(what string, i int, f TappedFrame) {
		p, err := wire.ParseFrame(f.Data, peers[i%2].Local().Port)
		if err != nil || p.Src != a.Local() || p.Dst != peers[i%2].Local() || !bytes.Equal(p.Payload, want[i]) {
			t.Errorf("%s %d: %v -> %v, %q, %v", what, i, p.Src, p.Dst, p.Payload, err)
		}
	}
	out := readAll(sent)
	if len(out) != frames {
		t.Fatalf("%d frames of %d are shown", len(out), frames)
	}
	for i, f := range out {
		check("sent", i, f)
	}
	for k, peer := range peers {
		pkts := make([]Packet, frames)
		for got := 0; got < frames/2; {
			n, err := peer.Receive(pkts)
			if err != nil {
				t.Fatal(err)
			}
			for j := range pkts[:n] {
				if i := 2*(got+j) + k; !bytes.Equal(pkts[j].Payload, want[i]) {
					t.Errorf("payload %d is received as %q", i, pkts[j].Payload)
				}
				if got+j > 0 { // the first is not answered
					pkts[j].Reply = wire.HeaderLen
				}
			}
			if err := peer.Reply(pkts[:n]); err != nil {
				t.Fatal(err)
			}
			if got += n; n == 0 {
				if err := peer.Wait(time.Minute); err != nil {
					t.Fatal(err)
				}
			}
		}
		shown := readAll(taps[k])
		if len(shown) != frames/2+1 {
			t.Fatalf("%d frames are shown at peer %d, want %d", len(shown), k, frames/2+1)
		}
		for j, f := range shown[:frames/2] {
			check("received", 2*j+k, f)
		}
		p, err := wire.ParseFrame(shown[frames/2].Data, a.Local().Port)
		if err != nil || p.Src != peer.Local() || p.Dst != a.Local() || shown[frames/2].Direction != Outbound {
			t.Errorf("the answer of peer %d is shown as %v -> %v, %v", k, p.Src, p.Dst, err)
		}
	}
	pkts := make([]Packet, frames)
	for got := 0; got < len(peers); {
		n, err := a.Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if got += n; n == 0 {
			if err := a.Wait(time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	for k, f := range readAll(sent) {
		p, err := wire.ParseFrame(f.Data, a.Local().Port)
		if err != nil || p.Src != peers[k].Local() || p.Dst != a.Local() || f.Direction != Inbound {
			t.Errorf("the answer of peer %d is received as %v -> %v, %v", k, p.Src, p.Dst, err)
		}
	}
}

// TestTapUnsendable lets the kernel refuse every frame: none was sent.
func TestTapUnsendable(t *testing.T) {
	link := openTestUDP(t, "127.0.0.1:0")
	l := listen(t, link, 1)
	// No packet can be sent from the loopback interface's address to another host.
	sendAll(t, link, wire.Endpoint{IP: netip.MustParseAddr("192.0.2.1"), Port: 1}, 3, 20)
	sendAll(t, link, link.Local(), 1, 20)
	if got := readAll(l); len(got) != 1 || link.Stats().SendError != 3 {
		t.Errorf("captured %v; %+v", got, link.Stats())
	}
}

func TestTapOf(t *testing.T) {
	if TapOf(struct{ Link }{}) != nil {
		t.Error("a foreign link has a tap")
	}
}

func BenchmarkTap(b *testing.B) {
	frame := make([]byte, 1414)
	for name, listeners := range map[string]int{"no listener": 0, "one": 1} {
		b.Run(name, func(b *testing.B) {
			tap := newTap()
			var l *Listener
			for range listeners {
				l, _ = tap.Listen(1 << 20)
			}
			b.ReportAllocs()
			for b.Loop() {
				if batch, listening := tap.beginBatch(); listening {
					for range batchSize {
						batch.addFrame(Inbound, frame)
					}
					batch.endBatch()
					for _, ok := l.Read(); ok; _, ok = l.Read() {
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batchSize, "ns/frame")
		})
	}
}

// A Receive that finds nothing does not wake a listener.
func TestTapIsQuietWithoutFrames(t *testing.T) {
	l := openTestUDP(t, "127.0.0.1:0")
	seen := listen(t, l, 1<<20)
	if n, err := l.Receive(make([]Packet, 1)); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	select {
	case <-seen.More():
		t.Error("the listener is told to look, and nothing has come")
	default:
	}
}

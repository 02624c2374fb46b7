// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// echo is the smallest life: programs on two hosts, of which one sends numbered frames and the
// other answers them. Nothing in it is of Libra but the frames' headers.
type echo struct {
	*World
	asker, answerer *Host
	left            []uint32 // numbers of frames that have left the asker
	got             []uint32 // numbers that the answerer got, in order
	answered        []uint32 // numbers whose answers the asker got
}

func (e *echo) Collect()     {}
func (e *echo) Turned(*Host) {}

func (e *echo) Leaves(from, _ *Host, payload []byte, _ bool) {
	if h, err := wire.ParseHeader(payload); err == nil && from == e.asker {
		e.left = append(e.left, h.Seq)
	}
}

// heard records what a process gets.
type heard struct{ numbers *[]uint32 }

func (heard) Sends(wire.Endpoint, []byte) {}
func (heard) Answers([]link.Packet)       {}
func (heard) Closes([]link.Packet)        {}

func (w heard) Gets(pkts []link.Packet, _ bool) {
	for _, p := range pkts {
		if h, err := wire.ParseHeader(p.Payload); err == nil {
			*w.numbers = append(*w.numbers, h.Seq)
		}
	}
}

// newEcho makes the life with its answerer.
func newEcho(seed Seed, trace io.Writer, c Conditions) *echo {
	c.Delay, c.Window, c.Payload, c.Inbox = max(1, c.Delay), 16, 200, 64
	e := &echo{}
	e.World = New(Options{Seed: seed, Trace: trace, Life: e, Bound: time.Minute, Conditions: c})
	e.asker = e.NewHost("asker", netip.MustParseAddrPort("10.0.0.1:7000"))
	e.answerer = e.NewHost("answerer", netip.MustParseAddrPort("10.0.0.2:7000"))
	l := e.Open(e.answerer, "answerer", heard{&e.got})
	go func() {
		defer l.Close()
		pkts := make([]link.Packet, 8)
		for l.Wait(-1) == nil {
			n, err := l.Receive(pkts)
			for i := range pkts[:n] {
				h, _ := wire.ParseHeader(pkts[i].Payload)
				h.Type = wire.TypeAck
				h.Put(pkts[i].Payload)
				pkts[i].Reply = wire.HeaderLen
			}
			if err != nil || n > 0 && l.Reply(pkts[:n]) != nil {
				return
			}
		}
	}()
	return e
}

// ask sends frames from a turn on, waits until nothing happens, and receives the answers.
func (e *echo) ask(t *testing.T, l *Link, a *Actor, numbers ...uint32) {
	path, err := l.Path(context.Background(), e.answerer.Endpoint())
	if err != nil {
		t.Error(err)
	}
	for _, n := range numbers {
		b, ok := l.Alloc()
		if !ok {
			t.Error("no buffer")
			return
		}
		wire.Header{Type: wire.TypePull, Job: 1, Seq: n}.Put(l.Payload(b))
		if sent, err := l.Send([]link.Frame{{Buf: b, Len: wire.HeaderLen, To: path}}); err != nil || sent != 1 {
			t.Errorf("%d frames sent, %v", sent, err)
		}
		l.Free(b)
	}
	a.Settle()
	e.take(t, l)
}

func (e *echo) take(t *testing.T, l *Link) {
	pkts := make([]link.Packet, 8)
	for l.Unread() > 0 {
		if _, err := l.Receive(pkts); err != nil {
			t.Error(err)
			return
		}
	}
}

// live runs the asker's program and returns the life after its end.
func live(t *testing.T, seed Seed, trace io.Writer, c Conditions, body func(e *echo, l *Link, a *Actor)) (e *echo) {
	synctest.Test(t, func(*testing.T) {
		e = newEcho(seed, trace, c)
		l := e.Open(e.asker, "asker", heard{&e.answered})
		a := l.act
		a.Start(func() { body(e, l, a) })
		e.Run(func() bool { return a.Gone() && e.Idle() })
		e.End()
	})
	return e
}

// A life decides the fate of single frames.
func TestFatesOfFrames(t *testing.T) {
	for seed := range Seed(10) {
		e := live(t, seed, nil, Conditions{}, func(e *echo, l *Link, a *Actor) {
			e.Net.Lose(e.asker, e.answerer, 1)
			e.ask(t, l, a, 1, 2)
			e.Net.Partition(e.asker, e.answerer)
			e.ask(t, l, a, 3)
			e.Net.Rejoin(e.asker, e.answerer)
			e.Net.Hold(e.asker, e.answerer)
			e.ask(t, l, a, 4, 5, 6)
			if n := e.Net.Held(e.asker, e.answerer); n != 3 {
				t.Errorf("%d frames are kept", n)
			}
			err := errors.Join(e.Net.Deliver(e.asker, e.answerer, 2, false), e.Net.Deliver(e.asker, e.answerer, 0, true))
			if a.Settle(); err != nil || e.Net.Deliver(e.asker, e.answerer, 2, false) == nil {
				t.Errorf("kept frames are not delivered: %v", err)
			}
			e.Net.Release(e.asker, e.answerer)
			a.Settle()
			e.take(t, l)
		})
		if e.Failed() {
			t.Fatal(e.Failure())
		}
		if want := []uint32{1, 2, 3, 4, 5, 6}; !slices.Equal(e.left, want) {
			t.Errorf("frames %v have left, not %v", e.left, want)
		}
		want := []uint32{2, 6, 4, 4, 5}
		slices.Sort(e.answered)
		if !slices.Equal(e.got, want) || !slices.Equal(e.answered, []uint32{2, 4, 4, 5, 6}) {
			t.Errorf("frames %v arrive, not %v; answers to %v", e.got, want, e.answered)
		}
		if n := e.Net.Traffic(); n.Lost != 1 || n.Cut != 1 {
			t.Errorf("%+v", n)
		}
	}
}

// The network counts the frames that later ones have overtaken.
func TestOvertaken(t *testing.T) {
	most := 0
	for seed := range Seed(20) {
		e := live(t, seed, nil, Conditions{}, func(e *echo, l *Link, a *Actor) { e.ask(t, l, a, 1, 2, 3, 4, 5, 6, 7, 8) })
		want, newest := 0, uint32(0)
		for _, n := range e.got {
			if n < newest {
				want++
			}
			newest = max(newest, n)
		}
		if n := e.Net.Overtaken(e.asker, e.answerer); n != want {
			t.Errorf("seed %d: %d frames were overtaken, not %d: %v", seed, n, want, e.got)
		}
		most = max(most, want)
	}
	if most == 0 {
		t.Error("no frame was overtaken")
	}
}

// The same seed gives the same life, another seed another one.
func TestSeedsDecide(t *testing.T) {
	var traces [3]strings.Builder
	var digests [3]uint64
	for i, seed := range []Seed{1, 1, 2} {
		e := live(t, seed, &traces[i], Conditions{Loss: 0.3, Duplicate: 0.3, Reorder: 0.3, Delay: time.Millisecond}, func(e *echo, l *Link, a *Actor) {
			for n := range uint32(20) {
				e.ask(t, l, a, n)
			}
		})
		digests[i] = e.Digest()
	}
	if traces[0].String() != traces[1].String() || digests[0] != digests[1] {
		t.Error("two lives of one seed differ")
	}
	if traces[0].String() == traces[2].String() || digests[0] == digests[2] {
		t.Error("lives of two seeds are the same")
	}
}

// A life that cannot end fails, with its state.
func TestNothingHappens(t *testing.T) {
	e := live(t, 1, nil, Conditions{}, func(_ *echo, _ *Link, a *Actor) { a.Park("for ever", Never, time.Time{}) })
	if f := e.Failure(); f == nil || !strings.Contains(f.Error(), "nothing happens any more") || !strings.Contains(f.What, "asker is at for ever") {
		t.Errorf("%v", f)
	}
}

// A buffer that is freed twice is a violation, which names the seed, the turn and the time.
func TestFailure(t *testing.T) {
	e := live(t, 3, nil, Conditions{}, func(_ *echo, l *Link, _ *Actor) {
		b, _ := l.Alloc()
		l.Free(b)
		l.Free(b)
	})
	if f := e.Failure(); f == nil || !strings.HasPrefix(f.Error(), fmt.Sprintf("seed 3, step %d, %v: asker: buffer ", f.Step, f.At)) {
		t.Errorf("%v", f)
	}
}

// A process that was killed has no connection, link or disk any more.
func TestKilledProcess(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		e := &echo{}
		e.World = New(Options{Seed: 1, Life: e, Background: true, Bound: time.Minute, Conditions: Conditions{Delay: 1, Window: 16, Payload: 200, Inbox: 64}})
		conns := e.NewConnections(ConnectionHooks{Message: func() (Breakage, bool) { return Breakage{}, false }, Breaks: func(bool) {}})
		disk := e.NewDisk("/d", anyDisk{})
		at := netip.MustParseAddrPort("10.0.0.1:7700")
		p := e.NewProcess("server@1", e.NewHost("server", netip.MustParseAddrPort("10.0.0.1:7000")))
		l, err := conns.Listen(p, at)
		if err != nil || !conns.Listens(at) {
			t.Fatal(err)
		}
		if _, err := p.Open(heard{&e.got}); err != nil {
			t.Fatal(err)
		}
		e.Mu.Lock()
		p.Kill(true)
		e.Mu.Unlock()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || conns.Listens(at) {
			t.Errorf("a killed process listens: %v", err)
		}
		if _, err := p.Open(heard{&e.got}); !errors.Is(err, ErrGone) {
			t.Errorf("a killed process opens a link: %v", err)
		}
		if _, err := disk.For(p).Create("/d/a", 0o600); !errors.Is(err, ErrGone) {
			t.Errorf("a killed process writes: %v", err)
		}
		if _, err := conns.Dial(context.Background(), p, "10.0.0.1:7700"); !errors.Is(err, ErrGone) {
			t.Errorf("a killed process dials: %v", err)
		}
		e.End()
	})
}

// anyDisk accepts what happens to a disk.
type anyDisk struct{}

func (anyDisk) Renamed(_ *Process, _ string, _ []byte, _, mode fs.FileMode) fs.FileMode { return mode }
func (anyDisk) Opened(string, bool)                                                     {}

// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/libra-ina/libra/link/fault"
	"github.com/libra-ina/libra/wire"
)

// Faults configures the faults of a link made by [WithFaults]. Probabilities are in [0, 1); the
// zero value causes no faults.
type Faults struct {
	// Drop is the probability that a frame is lost.
	Drop float64
	// Duplicate is the probability that a second copy of a frame follows up
	// to Delay frames later.
	Duplicate float64
	// Reorder is the probability that up to Delay later frames overtake a
	// frame.
	Reorder float64
	// Late is the probability that a second copy of a frame follows LateDelay frames later, when
	// its receiver has forgotten the first.
	Late float64

	// Delay is the largest number of later frames that overtake one; 0 means 16.
	Delay int
	// LateDelay is the delay of very late copies in frames; 0 means 1500, more than a duplicate
	// filter remembers.
	LateDelay int
	// Seed seeds the random decisions.
	Seed uint64
}

// faultyLink loses, duplicates and reorders frames in both directions. It copies delayed frames and
// answers, and allocates nothing for other frames, so that benchmarks measure what faults cost an
// endpoint.
type faultyLink struct {
	Link // the wrapped link
	out  *fault.Line[outgoing]
	in   *fault.Line[incoming]

	paths map[wire.Endpoint]Path // paths for answers
	batch []Frame                // originals to send
	below []Packet               // received by the wrapped link
	ready []incoming             // received and due, but the caller's slice was full
	lost  uint64                 // copies for which the wrapped link had no buffer or room
	err   error
}

// outgoing is a frame to send: the original in the endpoint's buffer, or a copy of its payload.
type outgoing struct {
	frame Frame
	copy  []byte
}

// incoming is a received packet; a copy has its own memory.
type incoming struct{ p Packet }

// WithFaults adds faults to a link, in both directions, and owns the link from then on. The same
// configuration gives the same faults for the same frames: decisions depend on the seed and on the
// number of frames so far, never on a clock. A probability or delay out of range is an [ErrConfig].
func WithFaults(link Link, cfg Faults) (Link, error) {
	l := &faultyLink{Link: link, paths: map[wire.Endpoint]Path{}}
	var err error
	if l.out, err = fault.NewLine(fault.Config(cfg), 0, l.copyOut); err == nil {
		l.in, err = fault.NewLine(fault.Config(cfg), 1, l.copyIn)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return l, nil
}

// Unwrap returns the wrapped link.
func (l *faultyLink) Unwrap() Link { return l.Link }

func (l *faultyLink) copyOut(o outgoing) outgoing {
	if o.copy == nil {
		o.copy = append([]byte(nil), l.Payload(o.frame.Buf)[:o.frame.Len]...)
		if o.frame.Retx {
			wire.MarkRetx(o.copy)
		}
	}
	return o
}

func (l *faultyLink) copyIn(in incoming) incoming {
	// Room for an answer, as Link.Receive promises.
	mem := make([]byte, len(in.p.Payload), max(cap(in.p.Payload), l.Limits().MaxPayload))
	copy(mem, in.p.Payload)
	in.p.Payload = mem
	in.p.Arrived = 0 // it arrives later
	return in
}

// Send accepts all frames: those for which the wrapped link has no room are lost.
func (l *faultyLink) Send(frames []Frame) (int, error) {
	l.batch = l.batch[:0]
	for _, f := range frames {
		l.out.Pass(outgoing{frame: f}, l.deliverFrame)
	}
	n, err := l.Link.Send(l.batch)
	l.lost += uint64(len(l.batch) - n)
	if err = errors.Join(err, l.err); err != nil {
		return 0, err
	}
	return len(frames), nil
}

// deliverFrame sends one frame through the wrapped link; a copy at once, because its original may
// be in the same batch.
func (l *faultyLink) deliverFrame(o outgoing) {
	if o.copy == nil {
		l.batch = append(l.batch, o.frame)
		return
	}
	b, ok := l.Alloc()
	if !ok {
		l.lost++
		return
	}
	n := copy(l.Payload(b), o.copy)
	sent, err := l.Link.Send([]Frame{{Buf: b, Len: n, To: o.frame.To}})
	if err != nil {
		l.err = err
	}
	l.lost += uint64(1 - sent)
	l.Free(b)
}

func (l *faultyLink) Receive(pkts []Packet) (int, error) {
	n := 0
	put := func(in incoming) {
		if n < len(pkts) {
			pkts[n] = in.p
			n++
		} else {
			l.ready = append(l.ready, l.copyIn(in))
		}
	}
	ready := l.ready
	l.ready = nil
	for _, in := range ready {
		put(in)
	}
	l.below = slices.Grow(l.below[:0], len(pkts))[:len(pkts)]
	got, err := l.Link.Receive(l.below)
	if err != nil {
		return 0, err
	}
	for _, p := range l.below[:got] {
		l.in.Pass(incoming{p}, put)
	}
	return n, nil
}

// Reply sends answers with faults too, as copies, because the wrapped link no longer knows packets
// that were delayed.
func (l *faultyLink) Reply(pkts []Packet) error {
	if err := l.Link.Reply(nil); err != nil {
		return err // closed
	}
	for _, p := range pkts {
		if p.Reply == 0 {
			continue
		}
		to := l.paths[p.Src]
		if to == nil {
			var err error
			if to, err = l.Path(context.Background(), p.Src); err != nil {
				return err
			}
			l.paths[p.Src] = to
		}
		payload := append([]byte(nil), p.Payload[:p.Reply]...)
		l.out.Pass(outgoing{frame: Frame{Len: p.Reply, To: to}, copy: payload}, l.deliverFrame)
	}
	return l.err
}

func (l *faultyLink) Wait(limit time.Duration) error {
	if len(l.ready) > 0 {
		return nil
	}
	return l.Link.Wait(limit)
}

func (l *faultyLink) Close() error {
	l.ready = nil // so that Wait does not return for them
	return l.Link.Close()
}

func (l *faultyLink) Stats() Stats {
	s := l.Link.Stats()
	f := l.out.Stats()
	f.Add(l.in.Stats())
	s.Dropped, s.Duplicated, s.Reordered = f.Dropped+l.lost, f.Duplicated, f.Reordered
	return s
}

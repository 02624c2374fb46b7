// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// work is an entry on its way. It holds its session's memory.
type work struct {
	s       *session
	c       agentproto.Completion // as far as it is known
	charge  int64
	step    uint64
	refused *DroppedError // REDUCE: of the pushes before it
	batch   *prepared     // instead of keys

	keys   []uint64 // copies
	values []float32

	ticket *transport.Ticket // of a push
	done   <-chan error      // of a push with sums
	err    error             // of a push that did not get that far
}

// works keeps the copies of entries that are settled.
var works = sync.Pool{New: func() any { return new(work) }}

// keep bounds, in bytes, what the pool keeps of one entry.
const keep = 4 << 20

// answer completes the entry and gives back what it held.
func (w *work) answer() {
	s := w.s
	s.complete(&w.c)
	s.charge.Add(-w.charge)
	if s.held.Load() {
		s.job.poke()
	}
	if 8*cap(w.keys)+4*cap(w.values) <= keep {
		*w = work{keys: w.keys, values: w.values}
		works.Put(w)
	}
	s.release()
}

// refuse answers an entry that cannot be begun. A push keeps its place in the order.
func (w *work) refuse() {
	switch w.c.Op {
	case agentproto.Push, agentproto.PushSums:
		w.s.counters.pushes.Add(1)
		w.s.job.settle.put(w)
	default:
		w.answer()
	}
}

// run does what may take time, and answers. It ends early if the session does.
func (w *work) run(do func(ctx context.Context) error) {
	w.s.job.others.Go(func() {
		w.fail(do(w.s.ctx))
		w.answer()
	})
}

// badGradient is the answer to a push with a gradient that the job's arithmetic cannot take.
func (w *work) badGradient(at int, key uint64) {
	w.c.Status = agentproto.OutOfRange
	if (packer.Numbers{}).Check(w.values[at:at+1]) >= 0 {
		w.c.Status = agentproto.NotFinite
	}
	w.c.Detail, w.c.Key, w.c.KeyKnown = uint64(at), key, true
}

// fail puts an error into the completion.
func (w *work) fail(err error) {
	if err == nil {
		return
	}
	c := &w.c
	var (
		notFinite *packer.NotFiniteError
		outside   *packer.RangeError
		pushed    *transport.PushError
		peer      *transport.PeerError
		refusal   wire.Refusal
		silent    *retransmit.SilentPeerError
		code      agentproto.Code
	)
	if errors.As(err, &pushed) {
		c.Acknowledged, c.Refused, c.Unknown = uint32(pushed.Acked), uint32(pushed.Refused), uint32(pushed.Unknown+pushed.Unacked)
	}
	if errors.As(err, &peer) {
		c.Peer = agentproto.Server
		if peer.Role == "aggregator" {
			c.Peer = agentproto.Aggregator
		}
		c.Key, c.KeyKnown = peer.Key, peer.KeyKnown
	}
	switch {
	case errors.As(err, &code):
		c.Status = code
	case errors.As(err, &notFinite):
		c.Status, c.Detail, c.Key, c.KeyKnown = agentproto.NotFinite, uint64(notFinite.Index), notFinite.Key, true
	case errors.As(err, &outside):
		c.Status, c.Detail, c.Key, c.KeyKnown = agentproto.OutOfRange, uint64(outside.Index), outside.Key, true
	case errors.As(err, &refusal):
		c.Status, c.Refusal = agentproto.Refused, uint16(refusal.Code)
	case errors.Is(err, transport.ErrAnswer):
		c.Status = agentproto.BadAnswer
	case errors.Is(err, transport.ErrMode):
		c.Status = agentproto.BadMode
	case errors.Is(err, transport.ErrClosed), errors.As(err, &silent), errors.Is(err, context.Canceled):
		c.Status = agentproto.JobEnded
	default:
		w.s.job.log.Warn("an entry failed", "client", w.s.number, "operation", c.Op, "error", err)
		c.Status = agentproto.JobEnded
	}
}

// settler waits for the acknowledgements of pushes, in the order in which they were
// begun, so that a FLUSH is done when its turn comes.
type settler struct {
	mu     sync.Mutex
	more   sync.Cond
	queue  []*work
	closed bool
	done   chan struct{}
}

func (q *settler) start() {
	q.more.L = &q.mu
	q.done = make(chan struct{})
	go func() {
		defer close(q.done)
		var batch []*work
		for q.take(&batch) {
			for i, w := range batch {
				w.settle()
				batch[i] = nil
			}
		}
	}()
}

func (q *settler) put(w *work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, w)
	q.more.Signal()
}

// take exchanges the settled batch for what has come meanwhile. It waits for something, and
// reports whether there was anything before the end.
func (q *settler) take(batch *[]*work) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.queue) == 0 && !q.closed {
		q.more.Wait()
	}
	*batch, q.queue = q.queue, (*batch)[:0]
	return len(*batch) > 0
}

// close waits until everything is settled.
func (q *settler) close() {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	q.mu.Unlock()
	<-q.done
}

// settle waits for an entry whose turn has come, and answers it.
func (w *work) settle() {
	s := w.s
	switch w.c.Op {
	case agentproto.Flush:
		first := s.failed
		s.failed = agentproto.Completion{}
		first.Tag, first.Op, first.Ticket = w.c.Tag, w.c.Op, w.c.Ticket
		w.c = first
	case agentproto.Reduce:
		w.refused = s.refusedBefore()
		s.job.barrier.arrive(w)
		return
	case agentproto.Barrier:
		s.job.barrier.arrive(w)
		return
	default:
		switch {
		case w.ticket != nil:
			w.err = w.ticket.Wait(context.Background())
		case w.done != nil:
			w.err = <-w.done
		}
		w.fail(w.err)
		if w.c.Status == agentproto.OK {
			s.counters.acknowledged.Add(1)
			break
		}
		s.counters.failed.Add(1)
		if s.failed.Status == agentproto.OK {
			s.failed = w.c
		}
	}
	w.answer()
}

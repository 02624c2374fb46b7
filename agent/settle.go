// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// work is an entry in flight. It holds its session's memory.
type work struct {
	s       *session
	c       agentproto.Completion // so far
	charge  int64
	step    uint64
	ends    bool          // BARRIER, REDUCE: it counts in its session's ending
	refused *DroppedError // REDUCE: of the pushes before it
	batch   *prepared     // instead of keys

	sumKeys []uint64 // REDUCE, HARVEST: in the client's memory, for the first rows
	sumRows []float32

	keys   []uint64 // copies
	values []float32

	request transport.Request
	next    *work // of the session, in answer order
	queued  bool  // it is answered in order
	settled bool  // it can be answered in its turn
	err     error // of the worker
}

// works recycles settled entries with their buffers.
var works = sync.Pool{New: func() any { return new(work) }}

// maxPooledBytes bounds the bytes of buffers that the pool keeps per entry.
const maxPooledBytes = 4 << 20

// queueInOrder appends an entry to its client's queue: entries in it are answered in order.
func (w *work) queueInOrder() {
	s := w.s
	if s.first == nil {
		s.first = w
	} else {
		s.last.next = w
	}
	s.last, w.queued = w, true
	s.job.pending++
}

// submitRequest passes the entry to the job's worker.
func (w *work) submitRequest() {
	if !w.queued {
		w.s.job.pending++
	}
	w.request.Owner = w
	w.s.job.cfg.Worker.Hand(&w.request)
}

// Settled makes the entry be answered in its turn.
func (w *work) Settled(err error) {
	s := w.s
	w.settled, w.err = true, err
	switch {
	case !w.queued:
		s.job.loose = append(s.job.loose, w)
	case s.first == w: // it stays the first until it is answered
		s.job.settled = append(s.job.settled, s)
	}
}

// answerInOrder answers the oldest settled entries in order.
func (s *session) answerInOrder() {
	s.retainMemory()
	defer s.releaseMemory()
	for w := s.first; w != nil && w.settled; w = s.first {
		s.first = w.next
		s.job.pending--
		w.settleInTurn()
	}
	s.publishCompletions()
}

// completeEntry completes the entry and releases its resources. publishCompletions makes it visible
// to the client.
func (w *work) completeEntry() {
	s := w.s
	s.putCompletion(&w.c)
	s.charge.Add(-w.charge)
	if w.ends && w.c.Status != agentproto.JobEnded {
		s.ending.Add(-1) // pushes that follow are of the next step; after the job's end nothing begins
	}
	if 8*cap(w.keys)+4*cap(w.values) <= maxPooledBytes {
		*w = work{keys: w.keys, values: w.values}
		works.Put(w)
	}
	s.releaseMemory()
}

// answerEntry completes a single entry. Any goroutine may call it.
func (w *work) answerEntry() {
	s := w.s
	s.retainMemory()
	defer s.releaseMemory()
	w.completeEntry()
	s.publishCompletions()
	if s.held.Load() {
		s.job.cfg.Worker.Poke()
	}
}

// refuseEntry answers an entry that cannot begin. A push is still answered in order.
func (w *work) refuseEntry() {
	if isPush(w.c.Op) {
		w.s.counters.pushes.Add(1)
		w.queueInOrder()
	}
	w.Settled(nil)
}

// runSlow executes a slow operation in a goroutine, and answers. ctx ends with the session.
func (w *work) runSlow(do func(ctx context.Context) error) {
	w.s.mem.SQHead.Store(w.s.head) // before the answer: to a client, a completed entry is a read one
	w.s.job.yield = true
	w.s.job.goroutines.Go(func() {
		w.s.job.awaitTurn("answers entry %d of client %d", w.c.Ticket, w.s.number)
		w.setError(do(w.s.ctx))
		w.answerEntry()
	})
}

// badGradient sets the status of a push with a gradient that the job's arithmetic refuses.
func (w *work) badGradient(at int, key uint64) {
	w.c.Status = agentproto.OutOfRange
	if (packer.Numbers{}).Check(w.values[at:at+1]) >= 0 {
		w.c.Status = agentproto.NotFinite
	}
	w.c.Detail, w.c.Key, w.c.KeyKnown = uint64(at), key, true
}

// setError records an error in the completion.
func (w *work) setError(err error) {
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
		noServer  interface{ ColdKey() (uint64, bool) }
		code      agentproto.Code
	)
	if errors.As(err, &pushed) {
		c.Acknowledged, c.Refused = uint32(pushed.Acked), uint32(pushed.Refused)
		c.Unknown = uint32(pushed.Unknown + pushed.Unacked)
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
	case errors.As(err, &noServer):
		c.Status = agentproto.NoServer
		c.Key, c.KeyKnown = noServer.ColdKey()
	case errors.Is(err, wire.Refusal{Code: wire.CodeNoWeights}):
		c.Status = agentproto.NoWeights
	case errors.As(err, &refusal) && w.s.job.cfg.NoServer && isOfEnd(refusal.Code):
		c.Status = agentproto.JobEnded // the control service says so later
	case errors.As(err, &refusal):
		c.Status, c.Refusal = agentproto.Refused, uint16(refusal.Code)
	case errors.Is(err, transport.ErrAnswer):
		c.Status = agentproto.BadAnswer
	case errors.Is(err, transport.ErrMode):
		c.Status = agentproto.BadMode
	case errors.Is(err, transport.ErrClosed), errors.As(err, &silent), errors.Is(err, context.Canceled):
		errors.As(w.s.job.endReason(err), &c.Status)
	default:
		w.s.job.log.Warn("an entry failed", "client", w.s.number, "operation", c.Op, "error", err)
		c.Status = agentproto.JobEnded
	}
}

// isOfEnd reports whether an aggregator refuses frames by a code because their job, which has no
// parameter server, has ended.
func isOfEnd(code wire.Code) bool {
	return code == wire.CodeUnknownJob || code == wire.CodeUnknownSender || code == wire.CodeWrongEpoch
}

// settleInTurn ends an entry in its turn.
func (w *work) settleInTurn() {
	s := w.s
	switch w.c.Op {
	case agentproto.Flush:
		first := s.failed
		s.failed = agentproto.Completion{}
		first.Tag, first.Op, first.Ticket = w.c.Tag, w.c.Op, w.c.Ticket
		w.c = first
	case agentproto.Reduce:
		s.job.barrier.partyArrived(w)
		return
	case agentproto.Barrier:
		if w.c.Status == agentproto.OK {
			s.job.barrier.partyArrived(w)
			return
		}
	default:
		w.setError(w.err)
		if w.c.Status == agentproto.OK {
			s.counters.acknowledged.Add(1)
			break
		}
		s.counters.failed.Add(1)
		if s.failedBy == nil {
			s.failedBy = map[Code]uint64{}
		}
		s.failedBy[Code(w.c.Status)]++
		if s.failed.Status == agentproto.OK {
			s.failed = w.c
		}
	}
	w.completeEntry()
}

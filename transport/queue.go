// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"slices"

	"github.com/libra-ina/libra/packer"
)

const (
	// queueCap bounds the batches in a worker's queue.
	queueCap = 256

	// groupPairs is the most gradients that are packed together, and the most that
	// wait before the worker takes them unasked: about twenty frames, which
	// share the cost of a system call and a thread switch.
	groupPairs = 4096

	// groupMember is the largest batch, in gradients, that shares frames with others. Larger
	// ones fill frames by themselves and are not worth another copy.
	groupMember = groupPairs / 4

	// sumPairs is the most gradients that are added up. With more, the network would idle meanwhile.
	sumPairs = 1 << 16

	// sumMembers and sumLeast are the fewest batches and gradients that are added up: fewer share too
	// few keys to pay for the additions (docs/notebook/2026-11-23-sums-on-the-host.md).
	sumMembers = 8
	sumLeast   = 2048
)

// queued is a push of PushLater.
type queued struct {
	operation
	ticket Ticket
}

// PushLater is [Worker.Push] for batches smaller than a frame: it queues the batch,
// and queued batches share frames. It returns at once unless the queue is full. The
// slices must not be changed until the ticket is done.
//
// The worker takes the queue when a caller waits for the ticket of a batch in it
// ([Ticket.Wait], [Ticket.Done]) or for [Worker.Flush], or when it holds more than
// 4096 gradients. Until then a batch may stay in the queue. Keep several
// tickets, and wait for the oldest.
//
// Batches that share a frame share its result: if the frame is refused, all their
// tickets fail with the same [*PushError]. A batch that the packer refuses, for a
// NaN for example, fails alone.
func (w *Worker) PushLater(ctx context.Context, keys []uint64, grads []float32) (*Ticket, error) {
	return w.pushLater(ctx, &queued{operation: operation{keys: keys, values: grads}})
}

func (w *Worker) pushLater(ctx context.Context, q *queued) (*Ticket, error) {
	size := int64(len(q.values)) + 1
	q.queued = true
	q.ticket.done = make(chan struct{})
	q.ticket.worker = w
	q.operation.ticket = &q.ticket
	w.drawPush(&q.operation)
	select {
	case <-w.Done():
		return nil, w.Err()
	default:
	}
	waiting := w.waiting.Add(size)
	select {
	case w.arrivals <- &q.operation:
	default:
		w.hurryQueue()
		select {
		case w.arrivals <- &q.operation:
		case <-w.Done():
			return nil, w.Err()
		case <-ctx.Done():
			w.waiting.Add(-size)
			return nil, context.Cause(ctx)
		}
	}
	if waiting > groupPairs {
		w.hurryQueue()
	}
	select {
	case <-w.Done(): // perhaps after failQueued
		w.failQueued()
	default:
	}
	return &q.ticket, nil
}

// hurryQueue makes the worker take the queue.
func (w *Worker) hurryQueue() {
	if w.waiting.Load() > 0 && !w.urgent.Swap(true) {
		w.link.Wake()
	}
}

// failQueued fails the queue of a worker that has ended.
func (w *Worker) failQueued() {
	for {
		select {
		case o := <-w.arrivals:
			o.recordFailure(w.Err())
			o.notifyCaller()
		default:
			return
		}
	}
}

// takeQueue accepts the queued batches if that is due, and reports whether there
// were any.
func (w *Worker) takeQueue() (any bool) {
	if !w.urgent.Load() {
		return false
	}
	// Clear first: a later producer must set it again.
	w.urgent.Store(false)
	for {
		select {
		case o := <-w.arrivals:
			w.waiting.Add(-int64(len(o.values)) - 1)
			w.pushes = append(w.pushes, o)
			any = true
		default:
			return any
		}
	}
}

// groupPushes merges the next pushes into one operation with them as members, if there are
// several small ones from the queue, all prepared or none. A feed's pushes are added up
// instead, if there are enough.
func (w *Worker) groupPushes() {
	if n := w.addablePushes(); n > 0 {
		w.pushes = slices.Replace(w.pushes, 0, n, &operation{members: slices.Clone(w.pushes[:n]), added: true,
			times: pushTimes{drawn: anyDrawn(w.pushes[:n])}})
		return
	}
	n, pairs := 0, 0
	for _, o := range w.pushes {
		if !w.mayGroup(o) || len(o.values) > groupMember || pairs+len(o.values) > groupPairs ||
			(o.prepared == nil) != (w.pushes[0].prepared == nil) {
			break
		}
		pairs += len(o.values)
		n++
	}
	if n < 2 {
		return
	}
	g := &operation{members: slices.Clone(w.pushes[:n]), times: pushTimes{drawn: anyDrawn(w.pushes[:n])}}
	w.groupKeys, w.groupGrads, w.groupPrepared = w.groupKeys[:0], w.groupGrads[:0], w.groupPrepared[:0]
	for _, o := range g.members {
		if o.prepared == nil {
			w.groupKeys = append(w.groupKeys, o.keys...)
		} else {
			w.groupPrepared = append(w.groupPrepared, o.prepared)
		}
		w.groupGrads = append(w.groupGrads, o.values...)
	}
	g.keys, g.values = w.groupKeys, w.groupGrads
	w.pushes = slices.Replace(w.pushes, 0, n, g)
}

// addablePushes returns how many of the next pushes are added up: pushes of a feed, from more than
// one client, in a job whose sums do not depend on their order.
func (w *Worker) addablePushes() (n int) {
	if !w.adds {
		return 0
	}
	pairs, several := 0, false
	for _, o := range w.pushes {
		if o.owner == nil || !w.mayGroup(o) || pairs+len(o.values) > sumPairs {
			break
		}
		pairs += len(o.values)
		several = several || o.owner.From != w.pushes[0].owner.From
		n++
	}
	if n < sumMembers || pairs < sumLeast || !several {
		return 0
	}
	return n
}

// beginSum passes a group to the packer as one push of the sums of its hot rows.
func (w *Worker) beginSum(g *operation) error {
	w.groupParts = w.groupParts[:0]
	for _, o := range g.members {
		w.groupParts = append(w.groupParts, packer.Part{Keys: o.keys, Prepared: o.prepared, Grads: o.values})
	}
	added, err := w.packer.BeginSum(w.exp, w.groupParts)
	clear(w.groupParts)
	w.stats.PairsAdded += uint64(added)
	w.stats.PairsPushed += uint64(added)
	return err
}

// mayGroup reports whether a push may be merged with others.
func (w *Worker) mayGroup(o *operation) bool {
	return o.queued && !o.alone && len(o.values) == len(o.keys)*w.cfg.Dim
}

// dissolveGroup puts the members of a group, the next push, back to be pushed separately.
func (w *Worker) dissolveGroup(g *operation) {
	for _, o := range g.members {
		o.alone = true
	}
	w.pushes = slices.Replace(w.pushes, 0, 1, g.members...)
}

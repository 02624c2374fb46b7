// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/libra-ina/libra/link"
)

// Feed is a source of pushes and pulls that runs in the worker's goroutine: what it hands over passes no
// queue, and it learns of ends without a channel. For programs that serve others, such
// as package agent. Its methods are called by the worker's goroutine only. They must not wait, nor
// call methods of the worker but [Worker.Hand], [Worker.EndStep] and [Worker.LeaveStep].
type Feed interface {
	// Turn is called in each turn of the worker's loop, after it has taken answers in and before it
	// fills frames. It reports whether there was anything to do.
	Turn() (any bool)
	// Sleep is called before the worker sleeps, if Turn had nothing to do. The worker does not sleep if it
	// returns false.
	Sleep() bool
	// Awake is called after each sleep.
	Awake()
	// End is called when the worker has ended, after all requests were settled, with the reason.
	End(err error)
}

// feedPause is how long a worker sleeps on a link that cannot wait for the feed's descriptor.
const feedPause = time.Millisecond

// Request is a push or a pull of a [Feed]. Its fields and the slices in it belong to the worker from [Worker.Hand]
// until Settled is called.
type Request struct {
	Pull     bool
	Keys     []uint64
	Prepared *Prepared // of a push: instead of Keys
	// Values are len(Keys) × Dim gradients of a push, or the destination of a pull.
	Values []float32
	// Sums, if not nil, is what [Worker.PushSum] calls so; it needs Keys.
	Sums []float32
	// From tells apart those for whom a feed pushes: what one of them has pushed is not added up with nothing but its own.
	From uint32
	// Owner learns that the request is settled.
	Owner interface {
		// Settled is called once, by the worker's goroutine: between two calls of Turn, or before End.
		// The error is that of a [Ticket]. The request may be handed over again from the next Turn on.
		Settled(err error)
	}

	operation operation
}

// Attach has a feed run in the worker's goroutine; nil ends that. If fd is not negative the worker sleeps
// only while it is not readable, which [Feed.Awake] may change. A worker has at most one feed: another one
// is an [ErrConfig]. If Attach returns an error, of this kind, ctx's or why the worker has ended, the feed's methods
// will not be called.
func (w *Worker) Attach(ctx context.Context, f Feed, fd int) error {
	var second bool
	err := w.Do(ctx, func() {
		if second = f != nil && w.feed != nil; second {
			return
		}
		w.feed = f
		if f == nil {
			fd = -1
		}
		w.watched = link.Watch(w.link, fd) || fd < 0
	})
	if second {
		err = fmt.Errorf("%w: the worker has a feed already", ErrConfig)
	}
	return err
}

// Poke has the worker call [Feed.Turn], if it sleeps. It may be called from any goroutine.
func (w *Worker) Poke() { w.link.Wake() }

// Hand takes a request of the feed, like [Worker.PushLater], [Worker.PushSum] and [Worker.Pull]. Small pushes
// that are handed over in one call of Turn share frames, prepared ones and others apart.
//
// In a job in combine mode with exact arithmetic, the hot gradients of pushes that wait at the same time, for a window that is
// full or because they came together, are added up, and their sums are sent ([packer.Packer.BeginSum]); no push waits
// in order to be added. Such pushes share their fate as those do that share frames.
func (w *Worker) Hand(r *Request) {
	o := &r.operation
	*o = operation{pull: r.Pull, keys: r.Keys, values: r.Values, sums: r.Sums, owner: r}
	switch {
	case r.Pull:
		w.accept(o)
		return
	case r.Prepared != nil:
		o.keys, o.prepared = r.Prepared.keys, r.Prepared.places
	}
	o.queued, o.alone, o.open = true, r.Sums != nil, r.Sums != nil
	w.pushes = append(w.pushes, o)
}

// HotFrames returns, in numbers that run freely, that of the next frame for the aggregator and that of the first one which
// is not answered; zeros without a hot set. Only the worker's goroutine may call it, as in a call of a [Feed].
func (w *Worker) HotFrames() (next, unanswered uint32) {
	f := w.flows[flowHot]
	if f == nil {
		return 0, 0
	}
	return f.window.NextSeq(), f.window.Base()
}

// fed reports whether an operation, or the first of a group, is a feed's: no other goroutine waits for it.
func (o *operation) fed() bool {
	return o.owner != nil || len(o.members) > 0 && o.members[0].owner != nil
}

// sleep waits for the link, if the feed has nothing to do. It may return at once.
func (w *Worker) sleep() error {
	if w.feed == nil {
		limit := w.patience()
		if limit >= 0 && w.look() { // something is to come
			return nil
		}
		return w.link.Wait(limit)
	}
	if !w.feed.Sleep() {
		return nil
	}
	limit := w.patience()
	if !w.watched && (limit < 0 || limit > feedPause) {
		limit = feedPause
	}
	err := w.link.Wait(limit)
	w.feed.Awake()
	return err
}

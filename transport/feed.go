// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/libra-ina/libra/link"
)

// Feed is a source of pushes and pulls that runs in the worker's goroutine, without
// a queue for requests or a channel for completions. It is meant for programs that
// serve others, such as package agent. Only the worker's goroutine calls its methods.
// They must not block, nor call methods of the worker other than [Worker.Hand] and
// [Worker.EndStep].
type Feed interface {
	// Turn is called in each turn of the worker's loop, after received answers are
	// processed and before frames are filled. It reports whether there was work.
	Turn() (any bool)
	// Sleep is called before the worker sleeps, if Turn had no work. If it returns
	// false, the worker does not sleep.
	Sleep() bool
	// Awake is called after each sleep.
	Awake()
	// End is called with the reason when the worker has ended and all requests are settled.
	End(err error)
}

// feedPause is how long a worker sleeps on a link that cannot watch the feed's descriptor.
const feedPause = time.Millisecond

// Request is a push or a pull of a [Feed]. The request and its slices belong to the worker
// from [Worker.Hand] until Settled is called.
type Request struct {
	Pull     bool
	Keys     []uint64
	Prepared *Prepared // of a push: instead of Keys
	// Values holds len(Keys) × Dim gradients of a push, or receives the values of a pull.
	Values []float32
	// Sums, if not nil, receives the sums as in [Worker.PushSum]; it needs Keys.
	Sums []float32
	// From identifies the client of a push: pushes are only added up across different clients.
	From uint32
	// Owner is notified when the request is settled.
	Owner interface {
		// Settled is called once, by the worker's goroutine, between two calls of Turn or before End.
		// The error is that of a [Ticket]. The request may be reused from the next Turn.
		Settled(err error)
	}

	operation operation
}

// Attach runs a feed in the worker's goroutine; nil detaches it. If fd is not negative, the
// worker wakes when it is readable, and [Feed.Awake] may drain it. A worker has at most one
// feed: a second one is an [ErrConfig]. If Attach fails, because of this, of ctx or because the
// worker has ended, the feed's methods are not called.
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

// Poke makes a sleeping worker call [Feed.Turn]. It may be called from any goroutine.
func (w *Worker) Poke() { w.link.Wake() }

// Hand accepts a request of the feed, like [Worker.PushLater], [Worker.PushSum] and [Worker.Pull].
// Small pushes handed over in one call of Turn share frames; prepared and other pushes do not mix.
//
// In a job in combine mode with exact arithmetic, the hot gradients of pushes that wait at the same
// time are added up and their sums are sent ([packer.Packer.BeginSum]). Pushes wait because the
// window is full or because they arrived together, never in order to be added. Such pushes share
// one result, as pushes that share frames do.
func (w *Worker) Hand(r *Request) {
	o := &r.operation
	*o = operation{pull: r.Pull, keys: r.Keys, values: r.Values, sums: r.Sums, owner: r}
	switch {
	case r.Pull:
		w.acceptOperation(o)
		return
	case r.Prepared != nil:
		o.keys, o.prepared = r.Prepared.keys, r.Prepared.places
	}
	w.drawPush(o)
	o.queued, o.alone, o.open = true, r.Sums != nil, r.Sums != nil
	w.pushes = append(w.pushes, o)
}

// HotFrames returns the free-running sequence numbers of the next frame for the aggregator and of
// the first unanswered one; zeros without a hot set. With several shares these are the sums over
// all: since none decreases, sums are equal only if each is. Shares that the worker has left
// ([Worker.Divide]) are counted, too. Only the worker's goroutine may call it, as in a call of a
// [Feed].
func (w *Worker) HotFrames() (next, unanswered uint32) {
	next, unanswered = w.endedHot, w.endedHot
	for f := range w.hotFlows {
		next += f.window.NextSeq()
		unanswered += f.window.Base()
	}
	return next, unanswered
}

// ofFeed reports whether an operation, the first of a group, or the push of which it sends a part
// again, is a feed's, so that no goroutine waits for it.
func (o *operation) ofFeed() bool {
	return o.owner != nil || len(o.members) > 0 && o.members[0].owner != nil || o.parent != nil && o.parent.ofFeed()
}

// sleep waits for the link, if the feed has nothing to do. It may return at once.
func (w *Worker) sleep() error {
	if w.feed == nil {
		limit := w.patience()
		if limit >= 0 && w.loop.LookAgain() { // work is expected
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

package transport

import (
	"context"
	"sync/atomic"

	"github.com/libra-ina/libra/packer"
)

// Ticket stands for a push that has been handed over and waits for its
// acknowledgements.
type Ticket struct {
	done   chan struct{}
	err    error   // written before done is closed
	worker *Worker // that has the push in its queue, or nil
}

// Done is closed when the push is acknowledged or has failed.
func (t *Ticket) Done() <-chan struct{} {
	t.hurry()
	return t.done
}

// hurry gets the push out of the worker's queue.
func (t *Ticket) hurry() {
	if t.worker != nil {
		t.worker.hurry()
	}
}

// Wait returns nil when every frame of the push is acknowledged, or a
// [*PushError]. If ctx ends first, its error is returned and the push goes on.
func (t *Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	t.hurry()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// operation is a push or a pull on its way through the worker's goroutine.
type operation struct {
	pull   bool
	keys   []uint64
	values []float32 // gradients of a push, destination of a pull
	sums   []float32 // PushSum's destination

	queued  bool         // came through Queue
	alone   bool         // must not share frames
	members []*operation // of a group: pushes that share its frames

	// released is closed when the goroutine has stopped using the caller's
	// slices; err then says whether the call has failed. Queue does not wait for it.
	released chan struct{}
	err      error
	ticket   *Ticket // of a push

	cancelled atomic.Bool // the caller no longer waits, because of cause
	cause     error

	// What follows belongs to the goroutine.
	id          uint32 // place in the table of operations
	open        bool   // released is not closed
	asked       int    // pull: keys that are in frames already
	sent        packer.Sent
	complete    bool // everything is in frames
	sealed      bool // nothing more will be put into frames
	outstanding int
	acked       int
	refused     int
	unknown     int   // refused, but perhaps applied
	failure     error // the first refusal or other reason to fail
	plain       bool  // nothing was sent: failure is all there is to say
}

// fail notes a reason for failure; the first one counts.
func (o *operation) fail(err error) {
	if o.failure == nil {
		o.failure = err
	}
}

// result is what the caller gets to know.
func (o *operation) result() error {
	if o.failure == nil || o.pull || o.plain {
		return o.failure
	}
	return &PushError{
		Sent: o.sent, Acked: o.acked, Refused: o.refused, Unknown: o.unknown, Unacked: o.outstanding,
		Complete: o.complete, Err: o.failure,
	}
}

// release lets the caller go.
func (o *operation) release() {
	if o.open {
		o.open = false
		o.err = o.result()
		if o.released != nil {
			close(o.released)
		}
	}
}

// refuse lets the caller go with the plain reason for which nothing was sent.
func (o *operation) refuse() {
	o.err, o.open, o.plain = o.failure, false, true
	if o.released != nil {
		close(o.released)
	}
}

// finish settles the ticket.
func (o *operation) finish() {
	o.release()
	for _, m := range o.members {
		m.failure, m.sent, m.complete = o.failure, o.sent, o.complete
		m.acked, m.refused, m.unknown, m.outstanding = o.acked, o.refused, o.unknown, o.outstanding
		m.finish()
	}
	if o.ticket != nil {
		o.ticket.err = o.result()
		close(o.ticket.done)
	}
}

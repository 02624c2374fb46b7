// SPDX-License-Identifier: Apache-2.0

package transport

import "context"

// Ticket stands for a push that waits for its acknowledgements.
type Ticket struct {
	done   chan struct{}
	err    error   // written before done is closed
	worker *Worker // whose queue holds the push, or nil
}

// Done is closed when the push is acknowledged or has failed.
func (t *Ticket) Done() <-chan struct{} {
	t.hurryPush()
	return t.done
}

// hurryPush makes the worker take the push out of its queue.
func (t *Ticket) hurryPush() {
	if t.worker != nil {
		t.worker.hurryQueue()
	}
}

// Wait returns nil when every frame of the push is acknowledged, or a
// [*PushError]. If ctx ends first, Wait returns its error and the push continues.
func (t *Ticket) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	t.hurryPush()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

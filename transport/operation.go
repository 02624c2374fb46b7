// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"
	"sync/atomic"

	"github.com/libra-ina/libra/packer"
)

// operation is a push or a pull in the worker's goroutine.
type operation struct {
	pull   bool
	keys   []uint64
	values []float32 // gradients of a push, destination of a pull
	sums   []float32 // PushSum's destination

	prepared *packer.Prepared   // of a push: keys resolved by the packer, or nil
	rows     *packer.ColdRows   // of a prepared push, at its start
	numbers  *packer.RowNumbers // of these at the start, or nil
	find     *finding           // of a pull: it asks for row numbers
	step     *stepOnWay         // it asks for the sums of a step
	parent   *operation         // of a push: the push whose frame this one sends again

	queued  bool         // came through PushLater
	alone   bool         // must not share frames
	cold    bool         // of a push: hot rows go to the server, too
	begun   bool         // of a push: handed to the packer
	members []*operation // of a group: pushes that share its frames
	added   bool         // of a group: the hot gradients of its members are added up

	// released is closed when the goroutine no longer uses the caller's
	// slices; err is then the call's error. PushLater does not wait for it.
	released chan struct{}
	err      error
	ticket   *Ticket  // of a push
	owner    *Request // of a feed

	cancelled atomic.Bool // the caller no longer waits, because of cause
	cause     error

	times   pushTimes // of a push, or a group of them
	counted bool      // it is under way; see ownTime

	// The fields below belong to the goroutine.
	id   uint32 // place in the table of operations
	open bool   // released is not closed
	// Of a pull from several servers: order holds the positions of its keys in the order of
	// requests, or is nil for the caller's order; ends holds the end of each server's keys in it.
	order []uint32
	ends  []int
	asked int // pull: keys already requested

	sent        packer.Sent
	complete    bool // everything is in frames
	sealed      bool // nothing more will be put into frames
	outstanding int
	acked       int
	refused     int
	unknown     int   // refused, but perhaps applied
	failure     error // the first refusal or other reason to fail
	plain       bool  // nothing was sent: the result is failure alone
}

// serverOf returns the server of the key at a position in the order of a pull.
func (o *operation) serverOf(asked int) (server int) {
	for server < len(o.ends) && o.ends[server] <= asked {
		server++
	}
	return server
}

// serverEnd returns where the keys of a server end in the order of a pull.
func (o *operation) serverEnd(server int) int {
	if o.ends == nil {
		return len(o.keys)
	}
	return o.ends[server]
}

// keyPosition returns the index in the caller's slices of the key at a place in the order of a
// pull.
func (o *operation) keyPosition(place int) int {
	if o.order == nil {
		return place
	}
	return int(o.order[place])
}

// recordFailure records a failure; the first one counts.
func (o *operation) recordFailure(err error) {
	if o.failure == nil {
		o.failure = err
	}
}

// callerError is the error for the caller.
func (o *operation) callerError() error {
	if o.failure == nil || o.pull || o.plain {
		return o.failure
	}
	return &PushError{
		Sent: o.sent, Acked: o.acked, Refused: o.refused, Unknown: o.unknown, Unacked: o.outstanding,
		Complete: o.complete, Err: o.failure,
	}
}

func (o *operation) releaseSlices() {
	if o.open {
		o.open = false
		o.err = o.callerError()
		if o.released != nil {
			close(o.released)
		}
	}
}

// refuseWhole unblocks the caller of an operation of which nothing was sent.
func (o *operation) refuseWhole() {
	o.err, o.open, o.plain = o.failure, false, true
	if o.released != nil {
		close(o.released)
	}
}

// notifyCaller completes the operation and its members.
func (o *operation) notifyCaller() {
	o.releaseSlices()
	for _, m := range o.members {
		m.failure, m.sent, m.complete = o.failure, o.sent, o.complete
		m.acked, m.refused, m.unknown, m.outstanding = o.acked, o.refused, o.unknown, o.outstanding
		m.notifyCaller()
	}
	if o.ticket != nil {
		o.ticket.err = o.callerError()
		close(o.ticket.done)
	}
	if o.owner != nil {
		o.owner.Owner.Settled(o.callerError())
	}
}

func (w *Worker) acceptOperation(o *operation) {
	o.open = true
	w.registerOperation(o)
	if o.pull {
		if servers := w.servers; servers > 1 && o.find == nil {
			o.order, o.ends = packer.Split(servers).Order(w.cfg.HotSet, o.keys, o.order, o.ends)
		}
		w.pulls = append(w.pulls, o)
	} else {
		w.pushes = append(w.pushes, o)
	}
}

func (w *Worker) registerOperation(o *operation) {
	i := slices.Index(w.ops, nil)
	if i < 0 {
		i = len(w.ops)
		w.ops = append(w.ops, nil)
	}
	o.id, w.ops[i] = uint32(i), o
	w.own.beginOperation(o, w.now)
}

// sweepCancelled fails the operations whose callers have given up.
func (w *Worker) sweepCancelled() {
	for _, o := range w.ops {
		if o != nil && o.cancelled.Load() && o.open {
			o.recordFailure(o.cause)
			w.abandonOperation(o)
			w.settleOperation(o)
		}
	}
}

// abandonOperation stops putting a failed operation into frames and unblocks its caller.
func (w *Worker) abandonOperation(o *operation) {
	if !o.sealed {
		o.sealed = true
		if i := slices.Index(w.pushes, o); i >= 0 {
			if i == 0 && o.begun {
				w.hotRows = looseRows{} // of this push
			}
			w.passOver(i)
			w.pushes = slices.Delete(w.pushes, i, i+1)
		}
		w.pulls = slices.DeleteFunc(w.pulls, func(other *operation) bool { return other == o })
	}
	o.releaseSlices()
}

// settleOperation ends an operation whose frames are all answered.
func (w *Worker) settleOperation(o *operation) {
	if !o.sealed || o.outstanding > 0 {
		return
	}
	if o.sums != nil && o.failure == nil {
		w.copySums(o)
	}
	w.recordPush(o)
	w.own.endOperation(o, w.now)
	w.ops[o.id] = nil
	w.settled = w.settled || !o.ofFeed()
	o.notifyCaller()
	w.followUp(o)
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"fmt"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer/share"
)

// How a worker divides its hot set otherwise while it pushes. Between two pushes the packer and the
// flows of the shares are exchanged at once; flows that no share needs any more stay until all
// their frames are answered. So no push waits, and no frame is sent anew.

// division is such a change.
type division struct {
	shares  *share.Division
	flows   []*flow // by share
	begun   bool
	leaving []*flow       // with unanswered frames
	over    chan struct{} // closed when there are none
}

// Divide makes the worker divide its hot set otherwise, from the next push on that is not in frames
// yet: jobs are those of all shares, by their index, At included. A job to which it is admitted in
// that epoch keeps its flow. Divide returns when all frames for the others are answered, so that
// the worker may leave these. If ctx ends before, the worker goes on nevertheless; one change has
// to be over before the next. A change that cannot be made, with [ErrConfig] or [ErrMode], changes
// nothing. The worker must have been made with shares.
func (w *Worker) Divide(ctx context.Context, shares *share.Division, jobs []Share) error {
	if shares == nil || w.cfg.Shares == nil || w.cfg.Mode != aggregator.Combine {
		return fmt.Errorf("%w: Divide of a worker without shares", ErrConfig)
	}
	if err := checkJobs(shares, jobs); err != nil {
		return err
	}
	if !shares.Divides(w.cfg.HotSet.Fingerprint()) {
		return fmt.Errorf("%w: the shares are of another hot set", ErrConfig)
	}
	d := &division{shares: shares, over: make(chan struct{})}
	for i, s := range jobs {
		f, err := w.newHotFlow(ctx, i, s.Job, Peer{s.At, s.Epoch}, shares)
		if err != nil {
			return err
		}
		d.flows = append(d.flows, f)
	}
	var refused error
	if err := w.Do(ctx, func() { refused = w.prepareDivision(d) }); err != nil || refused != nil {
		return cmp.Or(refused, err)
	}
	select {
	case <-d.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.Done():
		return w.Err()
	}
}

// prepareDivision finds the flows that stay, and makes the others known.
func (w *Worker) prepareDivision(d *division) error {
	if w.dividing != nil {
		return fmt.Errorf("%w: Divide before an earlier one is over", ErrMode)
	}
	count := 0
	for range w.hotFlows {
		count++
	}
	for i, f := range d.flows {
		for _, other := range w.serverFlows() {
			if other.isAt(f) {
				return fmt.Errorf("%w: %s and aggregator have the same address %v", ErrConfig, other.role, f.to)
			}
		}
		count++
		for other := range w.hotFlows {
			switch {
			case !other.isAt(f) || other.job != f.job:
			case other.epoch != f.epoch || other.shares.Fingerprint(other.share) != d.shares.Fingerprint(i):
				return fmt.Errorf("%w: job %d at %v has another share already", ErrConfig, f.job, f.to)
			default:
				d.flows[i] = other
				count--
			}
		}
	}
	if count > share.Max {
		return fmt.Errorf("%w: %d flows to shares during the change, possible are %d", ErrConfig, count, share.Max)
	}
	w.dividing = d
	return nil
}

// divide carries a change on, and reports whether it did anything.
func (w *Worker) divide() (any bool) {
	d := w.dividing
	if d == nil {
		return false
	}
	any = w.beginDivision()
	if !d.begun {
		return any
	}
	rest := d.leaving[:0]
	for _, f := range d.leaving {
		if f.window.Base() == f.window.NextSeq() {
			w.endFlow(f)
		} else {
			rest = append(rest, f)
		}
	}
	if d.leaving = rest; len(rest) == 0 {
		w.dividing = nil
		close(d.over)
		any = true
	}
	return any
}

// beginDivision exchanges the shares, unless a push is in the packer. It reports whether it did.
func (w *Worker) beginDivision() bool {
	d := w.dividing
	if d == nil || d.begun || len(w.pushes) > 0 && w.pushes[0].begun {
		return false
	}
	if err := w.packer.Divide(d.shares); err != nil {
		panic(err) // Divide has checked that they are of the hot set
	}
	stays := map[*flow]bool{}
	for _, f := range d.flows {
		stays[f] = true
	}
	for f := range w.hotFlows {
		if !stays[f] {
			d.leaving = append(d.leaving, f)
		}
	}
	w.hotAt = w.hotAt[:0]
	for _, f := range d.flows {
		if w.flows[f.index] != f {
			w.addFlow(f)
		}
		w.hotAt = append(w.hotAt, f.index)
	}
	d.begun = true
	return true
}

// addFlow gives a flow to an aggregator a place among the flows.
func (w *Worker) addFlow(f *flow) {
	at := len(w.flows)
	for i := range w.flows {
		if w.flows[i] == nil {
			at = i
			break
		}
	}
	if at == len(w.flows) {
		w.flows = append(w.flows, nil)
	}
	w.placeFlow(f, at)
}

// placeFlow puts a new flow at a place. Flushes do not wait for its frames, which all come later.
func (w *Worker) placeFlow(f *flow, at int) {
	f.index, w.flows[at] = uint8(at), f
	for _, fl := range w.flushes {
		if at < len(fl.marks) {
			fl.marks[at] = f.window.NextSeq()
		}
	}
}

// endFlow removes a flow whose frames are all answered.
func (w *Worker) endFlow(f *flow) {
	w.countEnded(f)
	w.endedHot += f.window.NextSeq()
	w.flows[f.index] = nil
}

// countEnded keeps the counts of a flow to an aggregator that ends.
func (w *Worker) countEnded(f *flow) {
	s := f.window.Stats()
	s.Bound = 0
	w.hotStats = w.hotStats.Plus(s)
}

// isAt reports whether two flows lead to the same address.
func (f *flow) isAt(other *flow) bool { return f.to.IP == other.to.IP && f.to.Port == other.to.Port }

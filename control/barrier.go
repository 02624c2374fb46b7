// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// barrier synchronises the steps of a job's workers. When all running workers have arrived, it runs
// the commit, and then all continue. It also knows which workers have not finished.
type barrier struct {
	commit func(ctx context.Context, step uint64) error
	reduce func(step uint64, r *round) error // replaces commit if a worker reduces
	over   func(step uint64, r *round)       // called after either, when the round has ended; may be nil

	ctx      context.Context // of all commits
	mu       sync.Mutex
	instance uint64                  // of the newest generation
	ended    uint64                  // instance whose workers have to settle before they arrive
	commits  context.Context         // of those of the current generation
	stop     context.CancelCauseFunc // ends commits
	running  map[uint16]bool         // workers that have not finished
	arrived  map[uint16]bool
	rewinds  uint64
	step     uint64
	round    *round        // of this step
	latest   *round        // of the previous step, nil at first
	lost     error         // set once: a worker left before it had finished
	idle     chan struct{} // closed when no worker is running
	times    arrivals
}

// round is one step of the barrier: done is closed when it ends, with either err or the step's sums
// set.
type round struct {
	done    chan struct{}
	err     error
	rewinds uint64          // of the barrier when it began
	ctx     context.Context // of the commit
	torn    bool            // a worker has torn the step after all had arrived: it counts if they must arrive again
	commits bool            // all have arrived; from then on the commit owns the fields below

	reduces bool                   // a worker wants the sums
	dropped *DroppedError          // why the step changes nothing, if it is dropped
	hot     map[lifetime]HotFrames // of the workers that report it
	workers int                    // that have arrived, when commits is set
	sums    roundSums
}

func (b *barrier) newRound() *round {
	return &round{rewinds: b.rewinds, done: make(chan struct{}), hot: map[lifetime]HotFrames{}}
}

// newBarrier returns a barrier whose first step is the given one.
func newBarrier(ctx context.Context, workers []uint16, step uint64,
	commit func(ctx context.Context, step uint64) error) *barrier {
	b := &barrier{
		ctx:     ctx,
		commit:  commit,
		running: map[uint16]bool{},
		arrived: map[uint16]bool{},
		step:    step,
		idle:    make(chan struct{}),
	}
	b.round = b.newRound()
	for _, w := range workers {
		b.running[w] = true
	}
	b.commits, b.stop = context.WithCancelCause(ctx)
	return b
}

// wish is what a worker requests and reports when it arrives.
type wish struct {
	sums    bool          // it wants the sums
	refused *DroppedError // of its gradients
	epoch   uint16        // of its admission
	hot     *HotFrames    // nil if it does not report them
	// instance is that to which its frames went; 0 for none, and for a worker of an earlier release.
	instance uint64
	rewinds  uint64 // of the barrier when it was admitted
}

// lifetime distinguishes a worker from earlier ones with the same number.
type lifetime struct{ worker, epoch uint16 }

// joinRound blocks until all running workers have called it for the same step and the commit is
// done; it returns the round, or the commit's error. A worker whose connection broke may call it
// again.
func (b *barrier) joinRound(ctx context.Context, worker uint16, step uint64, w wish) (*round, error) {
	r, commit, err := b.arriveWorker(worker, step, w)
	if err != nil {
		return nil, err
	}
	if commit {
		go b.runCommit(r, step)
	}
	select {
	case <-r.done:
		return r, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// arriveWorker returns the round that a worker waits for, and whether the worker is the last, so
// that the caller must run the commit.
func (b *barrier) arriveWorker(worker uint16, step uint64, w wish) (r *round, commit bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.lost != nil:
		return nil, false, b.lost
	case w.rewinds != b.rewinds:
		return nil, false, ErrRewound
	case w.instance != 0 && b.ended != 0 && (w.instance == b.ended || w.instance != b.instance):
		return nil, false, ErrFenced
	case !b.running[worker]:
		return nil, false, fmt.Errorf("worker %d is not running in this job", worker)
	case b.latest != nil && step == b.step-1 && !b.arrived[worker]:
		return b.latest, false, nil // it retries, because the answer was lost
	case step != b.step:
		return nil, false, fmt.Errorf("worker %d is at step %d, the job at step %d", worker, step, b.step)
	}
	if !b.round.commits {
		b.round.reduces = b.round.reduces || w.sums
		if b.round.dropped == nil {
			b.round.dropped = w.refused
		}
		if w.hot != nil {
			b.round.hot[lifetime{worker, w.epoch}] = *w.hot
		}
	}
	if !b.arrived[worker] {
		b.times.noteArrival(worker, time.Now())
	}
	b.arrived[worker] = true
	return b.round, b.meetRound(), nil
}

// meetRound reports, once, whether all running workers have arrived: then the caller runs the
// commit. The caller holds the lock.
func (b *barrier) meetRound() bool {
	if len(b.arrived) == 0 || len(b.arrived) != len(b.running) || b.round.commits {
		return false
	}
	b.round.commits, b.round.workers, b.round.ctx = true, len(b.arrived), b.commits
	b.times.countMet()
	return true
}

// runCommit commits a round and ends it.
func (b *barrier) runCommit(r *round, step uint64) {
	if r.reduces || r.dropped != nil {
		b.releaseRound(r, b.reduce(step, r))
	} else {
		b.releaseRound(r, b.commit(r.ctx, step))
	}
	if b.over != nil {
		b.over(step, r)
	}
}

// releaseRound ends a round and opens the next.
func (b *barrier) releaseRound(r *round, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.round != r {
		return // the loss of a worker has ended it already
	}
	if errors.Is(err, ErrFenced) { // the store does not have it
		b.withdrawRound()
		return
	}
	b.endRoundLocked(err)
	b.step++
}

// fenceArrivals takes back all arrivals: their workers arrive again when they have settled. Of a
// commit that has begun, the end decides: if it has not reached the store, it fails with ErrFenced.
func (b *barrier) fenceArrivals() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopCommits()
}

// rewindArrivals takes back all arrivals, as fenceArrivals does, and takes no more of admissions
// before it. Nothing of the open step is left.
func (b *barrier) rewindArrivals() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rewinds++
	b.stopCommits()
}

// rewindCount returns the number of rewinds so far.
func (b *barrier) rewindCount() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rewinds
}

// stopCommits ends the round, unless its commit has reached the store. The caller holds the lock.
func (b *barrier) stopCommits() {
	b.ended = b.instance
	b.stop(ErrFenced)
	b.commits, b.stop = context.WithCancelCause(b.ctx)
	if !b.round.commits {
		b.withdrawRound()
	}
}

// beginGeneration begins another generation. Who has arrived stays: its frames are at the server.
func (b *barrier) beginGeneration(instance uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instance = instance
}

// withdrawRound ends the round for the waiting workers, and the step goes on: what was torn stays
// torn, and what a worker has torn that had arrived, and does not arrive again. The caller holds
// the lock.
func (b *barrier) withdrawRound() {
	before := b.round
	before.err = ErrFenced
	if before.rewinds != b.rewinds {
		before.err = ErrRewound
	}
	close(before.done)
	clear(b.arrived)
	clear(b.times.at)
	b.round = b.newRound()
	switch {
	case before.err == ErrRewound: //nolint:errorlint // it is that one
	case before.torn && before.dropped == nil:
		b.round.dropped = &DroppedError{}
	default:
		b.round.dropped = before.dropped
	}
}

// endRoundLocked ends the round for the waiting workers. The caller holds the lock.
func (b *barrier) endRoundLocked(err error) {
	b.round.err = err
	close(b.round.done)
	clear(b.arrived)
	clear(b.times.at)
	b.latest, b.round = b.round, b.newRound()
}

// nextStep returns the step whose barrier is the next that a new admission of a worker can take
// part in.
func (b *barrier) nextStep(ctx context.Context) (uint64, error) {
	b.mu.Lock()
	for b.round.commits { // with the arrival of an earlier admission
		done := b.round.done
		b.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	return b.step, nil
}

// departWorker takes back the arrival of a worker that may come again: its next admission arrives
// by itself. It is too late if all have arrived.
func (b *barrier) departWorker(worker uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.round.commits {
		return
	}
	delete(b.arrived, worker)
	b.times.forgetWorker(worker)
	maps.DeleteFunc(b.round.hot, func(l lifetime, _ HotFrames) bool { return l.worker == worker })
}

// tearOpen is tear of the open step, which it returns.
func (b *barrier) tearOpen(worker uint16) (step uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tearLocked(worker, b.step)
	return b.step
}

// tearStep makes a step be dropped, unless all have arrived at its end and it ends with that, and
// reports whether it will be dropped for certain.
func (b *barrier) tearStep(worker uint16, step uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tearLocked(worker, step)
}

// tearLocked is tearStep. The caller holds the lock.
func (b *barrier) tearLocked(worker uint16, step uint64) bool {
	if !b.running[worker] || step != b.step {
		return false
	}
	if b.round.commits {
		b.round.torn = true
		return false
	}
	if b.round.dropped == nil {
		b.round.dropped = &DroppedError{}
	}
	return true
}

// dropStep records why a round whose commit runs has dropped its step.
func (b *barrier) dropStep(r *round, why *DroppedError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.dropped = why
}

// isTorn reports whether the open step is to be dropped.
func (b *barrier) isTorn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.round.dropped != nil
}

// finishWorker removes a worker whose work is done, which may complete the round.
func (b *barrier) finishWorker(worker uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removeWorker(worker) && b.meetRound() {
		go b.runCommit(b.round, b.step)
	}
}

// loseWorker removes a lost worker. Unless it had finished, the waiting workers fail.
func (b *barrier) loseWorker(worker uint16, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.removeWorker(worker) {
		return
	}
	if b.lost == nil {
		b.lost = why
	}
	b.endRoundLocked(b.lost)
}

// removeWorker reports whether the worker was running.
func (b *barrier) removeWorker(worker uint16) bool {
	if !b.running[worker] {
		return false
	}
	delete(b.running, worker)
	delete(b.arrived, worker)
	b.times.forgetWorker(worker)
	if len(b.running) == 0 {
		close(b.idle)
	}
	return true
}

func (b *barrier) isRunning(worker uint16) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.running[worker]
}

// unfinishedWorkers returns the workers that have not finished.
func (b *barrier) unfinishedWorkers() []uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []uint16
	for id := range b.running {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// failureOf returns why not all workers finish, if one was lost.
func (b *barrier) failureOf() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

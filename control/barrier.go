package control

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// barrier lets the workers of a job take one step after the other. The last to
// arrive runs the commit, and then all go on. It also knows which workers are
// still to finish.
type barrier struct {
	commit func(step uint64) error

	mu      sync.Mutex
	running map[uint16]bool // workers that have not finished
	arrived map[uint16]bool
	step    uint64
	round   *round
	lost    error         // set once: a worker left before it had finished
	idle    chan struct{} // closed when no worker is running
}

// round is one step's meeting: done is closed when it ends, with err set.
type round struct {
	done chan struct{}
	err  error
}

func newBarrier(workers []uint16, commit func(step uint64) error) *barrier {
	b := &barrier{
		commit:  commit,
		running: map[uint16]bool{},
		arrived: map[uint16]bool{},
		round:   &round{done: make(chan struct{})},
		idle:    make(chan struct{}),
	}
	for _, w := range workers {
		b.running[w] = true
	}
	return b
}

// wait blocks until all running workers have called it for the same step and
// the commit is done; it returns the commit's error. Steps count from 0.
func (b *barrier) wait(ctx context.Context, worker uint16, step uint64) error {
	b.mu.Lock()
	if err := b.check(worker, step); err != nil {
		b.mu.Unlock()
		return err
	}
	b.arrived[worker] = true
	r := b.round
	last := len(b.arrived) == len(b.running)
	b.mu.Unlock()

	if last {
		b.release(r, b.commit(step))
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *barrier) check(worker uint16, step uint64) error {
	switch {
	case b.lost != nil:
		return b.lost
	case !b.running[worker]:
		return fmt.Errorf("worker %d is not running in this job", worker)
	case b.arrived[worker]:
		return fmt.Errorf("worker %d is already waiting at step %d", worker, b.step)
	case step != b.step:
		return fmt.Errorf("worker %d is at step %d, the job at step %d", worker, step, b.step)
	}
	return nil
}

// release ends a round and opens the next.
func (b *barrier) release(r *round, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.round != r {
		return // ended already, by the loss of a worker
	}
	r.err = err
	clear(b.arrived)
	b.step++
	b.round = &round{done: make(chan struct{})}
	close(r.done)
}

// finish takes a worker out because its work is done.
func (b *barrier) finish(worker uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(worker)
}

// leave takes a worker out that is gone. Unless it had finished, whoever waits
// for it fails.
func (b *barrier) leave(worker uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.running[worker] {
		return
	}
	if b.lost == nil {
		b.lost = fmt.Errorf("worker %d left before it had finished", worker)
	}
	if len(b.arrived) > 0 {
		b.round.err = b.lost
		close(b.round.done)
		b.round = &round{done: make(chan struct{})}
		clear(b.arrived)
	}
	b.remove(worker)
}

func (b *barrier) remove(worker uint16) {
	if !b.running[worker] {
		return
	}
	delete(b.running, worker)
	delete(b.arrived, worker)
	if len(b.running) == 0 {
		close(b.idle)
	}
}

// unfinished lists the workers that are still to finish.
func (b *barrier) unfinished() []uint16 {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []uint16
	for id := range b.running {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// failure returns the reason why not all workers finished, if one left early.
func (b *barrier) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lost
}

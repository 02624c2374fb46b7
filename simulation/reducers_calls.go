// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/libra-ina/libra/transport/reducer"
)

// calls are a worker's program: it starts or queues the operations in order, with up to as many in
// flight as the job has. What makes frames is drawn from a source that is the same for all workers,
// what does not, such as the order in which they wait for what has left, from the worker's own.
type calls[T reducer.Value] struct {
	*summing

	r            *reducer.Reducer[T]
	shared, own  *rand.Rand
	value        func(int32) T
	values, sums []T
	flight       []int // operations that it has to wait for
	open         int   // the newest operations, whose frame takes further ones
	drawn        int
}

// runReducer lives a worker's program.
func runReducer[T reducer.Value](w *summing, cfg reducer.Config, own *rand.Rand, value func(int32) T) error {
	s := w.life
	r, err := reducer.New[T](context.Background(), cfg)
	if err != nil {
		return err
	}
	defer func() {
		s.result.Repeats += int(r.Stats().Repeats)
		s.result.Hurried += int(r.Stats().Hurried)
		_ = r.Close()
	}()
	c := calls[T]{
		summing: w, r: r, shared: s.options.named("calls"), own: own, value: value,
		values: make([]T, s.shape.Width), sums: make([]T, s.shape.Width),
	}
	for w.started < s.ops {
		if err := c.computeOrPoll(); err != nil {
			return err
		}
		if err := c.callDrawn(c.drawCall()); err != nil {
			return err
		}
	}
	for len(c.flight) > 0 {
		if err := c.computeOrPoll(); err != nil {
			return err
		}
		if err := c.awaitOperation(c.flight[own.IntN(len(c.flight))]); err != nil {
			return err
		}
	}
	return nil
}

// computeOrPoll computes or polls now and then.
func (c *calls[T]) computeOrPoll() error {
	for {
		switch n := c.own.IntN(30); {
		case n == 0:
			c.act.Sleep("computes", time.Duration(c.own.IntN(3000))*time.Microsecond)
		case n < 4:
			if err := c.r.Poll(); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// drawCall draws the next call, of kinds.
func (c *calls[T]) drawCall() int {
	const kinds = 8
	n := c.shared.IntN(kinds)
	if c.drawn++; c.drawn == c.deviates {
		n = (n + 1 + c.own.IntN(kinds-1)) % kinds
	}
	return n
}

// callDrawn makes the call that was drawn.
func (c *calls[T]) callDrawn(drawn int) error {
	switch {
	case drawn < 6:
		return c.startOperation(drawn < 4)
	case drawn == 6 && c.open > 0: // its frame leaves
		return c.awaitOperation(c.started - 1 - c.shared.IntN(c.open))
	case len(c.flight) > c.open: // whose frame has left
		return c.awaitOperation(slices.Sorted(slices.Values(c.flight))[c.own.IntN(len(c.flight)-c.open)])
	}
	return nil
}

// startOperation begins an operation, or queues it. One in eight is a barrier.
func (c *calls[T]) startOperation(queues bool) error {
	s, op := c.life, c.started
	if old := op - s.shape.InFlight; slices.Contains(c.flight, old) {
		if err := c.awaitOperation(old); err != nil {
			return err
		}
	}
	c.started++
	c.open++
	if isBarrier(op) {
		c.closeFrame()
		if err := c.r.Barrier(); err != nil {
			return err
		}
		c.checkAllStarted(op)
		return nil
	}
	for lane := range c.values {
		c.values[lane] = c.value(valueOf(int(c.id), op, lane))
	}
	begin := c.r.Start
	if queues {
		begin = c.r.Queue
	}
	if !queues || c.open == s.shape.Bundle() {
		c.closeFrame()
	}
	c.flight = append(c.flight, op)
	_, err := begin(c.values)
	return err
}

// closeFrame says that the open frame, if there is one, takes no further operations.
func (c *calls[T]) closeFrame() {
	if c.open > 0 {
		c.frames = append(c.frames, c.started)
	}
	c.open = 0
}

// awaitOperation waits for an operation, and checks its sums.
func (c *calls[T]) awaitOperation(op int) error {
	s := c.life
	if op >= c.started-c.open {
		c.closeFrame()
	}
	c.flight = slices.DeleteFunc(c.flight, func(o int) bool { return o == op })
	if err := c.r.Wait(reducer.Op(op), c.sums); err != nil {
		return err
	}
	c.checkAllStarted(op)
	for lane, sum := range c.sums {
		var want int32
		for _, other := range s.workers {
			want += valueOf(int(other.id), op, lane)
		}
		if sum != c.value(want) {
			s.Fail("worker %d: sum %d of operation %d is %v, want %v", c.id, lane, op, sum, c.value(want))
		}
	}
	s.result.Results++
	return nil
}

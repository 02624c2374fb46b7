// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// program is a worker's random calls: those that make bundles by one source, which is the same for
// all workers, and all others by its own.
type program[T Value] struct {
	r          *Reducer[T]
	calls, own *rand.Rand
	values     [][]T // of each operation
	want       [][]T // the sums

	// deviates, if it is not 0, is the number of a draw, from 1, of which this worker makes
	// something else.
	deviates int

	drawn  int
	next   int
	flight []int // operations that are started and not waited for
	open   int   // of the newest operations, those whose frame takes further ones
	frames []int // of closed ones: the operation after their last
	sums   []T
}

// run makes all operations, with up to as many in flight as there can be.
func (p *program[T]) run() error {
	p.sums = make([]T, p.r.cfg.Shape.Width)
	for p.next < len(p.values) {
		var err error
		draw := p.calls.IntN(6)
		if p.drawn++; p.drawn == p.deviates {
			draw = (draw + 1 + p.own.IntN(5)) % 6
		}
		switch draw {
		case 0:
			if err = p.start(p.r.Start); err == nil {
				p.close()
			}
		case 1, 2, 3:
			if err = p.start(p.r.Queue); p.open == p.r.cfg.Shape.Bundle() {
				p.close()
			}
		case 4: // which changes no bundle
			if n := len(p.flight) - p.open; n > 0 {
				err = p.wait(slices.Sorted(slices.Values(p.flight))[p.own.IntN(n)])
			}
		case 5:
			if p.open > 0 {
				err = p.wait(p.next - 1 - p.calls.IntN(p.open))
			}
		}
		if err == nil && p.own.IntN(4) == 0 {
			err = p.r.Poll()
		}
		if err != nil {
			return err
		}
	}
	for len(p.flight) > 0 {
		if err := p.wait(p.flight[p.own.IntN(len(p.flight))]); err != nil {
			return err
		}
	}
	return nil
}

func (p *program[T]) start(call func([]T) (Op, error)) error {
	if old := p.next - p.r.cfg.Shape.InFlight; slices.Contains(p.flight, old) {
		if err := p.wait(old); err != nil {
			return err
		}
	}
	op, err := call(p.values[p.next])
	switch {
	case err != nil:
		return err
	case int(op) != p.next:
		return fmt.Errorf("operation %d is started as %d", p.next, op)
	}
	p.flight = append(p.flight, p.next)
	p.next++
	p.open++
	return nil
}

// close closes the open bundle, if there is one.
func (p *program[T]) close() {
	if p.open > 0 {
		p.frames = append(p.frames, p.next)
	}
	p.open = 0
}

// wait waits for an operation, and compares its sums.
func (p *program[T]) wait(op int) error {
	if op >= p.next-p.open {
		p.close()
	}
	p.flight = slices.DeleteFunc(p.flight, func(o int) bool { return o == op })
	if err := p.r.Wait(Op(op), p.sums); err != nil {
		return err
	}
	if !slices.Equal(p.sums, p.want[op]) {
		return &wrongSums{fmt.Sprintf("sums of operation %d are %v, want %v", op, p.sums, p.want[op])}
	}
	return nil
}

// wrongSums is what no program may return.
type wrongSums struct{ text string }

func (e *wrongSums) Error() string { return e.text }

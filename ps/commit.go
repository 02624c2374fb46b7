// SPDX-License-Identifier: Apache-2.0

package ps

import "math"

// Commit ends the step: it applies the optimiser once to every touched row, with the
// float32 nearest to its sum, and returns the number of these rows. A sum of zero
// leaves its weight unchanged.
func (s *Store) Commit() int {
	if s.snapshot != nil {
		s.snapshot.keepRows(s.touched)
	}
	n := s.touchedRows()
	switch {
	case s.rows.method == None:
		s.forgetStep()
	case s.cfg.Dim == 1:
		s.commitScalars()
	default:
		s.commitRows()
	}
	s.touched = s.touched[:0]
	s.committed = s.harvest
	return n
}

// touchedRows counts the rows of the open step.
func (s *Store) touchedRows() int {
	if u := &s.unsummed; !u.closed && u.summed == len(u.keys) {
		return u.rows
	}
	s.sumNoted()
	return len(s.touched)
}

// forgetStep drops the step's rows and keeps its memory.
func (s *Store) forgetStep() {
	if s.unsummed.closed {
		s.index.forgetKeys(s.rows.n)
		s.rows.forgetRows()
		s.roomy = 0
	}
	s.unsummed.beginStep()
	s.wide.forgetStep()
}

func (s *Store) commitRows() {
	for i, r := range s.touched {
		if i%commitBatch == 0 {
			s.approach(s.touched[i:min(i+commitBatch, len(s.touched))])
		}
		_, sums, weights, squares := s.rows.rowArrays(r)
		if s.rows.method == Adagrad {
			s.adagrad(sums, weights, squares)
		} else {
			s.sgd(sums, weights)
		}
		s.rows.unmarkRow(r)
	}
}

// commitScalars is commitRows for rows of one column. Its loop is so short that the processor
// overlaps the cache misses without help.
func (s *Store) commitScalars() {
	if s.rows.method == Adagrad {
		for _, r := range s.touched {
			c, i := s.rows.chunkAt(r)
			s.adagrad(c.sums[i:i+1], c.weights[i:i+1], c.squares[i:i+1])
			c.marks[i>>6] &^= 1 << (i & 63)
		}
		return
	}
	for _, r := range s.touched {
		c, i := s.rows.chunkAt(r)
		s.sgd(c.sums[i:i+1], c.weights[i:i+1])
		c.marks[i>>6] &^= 1 << (i & 63)
	}
}

// Drop ends the step and discards its gradients.
func (s *Store) Drop() {
	if s.rows.method == None {
		s.forgetStep()
	} else {
		for _, r := range s.touched {
			_, sums, _, _ := s.rows.rowArrays(r)
			clear(sums)
			s.rows.unmarkRow(r)
		}
	}
	s.touched = s.touched[:0]
	s.committed = s.harvest
}

// commitBatch is how many rows a commit prefetches before it changes them.
const commitBatch = 64

// approach prefetches rows in a short loop, so that the processor overlaps their cache misses.
// The optimiser's loop is too long for that, except for rows of one column.
func (s *Store) approach(rows []int) {
	d, loaded := s.cfg.Dim, uint64(0)
	for _, r := range rows {
		c, j := s.rows.chunkAt(r)
		first, last := j*d, (j+1)*d-1
		loaded |= uint64(c.sums[first]|c.sums[last]) |
			uint64(math.Float32bits(c.weights[first])|math.Float32bits(c.weights[last]))
		if c.squares != nil {
			loaded |= uint64(math.Float32bits(c.squares[first]) | math.Float32bits(c.squares[last]))
		}
	}
	s.loaded = int64(loaded)
}

// sgd and adagrad update a row from its sums, and zero the sums.
//
// Their conversions prevent fused multiply-add (Go specification, "Floating-point
// operators"), which only some architectures have: the weights must be the same on
// all of them.

func (s *Store) sgd(sums []int64, weights []float32) {
	rate := s.cfg.Optimizer.LearningRate
	for c, n := range sums {
		g := float32(n) * s.unit
		weights[c] -= float32(rate * g)
		sums[c] = 0
	}
}

func (s *Store) adagrad(sums []int64, weights, squares []float32) {
	o := &s.cfg.Optimizer
	for c, n := range sums {
		g := float32(n) * s.unit
		squares[c] += float32(g * g)
		// The square root of a float32, computed in float64 and rounded, is correctly
		// rounded.
		root := float32(math.Sqrt(float64(squares[c])))
		weights[c] -= float32(o.LearningRate*g) / (root + o.Epsilon)
		sums[c] = 0
	}
}

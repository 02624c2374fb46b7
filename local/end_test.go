// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"errors"
	"testing"

	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// most is a gradient whose sum fits units of 2^-46 once, not twice.
const most = 1 << 16

// A context that ends while workers are admitted ends Open: it returns no job with workers unknown
// to the server.
func TestOpenAfterTheContext(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	// A single worker may be admitted before the server sees the end; of 64 hardly all are.
	if c, err := local.Open(ended, local.Config{Dim: 1, Hot: []uint64{1}, Workers: 64}); c != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", c, err)
	}
}

// A Commit whose context ends changes nothing: the next one finds the sums of aggregator and
// server.
func TestCommitAfterTheContext(t *testing.T) {
	c, err := local.Open(t.Context(), local.Config{
		Dim: 1, Hot: []uint64{5}, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keys, got := []uint64{5, 9}, make([]float32, 2)
	for step := range 50 {
		if _, err := c.Worker(0).Push(t.Context(), keys, []float32{-1, -2}); err != nil {
			t.Fatal(err)
		}
		// Acknowledged before, or Commit may end earlier, while it waits for that.
		if err := c.Worker(0).Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		err := c.Commit(ended)
		if errors.Is(err, context.Canceled) {
			err = c.Commit(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Worker(0).Pull(t.Context(), keys, got); err != nil {
			t.Fatal(err)
		}
		if want := float32(step + 1); got[0] != want || got[1] != 2*want {
			t.Fatalf("after step %d: weights %v, want %v and %v", step, got, want, 2*want)
		}
	}
}

// Commit reports the result of all gradients of the step: the server has refused one of these.
func TestCommitRefused(t *testing.T) {
	c, err := local.Open(t.Context(), local.Config{Dim: 1, Hot: []uint64{5}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		if _, err := c.Worker(0).Push(t.Context(), []uint64{9}, []float32{most}); err != nil {
			t.Fatal(err)
		}
	}
	var refusal wire.Refusal
	if err := c.Commit(t.Context()); !errors.As(err, &refusal) || refusal.Code != wire.CodeOverflow {
		t.Error(err)
	}
}

// Each call that ends a step reports a sum out of range, and the next one has neither the sum nor
// an error.
func TestCommitOverflow(t *testing.T) {
	c, err := local.Open(t.Context(), local.Config{Dim: 1, Hot: []uint64{5}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for name, end := range map[string]func() error{
		"Commit": func() error { return c.Commit(t.Context()) },
		"Reduce": func() error { _, _, err := c.Reduce(t.Context()); return err },
		"Drop":   func() error { return c.Drop(t.Context()) },
	} {
		if _, err := c.Worker(0).Push(t.Context(), []uint64{5}, []float32{most}); err != nil {
			t.Fatal(err)
		}
		if err := c.Do(t.Context(), func(s *ps.Store) {
			if err := s.Push([]uint64{5}, []float32{most}); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := end(); !errors.Is(err, ps.ErrOverflow) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Drop(t.Context()); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

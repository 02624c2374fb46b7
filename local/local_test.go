// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Two workers learn that y = 3 + 2 x_7 - x_8: row 1 is the intercept, rows 1 and 7 are
// summed by the aggregator, row 8 by the parameter server.
func Example() {
	ctx := context.Background()
	c, err := local.Open(ctx, local.Config{
		Dim: 1, Hot: []uint64{1, 7}, Workers: 2, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 0.2},
	})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	keys, weights := []uint64{1, 7, 8}, make([]float32, 3)
	for step := range 200 {
		for i := range 2 {
			x := []float32{1, float32((step + i) % 2), float32(step % 3)}
			if err := c.Worker(i).Pull(ctx, keys, weights); err != nil {
				panic(err)
			}
			residual := weights[0]*x[0] + weights[1]*x[1] + weights[2]*x[2] - (3 + 2*x[1] - x[2])
			if _, err := c.Worker(i).Push(ctx, keys, []float32{residual * x[0] / 2, residual * x[1] / 2, residual * x[2] / 2}); err != nil {
				panic(err)
			}
		}
		if err := c.Commit(ctx); err != nil {
			panic(err)
		}
	}
	fmt.Printf("%.2f\n", weights)
	// Output: [3.00 2.00 -1.00]
}

// The sums are exact, wherever they are added.
func TestSumsAreExact(t *testing.T) {
	const workers, pushes = 3, 50
	c, err := local.Open(t.Context(), local.Config{
		Dim: 2, Hot: []uint64{5, 6}, Workers: workers, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want, err := ps.New(ps.Config{Dim: 2, Exp: ps.DefaultExp, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for step := range 3 {
		var group sync.WaitGroup
		for i := range workers {
			keys, grads := []uint64{5, 6, 7}, make([]float32, 6)
			for j := range grads {
				grads[j] = float32(step+1) / float32(3*i+j+7)
			}
			for range pushes {
				if err := want.Push(keys, grads); err != nil {
					t.Fatal(err)
				}
			}
			group.Go(func() {
				for range pushes {
					if _, err := c.Worker(i).Push(t.Context(), keys, grads); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		if err := c.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		want.Commit()
	}
	called := false
	if err := c.Do(t.Context(), func(s *ps.Store) {
		called = true
		if s.Len() != 3 || s.Hash() != want.Hash() {
			t.Error("the weights differ from those of the same gradients in one store")
		}
	}); err != nil || !called {
		t.Error(called, err)
	}
}

// Reduce returns the sums of its step alone, of hot and cold rows, and updates the weights by them;
// a dropped step leaves neither weights nor sums.
func TestReduceAndDrop(t *testing.T) {
	c, err := local.Open(t.Context(), local.Config{
		Dim: 1, Hot: []uint64{5}, Workers: 2, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	push := func(hot, cold float32) {
		t.Helper()
		for i := range 2 {
			if _, err := c.Worker(i).Push(t.Context(), []uint64{5, 9}, []float32{hot, cold}); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect := func(hot, cold float32) {
		t.Helper()
		got := make([]float32, 2)
		if err := c.Worker(0).Pull(t.Context(), []uint64{5, 9}, got); err != nil {
			t.Fatal(err)
		}
		if got[0] != hot || got[1] != cold {
			t.Errorf("weights %v, want %v and %v", got, hot, cold)
		}
	}
	for step := range 2 {
		push(0.5, -2)
		keys, sums, err := c.Reduce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[uint64]float32{}
		for i, k := range keys {
			got[k] = sums[i]
		}
		if len(keys) != 2 || len(sums) != 2 || got[5] != 1 || got[9] != -4 {
			t.Errorf("step %d: sums %v of %v", step, sums, keys)
		}
		expect(-1*float32(step+1), 4*float32(step+1))
	}
	push(8, 8)
	if err := c.Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(-2, 8)
	if keys, sums, err := c.Reduce(t.Context()); err != nil || len(keys)+len(sums) != 0 {
		t.Errorf("after a step that was dropped: sums %v of %v, %v", sums, keys, err)
	}
}

// Invalid configurations are refused, and everything opened before is closed.
func TestOpenRefuses(t *testing.T) {
	many := make([]uint64, packer.MaxSlots/256+1)
	for i := range many {
		many[i] = uint64(i)
	}
	for want, cfg := range map[string]local.Config{
		"Config.Hot is empty": {Dim: 1},
		"slots":               {Dim: 256, Hot: many},
		"key 3 has the ranks": {Dim: 1, Hot: []uint64{3, 3}},
		"dimension":           {Dim: 0, Hot: []uint64{3}},
		"does not fit":        {Dim: 60_000, Hot: []uint64{3}},
		"learning rate":       {Dim: 1, Hot: []uint64{3}, Optimizer: ps.Optimizer{LearningRate: -1}},
	} {
		c, err := local.Open(t.Context(), cfg)
		if err == nil || !strings.HasPrefix(err.Error(), "local: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%d hot rows of dimension %d: %v, %v, want %q", len(cfg.Hot), cfg.Dim, c, err, want)
		}
	}
}

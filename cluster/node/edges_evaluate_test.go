// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/transport"
)

// A server that continues does not evaluate an epoch again whose end its workers repeat: the
// weights are later ones.
func TestContinuedServerKeepsItsEvaluations(t *testing.T) {
	store, err := ps.New(ps.Config{Dim: 1, Exp: ps.DefaultExp})
	if err != nil {
		t.Fatal(err)
	}
	test, err := LoadTest(&cluster.Config{Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: 1, Test: 50, Hot: 1000, HotShare: 0.6}}})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{store: store, loop: &transport.Server{}, progress: newProgress(false, 0)}
	s.progress.addEvaluation(Evaluation{Epoch: 2})
	e := &evaluator{model: train.Linear{}, test: test, workers: []uint16{1}, epochs: map[uint16]int{}, log: testLog(t)}
	e.startWith(s)
	e.turn = func(_ context.Context, f func()) error { f(); return nil }
	for epoch := 1; epoch <= 3; epoch++ {
		if err := e.epochReached(t.Context(), 1, epoch, true); err != nil {
			t.Fatal(err)
		}
		e.busy.Wait()
	}
	all := s.progress.allEvaluations()
	if len(all) != 2 || all[0] != (Evaluation{Epoch: 2}) || all[1].Epoch != 3 {
		t.Errorf("%+v, want that of epoch 2 as it was, and one of epoch 3", all)
	}
}

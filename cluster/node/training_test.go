// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
)

// The ridge penalty of the configuration reaches the workers' gradients.
func TestRidgePenaltyIsTrained(t *testing.T) {
	for _, kind := range []string{"fm", "lr"} {
		t.Run(kind, func(t *testing.T) {
			c := newCluster(t, 2)
			if kind == "lr" {
				c.Model.Kind, c.Model.Factors, c.Model.InitScale = "lr", 0, 0
				buildHotSet(t, c)
			}
			startSwitch(t, c)
			without := hash(reference(t, c))
			c.Model.L2 = 0.01
			if err := c.Validate(); err != nil {
				t.Fatal(err)
			}
			got := mustTrain(t, c).server.WeightsSHA256
			if want := hash(reference(t, c)); got != want || got == without {
				t.Errorf("weights %s, the reference's %s, without penalty %s", got, want, without)
			}
		})
	}
}

// What a configuration says is what training is given, zero of an exponent
// included.
func TestStoreConfigIsLiteral(t *testing.T) {
	zero := 0
	c := newCluster(t, 1)
	c.Job.Arithmetic, c.Job.Exponent = "exact", &zero
	c.Model = cluster.Model{Kind: "fm", Factors: 7, Optimizer: "adagrad", LearningRate: 0.5, InitialAccumulator: 0.25, InitScale: 0.125, Seed: 3, Batch: 9, Epochs: 4, L2: 2}
	c.Server.MaxRows = 77
	s, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	if s.Dim != 8 || s.Exp != 0 || s.MaxRows != 77 || s.Optimizer.Method.String() != "adagrad" || s.Optimizer.LearningRate != 0.5 ||
		s.Optimizer.InitialAccumulator != 0.25 || s.Init.Scale != 0.125 || s.Init.Seed != 3 {
		t.Errorf("store: %+v", s)
	}
	w, err := TrainConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	if w.Model.Dim() != 8 || w.Epochs != 4 || w.Batch != 9 || !w.Sync || w.Seed != 3 {
		t.Errorf("training: %+v", w)
	}
	for _, bad := range []cluster.Model{{Kind: "x"}, {Kind: "fm", Factors: 99}, {Kind: "fm", L2: -1}} {
		c.Model = bad
		if _, err := StoreConfig(c); err == nil {
			t.Errorf("%+v makes a store", bad)
		}
		if _, err := TrainConfig(c); err == nil {
			t.Errorf("%+v is trained", bad)
		}
	}
	c.Model = cluster.Model{Kind: "lr", Optimizer: "adam"}
	if _, err := StoreConfig(c); err == nil {
		t.Error("an unknown optimiser makes a store")
	}
}

// An exponent of 0 makes one unit 1, at aggregator, workers and server alike: hot
// weights are whole multiples of the learning rate, and small ones.
func TestFixedExponentZero(t *testing.T) {
	zero := 0
	c := newCluster(t, 2)
	c.Job.Arithmetic, c.Job.Exponent = "fixed", &zero
	c.Model = cluster.Model{Kind: "lr", Optimizer: "sgd", LearningRate: 0.0625, Batch: 2, Epochs: 1}
	buildHotSet(t, c)
	startSwitch(t, c)
	out := mustTrain(t, c)
	trained, _ := saved(t, c)
	hot, err := loadHotSet(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	w := make([]float32, 1)
	for r := range uint32(hot.Len()) {
		trained.Read([]uint64{hot.Key(r)}, w)
		n := float64(w[0]) / 0.0625
		// Two workers, each at most 1 a step.
		if n != math.Trunc(n) || math.Abs(n) > 2*float64(out.server.Steps) {
			t.Fatalf("hot row %d has weight %g after %d steps", r, w[0], out.server.Steps)
		}
		if n != 0 {
			changed++
		}
	}
	if changed == 0 || out.server.HotPairs == 0 {
		t.Errorf("%d hot weights have changed, by %d pairs", changed, out.server.HotPairs)
	}
}

// A server that holds as many rows as it may refuses more, and the worker's error
// names the field.
func TestRowsOfTheServerAreBounded(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.MaxRows = 600
	startSwitch(t, c)
	out := trainCluster(t.Context(), t, c, hooks{})
	if err := out.errs[0]; err == nil || !strings.Contains(err.Error(), "server.max_rows") || !strings.Contains(err.Error(), "600") {
		t.Errorf("the worker ends with %v", err)
	}
	if err := out.serverErr; err == nil || !strings.Contains(err.Error(), "worker 1") {
		t.Errorf("the server ends with %v", err)
	}
	// The rows of the hot set may go beyond it. A checkpoint with them can be read.
	if store, _ := saved(t, c); store.Len() < 600 || store.Len() > 600+500 {
		t.Errorf("%d rows", store.Len())
	}
}

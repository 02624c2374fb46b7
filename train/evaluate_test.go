// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/libra-ina/libra/train/data"
)

// countingPuller counts pulls, and fails an unexpected one.
type countingPuller struct {
	pulls, fail int
	keys        []uint64
}

var errPull = errors.New("the server is gone")

func (p *countingPuller) Pull(_ context.Context, keys []uint64, dst []float32) error {
	p.pulls++
	if p.pulls == p.fail {
		return errPull
	}
	p.keys = slices.Clone(keys)
	clear(dst)
	return nil
}

// TestEvaluatePullsWhatItNeeds checks that there are as many pulls as batches, and none without
// keys.
func TestEvaluatePullsWhatItNeeds(t *testing.T) {
	m, err := NewModel("lr", data.Classification, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for n, pulls := range map[int]int{1: 1, evaluationBatch - 1: 1, evaluationBatch: 1, evaluationBatch + 1: 2, 3 * evaluationBatch: 3} {
		d := oneFeatureEach(t, n)
		var p countingPuller
		got, err := Evaluate(t.Context(), &p, m, d)
		if err != nil || p.pulls != pulls || (got.AUC != nil) != (n > 1) || n > 1 && *got.AUC != 0.5 {
			t.Errorf("%d samples: %d pulls, %+v, %v", n, p.pulls, got, err)
		}
		if last := p.keys[len(p.keys)-2]; last != uint64(10*(n-1)) { // then comes the bias
			t.Errorf("%d samples: the last key is %d", n, last)
		}
		var keys []uint64
		for i := range n {
			keys = append(keys, uint64(10*i))
		}
		if !slices.Equal(d.Keys(), keys) || d.Len() != n {
			t.Errorf("%d samples: %d keys, length %d", n, len(d.Keys()), d.Len())
		}
	}
	for fail := range 2 {
		if _, err := Evaluate(t.Context(), &countingPuller{fail: fail + 1}, m, oneFeatureEach(t, 2*evaluationBatch)); !errors.Is(err, errPull) {
			t.Errorf("pull %d fails: %v", fail+1, err)
		}
	}
}

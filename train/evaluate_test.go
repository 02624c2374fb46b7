// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
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

// oneFeatureEach is a log of n samples with one feature each, of which every other is a click.
func oneFeatureEach(n int) *Dataset {
	d := &Dataset{offsets: []int{0}}
	for i := range n {
		d.keys = append(d.keys, uint64(10*i))
		d.features = append(d.features, uint32(i))
		d.offsets = append(d.offsets, i+1)
		d.labels = append(d.labels, float32(i%2))
	}
	return d
}

// TestEvaluatePullsWhatItNeeds checks that there are as many pulls as batches, and none without
// keys.
func TestEvaluatePullsWhatItNeeds(t *testing.T) {
	m, err := NewModel("lr", Classification, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	for n, pulls := range map[int]int{1: 1, evaluationBatch - 1: 1, evaluationBatch: 1, evaluationBatch + 1: 2, 3 * evaluationBatch: 3} {
		d := oneFeatureEach(n)
		var p countingPuller
		got, err := Evaluate(t.Context(), &p, m, d)
		if err != nil || p.pulls != pulls || (got.AUC != nil) != (n > 1) || n > 1 && *got.AUC != 0.5 {
			t.Errorf("%d samples: %d pulls, %+v, %v", n, p.pulls, got, err)
		}
		if last := p.keys[len(p.keys)-2]; last != uint64(10*(n-1)) { // then comes the bias
			t.Errorf("%d samples: the last key is %d", n, last)
		}
		if !slices.Equal(d.Keys(), d.keys) || d.Len() != n {
			t.Errorf("%d samples: %d keys, length %d", n, len(d.Keys()), d.Len())
		}
	}
	for fail := range 2 {
		if _, err := Evaluate(t.Context(), &countingPuller{fail: fail + 1}, m, oneFeatureEach(2*evaluationBatch)); !errors.Is(err, errPull) {
			t.Errorf("pull %d fails: %v", fail+1, err)
		}
	}
}

// TestFitSkewRange compares refusals, and their reasons, with the possible range.
func TestFitSkewRange(t *testing.T) {
	for _, c := range []struct {
		n, hot   int
		q, share float64
		refuse   string
	}{
		{2, 1, 0, 0.6, ""}, // the least
		{10, 1, 0, 0.5, ""},
		{10, 9, 0, 0.95, ""},
		{10, 5, 3, 0.6, ""},
		{10, 5, 0, zipfMandelbrot{8, 0, 10}.share(5), ""}, // the most
		{1, 1, 0, 0.5, "workload: 1 hot of 1 parameters with offset 0 make no skew"},
		{10, 0, 0, 0.5, "workload: 0 hot of 10 parameters with offset 0 make no skew"},
		{10, 10, 0, 0.5, "workload: 10 hot of 10 parameters with offset 0 make no skew"},
		{10, 5, -1, 0.5, "workload: 5 hot of 10 parameters with offset -1 make no skew"},
		{10, 5, 0, 0.4, "workload: the top 5 of 10 parameters cannot have a share of 0.4 of the updates; from 0.5 to "},
		{10, 5, 0, 1.1, "cannot have a share of 1.1 of the updates; from 0.5 to "},
	} {
		z, err := fitSkew(c.n, c.hot, c.q, c.share)
		if c.refuse == "" {
			if got := z.share(c.hot); err != nil || got < c.share-1e-9 || got > c.share+1e-9 {
				t.Errorf("%+v: share %g, %v", c, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.refuse) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"slices"
	"testing"

	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/packer"
)

// ageing is a server whose weights say when they were pulled: each row holds its key and the number of
// commits.
type ageing struct {
	workload.Client
	commits float32
	pulled  []uint64 // by the last call, nil if there was no key
	during  func()   // called in each pull, if set
}

func (a *ageing) Pull(_ context.Context, keys []uint64, dst []float32) error {
	a.pulled = slices.Clone(keys[:len(keys):len(keys)])
	if a.during != nil {
		a.during()
	}
	for i, key := range keys {
		dst[2*i], dst[2*i+1] = float32(key), a.commits
	}
	return nil
}

// Hot rows are pulled once between two reports, cold rows each time; and a report that comes back during a pull, which
// may be missing in the rows of that pull, has them pulled again.
func TestHotWeightsAreKeptBetweenReports(t *testing.T) {
	set, err := packer.NewHotSet(2, []uint64{30, 10}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	server := &ageing{}
	h := newHotWeights(server, set)
	pull := func(keys []uint64, commits []float32, pulled []uint64) {
		t.Helper()
		dst := make([]float32, 2*len(keys))
		if err := h.Pull(t.Context(), keys, dst); err != nil {
			t.Fatal(err)
		}
		for i, key := range keys {
			if got := [2]float32(dst[2*i:]); got != [2]float32{float32(key), commits[i]} {
				t.Errorf("row %d is %v, want its key and %v commits", key, got, commits[i])
			}
		}
		if !slices.Equal(server.pulled, pulled) {
			t.Errorf("pulled %v, want %v", server.pulled, pulled)
		}
	}
	pull([]uint64{10, 20}, []float32{0, 0}, []uint64{10, 20})
	server.commits = 1
	pull([]uint64{10, 20, 30}, []float32{0, 1, 1}, []uint64{20, 30})
	h.reported()
	server.commits, server.during = 2, h.reported
	pull([]uint64{10, 30}, []float32{2, 2}, []uint64{10, 30})
	server.commits, server.during = 3, nil
	pull([]uint64{10, 30}, []float32{3, 3}, []uint64{10, 30})
	pull([]uint64{10, 30}, []float32{3, 3}, nil)
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/codec"
)

// The weights of synchronous training with a codec are those of one process that codes and decodes
// cold gradients likewise, with one server and with three, with faults, for bounds that change
// much.
func TestCodecGivesTheSameWeights(t *testing.T) {
	var plain string
	for _, n := range []int{1, 3} {
		for _, coding := range []codec.Config{{Bound: 10}, {Bound: 4, Scale: 6}} {
			t.Run(fmt.Sprintf("%d servers, %+v", n, coding), func(t *testing.T) {
				c := newCluster(t, 2)
				plain = hash(reference(t, c))
				c.Codec = cluster.Codec{Bound: &coding.Bound, Scale: coding.Scale}
				c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 3}
				shard(t, c, n)
				startSwitch(t, c)
				out := trainSharded(t.Context(), t, c, nil, nil)
				if err := errors.Join(out.errs...); err != nil {
					t.Fatal(err)
				}
				want, got := hash(reference(t, c)), hash(merged(t, c))
				if got != want {
					t.Errorf("weights %s, in one process %s", got, want)
				}
				if got == plain {
					t.Error("the codec changed nothing")
				}
			})
		}
	}
}

// Worker and server say what the codec has saved, and agree about it.
func TestCodecIsCounted(t *testing.T) {
	c := newCluster(t, 2)
	c.Codec = cluster.Codec{Bound: new(10)}
	startSwitch(t, c)
	out := mustTrain(t, c)
	for i, w := range out.workers {
		dim := float64(c.Model.Factors + 1)
		floats := float64(w.ColdPairs) * (4 + 8/dim) // keys of 8 bytes, and heads of frames
		if w.SavedBytes <= 0 || math.Abs(float64(w.ColdBytes)+float64(w.SavedBytes)-floats) > 0.2*floats {
			t.Errorf("worker %d: %d cold pairs in %d bytes, %d saved", i, w.ColdPairs, w.ColdBytes, w.SavedBytes)
		}
	}
}

// A worker with another codec than the server, or without one, is told which field differs.
func TestCodecsThatDiffer(t *testing.T) {
	for field, theirs := range map[string]cluster.Codec{
		"codec.bound: 8 here, 10 at the server":    {Bound: new(8)},
		"codec.bound: none here, 10 at the server": {},
		"codec.scale: 3 here, 0 at the server":     {Bound: new(10), Scale: 3},
	} {
		c := newCluster(t, 1)
		c.Codec.Bound = new(10)
		startSwitch(t, c)
		out := trainCluster(t.Context(), t, c, hooks{change: func(_ uint16, c *cluster.Config) { c.Codec = theirs }})
		if err := out.errs[0]; err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "copy one cluster file") {
			t.Errorf("%v, want %q", err, field)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"

	"github.com/libra-ina/libra/cluster"
)

// A demo has the longest frames where they make it faster.
func TestStripesOfADemo(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want int
	}{
		{Options{Backend: cluster.BackendAFXDP}, 25},
		{Options{Backend: cluster.BackendAFXDP, Sync: true}, 10},
		{Options{Backend: cluster.BackendAFXDP, LaneAligned: true}, 1},
		{Options{Backend: cluster.BackendAFXDP, Plane: cluster.PlaneP4}, 1},
		{Options{Backend: cluster.BackendUDP}, 10},
		{Options{Backend: cluster.BackendUDP, LaneAligned: true}, 1},
	} {
		c.o.Model, c.o.Arithmetic, c.o.Optimizer, c.o.Workers, c.o.Servers = "lr", "exact", "adagrad", 1, 1
		got, err := c.o.config(t.TempDir())
		if err != nil || got.Switch.Stripes != c.want {
			t.Errorf("%+v: %v, %v; want %d stripes", c.o, got.Switch.Stripes, err, c.want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
)

// harsh is a network with all faults, also very late ones.
var harsh = link.Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.02, LateDelay: 1500}

// TestExactSums is invariant 1: aggregator and server hold exactly the pushed gradients, unit for
// unit, whatever the network does.
func TestExactSums(t *testing.T) {
	for _, c := range []struct {
		name    string
		fabric  func(testing.TB, clusterOptions) fabric
		options clusterOptions
	}{
		{"memory", memFabric, clusterOptions{workers: 3}},
		{"memory, faults", memFabric, clusterOptions{workers: 3, flow: hasty, faults: harsh}},
		{"memory, faults, dense", memFabric, clusterOptions{workers: 3, flow: hasty, faults: harsh, layout: packer.Dense}},
		{"memory, faults, one stripe", memFabric, clusterOptions{workers: 3, flow: hasty, faults: harsh, stripes: 1}},
		{"memory, faults, fetchadd", memFabric, clusterOptions{workers: 3, flow: hasty, faults: harsh, mode: aggregator.FetchAdd}},
		{"udp", udpFabric, clusterOptions{workers: 3}},
		{"udp, faults", udpFabric, clusterOptions{workers: 3, flow: hasty, faults: harsh, layout: packer.Dense}},
	} {
		t.Run(c.name, func(t *testing.T) { checkExactSums(t, newCluster(t, c.fabric(t, c.options), c.options), c.options) })
	}
}

// hasty limits how long a frame that is lost repeatedly delays a test.
var hasty = retransmit.Config{MaxRTO: 50 * time.Millisecond}

// checkExactSums pushes and compares the sums.
func checkExactSums(t *testing.T, c *testCluster, o clusterOptions) {
	t.Helper()
	ctx := deadline(t)
	want := pushAll(ctx, t, c.workers, 1, 20, 1000)
	if diff := cmp.Diff(want, c.sums()); diff != "" {
		t.Errorf("sums differ from what was pushed (-pushed +held):\n%.2000s", diff)
	}
	for i, w := range c.workers {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if t.Failed() || testing.Verbose() {
			t.Logf("worker %d: %+v", i, s)
		}
		if o.faults != (link.Faults{}) && s.Hot.Retransmitted+s.Cold.Retransmitted == 0 {
			t.Errorf("worker %d repeated nothing on a faulty network", i)
		}
	}
}

package transport

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
)

// harsh is a network that does everything wrong, also very late.
var harsh = Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.02, LateDelay: 1500}

// TestExactSums is invariant 1: what the aggregator and the server hold is what
// was pushed, unit for unit, whatever the network does.
func TestExactSums(t *testing.T) {
	for _, c := range []struct {
		name    string
		faults  Faults
		options clusterOptions
		cluster func(testing.TB, int, Faults, clusterOptions) *testCluster
	}{
		{"memory", Faults{}, clusterOptions{}, memCluster},
		{"memory, faults", harsh, clusterOptions{}, memCluster},
		{"memory, faults, dense", harsh, clusterOptions{layout: packer.Dense}, memCluster},
		{"memory, faults, one stripe", harsh, clusterOptions{stripes: 1}, memCluster},
		{"memory, faults, fetchadd", harsh, clusterOptions{mode: aggregator.FetchAdd}, memCluster},
		{"udp", Faults{}, clusterOptions{}, udpCluster},
		{"udp, faults", harsh, clusterOptions{layout: packer.Dense}, udpCluster},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t)
			cl := c.cluster(t, 3, c.faults, c.options)
			want := pushAll(ctx, t, cl.workers, 1, 30, 1500)
			if diff := cmp.Diff(want, cl.sums()); diff != "" {
				t.Fatalf("sums differ from what was pushed (-pushed +held):\n%.2000s", diff)
			}
			for i, w := range cl.workers {
				s, err := w.Stats(ctx)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("worker %d: %+v", i, s)
				if c.faults.Any() && s.Hot.Retransmitted+s.Cold.Retransmitted == 0 {
					t.Errorf("worker %d repeated nothing on a faulty network", i)
				}
			}
		})
	}
}

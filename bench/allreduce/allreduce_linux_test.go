// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"os"
	"slices"
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// childArgument makes the test binary a worker.
const childArgument = "child-process"

func TestMain(m *testing.M) {
	bedtest.RunAs(childArgument, RunChild)
	os.Exit(m.Run())
}

// Everything that can be compared adds the right sums, or Run would fail, and gives figures; what
// is not installed is listed. How fast it is, is for 'libra bench allreduce' to say.
func TestEverythingIsMeasured(t *testing.T) {
	c := Defaults()
	c.Workers, c.Rounds, c.Operations, c.InFlight, c.ChildCommand = []int{3}, 1, 200, 5, []string{os.Args[0], childArgument}
	r, err := Run(t.Context(), c)
	bedtest.Check(t, err)
	for _, b := range c.Baselines {
		res := r.find(3, b)
		if res == nil {
			if ours(b) || !slices.ContainsFunc(r.Unavailable, func(u experiment.Unavailable) bool { return u.Baseline == b && u.Install != "" }) {
				t.Errorf("%s was not measured: %+v", b, r.Unavailable)
			}
			continue
		}
		if res.P1 <= 0 || res.P50 < res.P1 || res.P99 < res.P50 || res.Mean < res.P1 || res.Ratio <= 0 || (res.Rate > 0) != measuresRate(b) || (res.GroupBytes > 0) != ours(b) {
			t.Errorf("%s: %+v", b, res)
		}
	}
	if err := experiment.WriteTables(t.Output(), r); err != nil {
		t.Error(err)
	}
	if charts := r.Charts(); len(charts) != 1 || charts[0].Name != "allreduce" {
		t.Errorf("%d charts", len(charts))
	}
}

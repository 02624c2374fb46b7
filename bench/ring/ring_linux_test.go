// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"testing"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// Everything that can be compared adds the right sums, or Run would fail, and gives figures. How
// fast it is, is for 'libra bench ring' to say.
func TestEverythingIsMeasured(t *testing.T) {
	c := Defaults()
	c.Values, c.Workers, c.Rate, c.GrowthRate, c.Growth, c.Operations, c.Rounds = 3000, 3, 1000, 500, []int{2, 3}, 1, 1
	r, err := Run(t.Context(), c)
	bedtest.Check(t, err)
	if len(r.Results)+len(r.Unavailable) != 9 || len(r.Targets) != 0 {
		t.Errorf("%+v", r)
	}
	for _, u := range r.Unavailable {
		if u.Baseline != MPI || u.Install == "" {
			t.Errorf("%+v", u)
		}
	}
	for _, res := range r.Results {
		if res.Seconds <= 0 || (res.Bytes > 0) != (res.Method != MPI) || res.Ratio <= 0 {
			t.Errorf("%+v", res)
		}
	}
	coded, plain := r.find(subject{1000, 3, RingCoded}), r.find(subject{1000, 3, Ring})
	if coded.Bytes > plain.Bytes/3 {
		t.Errorf("%v bytes in codes, %v as floats", coded.Bytes, plain.Bytes)
	}
	if err := experiment.WriteTables(t.Output(), r); err != nil {
		t.Error(err)
	}
	if charts := r.Charts(); len(charts) != 2 || charts[0].Name != "ring" || charts[1].Name != "ring-growth" {
		t.Errorf("%d charts", len(charts))
	}
}

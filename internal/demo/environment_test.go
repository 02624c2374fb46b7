// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/cluster"
)

// Workers and an XDP switch get their share of the processors, at least one; processes
// that take requests get all, and what the user has set stays.
func TestProcessorsOfChildren(t *testing.T) {
	const worker = 2
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	for _, c := range []struct {
		available, workers, host int
		plane, set               string
		want                     string // empty: not set
	}{
		{2, 4, worker, cluster.PlaneXDP, "", "1"},
		{2, 4, switchHost, cluster.PlaneXDP, "", "1"},
		{2, 4, switchHost, cluster.PlaneP4, "", "1"},
		{2, 4, switchHost, cluster.PlaneModel, "", ""},
		{2, 4, serverHost, cluster.PlaneXDP, "", ""},
		{12, 4, worker, cluster.PlaneModel, "", "2"},
		{12, 1, worker, cluster.PlaneXDP, "", "4"},
		{2, 4, worker, cluster.PlaneXDP, "7", "7"},
		{2, 4, serverHost, cluster.PlaneXDP, "7", "7"},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Setenv(processors, c.set) // restores it, too
			if c.set == "" {
				if err := os.Unsetenv(processors); err != nil {
					t.Fatal(err)
				}
			}
			runtime.GOMAXPROCS(c.available)
			r := &run{options: Options{Workers: c.workers}, config: &cluster.Config{Switch: cluster.Switch{Plane: c.plane}}}
			got := ""
			for _, v := range slices.Backward(r.environment(c.host)) { // the last one counts
				if value, found := strings.CutPrefix(v, processors+"="); found {
					got = value
					break
				}
			}
			if got != c.want {
				t.Errorf("%s=%q, want %q", processors, got, c.want)
			}
		})
	}
}

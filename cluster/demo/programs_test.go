// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/wire"
)

// Agents share the processors, each with one at least; what the environment says of them counts.
func TestAgentsShareProcessors(t *testing.T) {
	of := func(hosts int) []string {
		return slices.DeleteFunc(agentEnvironment(hosts), func(v string) bool { return !strings.HasPrefix(v, "GOMAXPROCS=") })
	}
	t.Setenv("GOMAXPROCS", "3")
	if got := of(8); !slices.Equal(got, []string{"GOMAXPROCS=3"}) {
		t.Errorf("%q where 3 are given", got)
	}
	if err := os.Unsetenv("GOMAXPROCS"); err != nil { // until the test ends
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(6))
	for hosts, want := range map[int]string{1: "6", 2: "3", 4: "1", 6: "1", 8: "1"} {
		if got := of(hosts); !slices.Equal(got, []string{"GOMAXPROCS=" + want}) {
			t.Errorf("%q for %d hosts, want %s", got, hosts, want)
		}
	}
}

// A switch has room for the hot set, also where that takes more slots than switches have by
// default.
func TestProgramsHaveRoomForTheirHotSet(t *testing.T) {
	const dim = 64
	for rows, want := range map[int]int{0: 0, control.DefaultSlots / dim: 0, control.DefaultSlots/dim + 1: control.DefaultSlots + dim} {
		c, err := Programs{Dim: dim, HotRows: rows}.config(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if c.Switch.Slots != want {
			t.Errorf("%d rows: the switch has %d slots, want %d", rows, c.Switch.Slots, want)
		}
		if c, err = (Programs{Dim: dim, HotSet: c.Job.HotSet}).config(t.TempDir()); err != nil || c.Switch.Slots != want {
			t.Errorf("%d rows from a file: the switch has %d slots, want %d; %v", rows, c.Switch.Slots, want, err)
		}
	}
}

// Only a bed's interfaces are known to take the longest frames.
func TestProgramsTakeTheLongestFrames(t *testing.T) {
	for backend, want := range map[string]int{cluster.BackendAFXDP: wire.MaxStripes, cluster.BackendUDP: wire.DefaultStripes} {
		c, err := Programs{Backend: backend, Dim: 1, Sync: true}.config(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if c.Switch.Stripes != want {
			t.Errorf("%s: frames of %d stripes, want %d", backend, c.Switch.Stripes, want)
		}
	}
}

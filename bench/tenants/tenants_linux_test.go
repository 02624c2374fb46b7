// SPDX-License-Identifier: Apache-2.0

package tenants

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// childArgument makes the test binary a process of the measurement.
const childArgument = "child-process"

func TestMain(m *testing.M) {
	bedtest.RunAs(childArgument, RunChild)
	os.Exit(m.Run())
}

// A job that floods the switch with bad frames, and one that creates and removes
// jobs and senders without end, take nothing from the others: their sums are exact
// (otherwise Run fails), and their harvests go on. How punctual those are is for
// 'libra bench tenants' to say.
func TestFloodLeavesOtherJobsAlone(t *testing.T) {
	c := Defaults()
	c.Duration, c.ChildCommand = time.Second, []string{os.Args[0], childArgument}
	r, err := Run(t.Context(), c)
	bedtest.Check(t, err)
	if len(r.Phases) != 2 || !r.Phases[1].Disturbed {
		t.Fatalf("runs %+v", r.Phases)
	}
	for _, run := range r.Phases {
		for _, j := range run.Tenants {
			if j.Pairs == 0 || j.Harvests < 5 || j.Mean == 0 || j.P50 == 0 {
				t.Errorf("disturbed %v: %+v", run.Disturbed, j)
			}
		}
	}
	flood := r.Phases[1]
	// How many there are depends on what else the machine does.
	if flood.FloodFrames < 100 || flood.Dropped == 0 || flood.Refused == 0 || flood.Dropped+flood.Refused > flood.FloodFrames {
		t.Errorf("the flood: %+v", flood)
	}
	if flood.Joins == 0 || flood.Jobs == 0 {
		t.Errorf("nothing came and went: %+v", flood)
	}
	if err := experiment.WriteTables(t.Output(), r); err != nil {
		t.Error(err)
	}
}

func TestConfigRefusesNonsense(t *testing.T) {
	for _, c := range []Config{{Harvest: time.Microsecond}, {Harvest: time.Second, Duration: time.Second}} {
		if _, err := Run(t.Context(), c); !errors.Is(err, experiment.ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

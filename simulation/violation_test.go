// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"strings"
	"testing"
)

// The shortest life of a violation also has one, each time it runs, and is smaller.
func TestShortest(t *testing.T) {
	in := InTest(t)
	var found *Violation
	for seed := uint64(2); found == nil; seed++ { // half of the work of 1 is too little for the fault
		if seed == 100 {
			t.Fatal("no life has the fault")
		}
		var err error
		if found, err = Workers.live(in, Options{Seed: seed, Kinds: All, fault: appliesTwice}, &Report{}); err != nil {
			t.Fatal(err)
		}
	}
	short := found.Shortest(t.Context(), in)
	if 2*bits.OnesCount32(uint32(short.Options.Kinds)) > bits.OnesCount32(uint32(All)) || short.Options.Cut.Workers == 0 || short.Options.Cut.Halves == 0 {
		t.Errorf("%v is cut down to %+v only", found, short.Options)
	}
	var trace bytes.Buffer
	o := short.Options
	o.Trace = &trace
	again, err := Workers.live(in, o, &Report{})
	if err != nil || again == nil || again.Error() != short.Error() {
		t.Errorf("%v is lived again as %v, %v", short, again, err)
	}
	if !strings.Contains(trace.String(), "VIOLATION "+short.Error()) {
		t.Errorf("the trace has no violation:\n%s", &trace)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if found.Shortest(ended, in) != found {
		t.Error("a violation is cut down although its time is over")
	}
}

func TestTestOfViolation(t *testing.T) {
	for want, v := range map[string]*Violation{
		"simulation.Run(simulation.InTest(t), simulation.Options{Seed: 7, Kinds: 0})\n": {Life: Workers, Options: Options{Seed: 7}},
		"simulation.RunCluster(simulation.InTest(t), simulation.Options{Seed: 8, Kinds: simulation.Crash | simulation.Stop, Cut: simulation.Cut{Without:[]int{1, 4}, Workers:2, Halves:0, Once:true}})\n": {
			Life: Clusters, Options: Options{Seed: 8, Kinds: Crash | Stop, Cut: Cut{Without: []int{1, 4}, Workers: 2, Once: true}},
		},
	} {
		if got := v.Test(); !strings.Contains(got, want) || !strings.HasPrefix(got, fmt.Sprintf("func TestSeed%d(", v.Options.Seed)) {
			t.Errorf("%s\nhas not %s", got, want)
		}
	}
}

// A campaign runs each of its seeds once, with the kinds that it allows.
func TestCampaign(t *testing.T) {
	lives := 0
	c := Campaign{First: 5, Last: 10, Lives: []Life{Workers}, Kinds: Loss, Parallel: 2, Progress: func(*Report) { lives++ }}
	r, err := c.Run(t.Context(), InTest(t))
	paged := c
	paged.Pages, paged.First, paged.Last, paged.Progress = true, 1, 40, nil
	want := 0
	for seed := paged.First; seed <= paged.Last; seed++ {
		if (Options{Seed: seed}).drawPages() > 1 {
			want++
		}
	}
	if p, err := paged.Run(t.Context(), InTest(t)); err != nil || want == 0 || want == 40 || p.Workers.Lives != want || p.Seeds != 40 {
		t.Errorf("%d lives of several pages among %d seeds, want %d: %v", p.Workers.Lives, p.Seeds, want, err)
	}
	if err != nil || r.Seeds != 6 || r.Workers.Lives != 6 || lives != 6 || len(r.Violations) != 0 {
		t.Errorf("%d seeds, %d lives, %d reports, violations %v, %v", r.Seeds, r.Workers.Lives, lives, r.Violations, err)
	}
	if r.Workers.Crashes+r.Workers.Pauses > 0 {
		t.Errorf("with losses alone: %+v", r.Workers)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := c.Run(ended, InTest(t)); err != nil || r.Seeds != 0 {
		t.Errorf("after the end of its time, %d seeds are lived, %v", r.Seeds, err)
	}
}

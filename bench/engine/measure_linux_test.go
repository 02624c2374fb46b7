// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// Percentiles are those of the sorted times, in microseconds.
func TestRoundTripTimes(t *testing.T) {
	nanos := make([]uint32, 200)
	for i := range nanos {
		nanos[i] = uint32(200-i) * 1000
	}
	now := reading{at: time.Unix(1, 0), lost: map[string]uint64{}}
	later := reading{at: time.Unix(2, 0), frames: 200, lost: map[string]uint64{}}
	var slice tally
	slice.addSlice(now, now, later, later)
	s := slice.sampleOf(notes{roundTrip: nanos})
	if *s.P50ns != 100e3 || *s.P99ns != 198e3 || s.PPS != 200 {
		t.Errorf("%v ns, %v ns, %v frames a second", *s.P50ns, *s.P99ns, s.PPS)
	}
	if s := slice.sampleOf(notes{}); s.P50ns != nil || s.P99ns != nil {
		t.Error("there are percentiles of nothing")
	}
}

// The rate is that of the slices; the cost is that of all frames, as is the CPU time, which the
// program notes once.
func TestTally(t *testing.T) {
	at := func(ms int64, frames uint64) reading {
		return reading{at: time.UnixMilli(ms), frames: frames, napi: [2]uint64{frames * 10, frames * 20}, lost: map[string]uint64{"x": frames / 100}}
	}
	var sum tally
	sum.addSlice(at(0, 0), at(30, 100), at(80, 600), at(90, 700))
	sum.addSlice(at(1000, 700), at(1030, 800), at(1080, 1800), at(1090, 1900))
	s := sum.sampleOf(notes{cpu: sys.Usage{User: 19000, Kernel: 1900}, drops: map[string]uint64{"x": 1, "y": 2}})
	if s.PPS != 1500/0.1 || s.NsUser != 10 || s.NsKernel != 11 || s.NsOpposite != 20 {
		t.Errorf("%+v", s)
	}
	if s.drops["x"] != 7+12+1 || s.drops["y"] != 2 {
		t.Errorf("drops %v", s.drops)
	}
}

// Programs that take turns in slices are alive together, and all but one of them are stopped.
func TestOneProgramOfAGroupRuns(t *testing.T) {
	mark := fmt.Sprintf("slices-%d", os.Getpid())
	cfg := testConfig(mark)
	cfg.Baselines, cfg.Tests, cfg.Duration = []string{Libra, UDP}, []Test{Echo}, 500*time.Millisecond
	ended := make(chan struct{})
	looks := map[int]int{} // by the number of processes that run, of looks that found two
	var watch sync.WaitGroup
	watch.Go(func() {
		for ; ; time.Sleep(2 * time.Millisecond) {
			select {
			case <-ended:
				return
			default:
			}
			if states := statesOf(t, mark); len(states) == 2 {
				looks[2-strings.Count(states, "T")]++
			}
		}
	})
	report, err := Run(t.Context(), cfg)
	close(ended)
	watch.Wait()
	bedtest.Check(t, err)
	checkMoved(t, cfg, report)
	if looks[1] <= 2*looks[2] {
		t.Errorf("looks at two processes, by how many of them ran: %v", looks)
	}
}

// statesOf returns the states of the processes with a mark among their arguments, a letter for each
// (proc(5)).
func statesOf(t *testing.T, mark string) (states string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	for _, f := range files {
		line, _ := os.ReadFile(f) // fails where the process has ended
		if !slices.Contains(strings.Split(string(line), "\x00"), mark) {
			continue
		}
		if fields, err := sys.StatFields(filepath.Join(filepath.Dir(f), "stat")); err == nil {
			states += fields[0]
		}
	}
	return states
}

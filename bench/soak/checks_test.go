package soak

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{
		{Duration: time.Millisecond}, {Duration: -time.Second}, {Duration: 30 * 24 * time.Hour},
		{Bound: time.Millisecond}, {Bound: 2 * time.Hour}, {Window: -1}, {Window: MaxWindow + 1},
	} {
		if _, err := c.withDefaults(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	c, err := Config{}.withDefaults()
	if err != nil || c.Duration != DefaultDuration || c.Bound != DefaultBound || c.Window != DefaultWindow {
		t.Errorf("%+v, %v", c, err)
	}
	if self, err := os.Executable(); err != nil || !slices.Equal(c.PeerCommand, []string{self, "bench", "soak", "peer"}) {
		t.Errorf("the server is started with %q", c.PeerCommand)
	}
}

func TestHistoryAddsProcessesUp(t *testing.T) {
	var h history
	for _, step := range []struct {
		incarnation int
		counts      counts
		corrupt     uint64
	}{
		{1, counts{corrupt: 0, late: 2, latest: 5, sockets: map[string]uint64{"a": 1}}, 0},
		{1, counts{corrupt: 3, late: 3, latest: 5, sockets: map[string]uint64{"a": 4}}, 3},
		{2, counts{corrupt: 1, late: 1, latest: 4, sockets: map[string]uint64{"a": 2, "b": 1}}, 1},
	} {
		if corrupt, _ := h.update(step.incarnation, step.counts); corrupt != step.corrupt {
			t.Errorf("%+v: %d corrupt packets are new", step, corrupt)
		}
	}
	got := h.total()
	if got.corrupt != 4 || got.late != 4 || got.latest != 5 || got.sockets["a"] != 6 || got.sockets["b"] != 1 {
		t.Errorf("%+v", got)
	}
}

func TestMemoryGrowthIsFound(t *testing.T) {
	flat := Memory{Heap: 10 << 20, Descriptors: 12, Goroutines: 7}
	grown := func(change func(*Memory)) Memory {
		m := flat
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		last Memory
		says string // "" if all is well
	}{
		"flat":        {flat, ""},
		"less heap":   {grown(func(m *Memory) { m.Heap = 1 }), ""},
		"a bit more":  {grown(func(m *Memory) { m.Heap += 1000 }), ""},
		"heap":        {grown(func(m *Memory) { m.Heap += 2 << 20 }), "heap"},
		"descriptors": {grown(func(m *Memory) { m.Descriptors++ }), "descriptors from 12 to 13"},
		"goroutines":  {grown(func(m *Memory) { m.Goroutines++ }), "goroutines from 7 to 8"},
	} {
		w := memoryWatch{process: "server", warmUp: 1}
		for _, m := range []Memory{{Heap: 1}, flat, c.last} {
			if err := w.add(1, m); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The next process begins anew.
		err := w.add(2, Memory{})
		if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err := w.end(); err != nil || w.longest.Samples != 2 || w.longest.Last != c.last {
			t.Errorf("%s: %v, %+v", name, err, w.longest)
		}
	}
}

func TestReportIsWritten(t *testing.T) {
	r := newReport(Config{Window: 256, Bound: time.Second})
	r.Links = []*LinkReport{{
		Link: "process", Sent: 1_234_567, Answered: 1_234_000, Dropped: 500, Destroyed: 67,
		Interfaces: map[string]uint64{"near TX": 500}, LateArrivals: 1, Latest: 31 * time.Millisecond,
	}}
	r.Recoveries = []Recovery{{Link: "process", Kind: "server killed and restarted", Times: Times{Count: 3, P50: 40e6}, Lost: 67}}
	r.Memory = []Growth{{Process: "clients", Samples: 4, First: Memory{Heap: 1000}, Last: Memory{Heap: 2000}}}
	var out bytes.Buffer
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1,234,567", "server killed and restarted", "40.0", "1,000 → 2,000", "near TX 500", "1 (31ms)", "every check passed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	r.fail("link %s is gone", "process")
	out.Reset()
	if err := r.WriteTable(&out); err != nil || !strings.Contains(out.String(), "FAILED: link process is gone") || strings.Contains(out.String(), "passed") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := r.err(); !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "process is gone") {
		t.Error(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || back.Links[0].Sent != 1_234_567 || back.Recoveries[0].Times.P50 != 40e6 {
		t.Errorf("%v: %s", err, b)
	}
}

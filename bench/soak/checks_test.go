// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
)

func TestConfigIsChecked(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Duration = time.Millisecond }, func(c *Config) { c.Duration = -time.Second },
		func(c *Config) { c.Duration = 30 * 24 * time.Hour },
		func(c *Config) { c.Bound = time.Millisecond }, func(c *Config) { c.Bound = 2 * time.Hour },
	} {
		c := Defaults()
		if err := c.checkFields(); err != nil {
			t.Errorf("the defaults: %v", err)
		}
		change(&c)
		if err := c.checkFields(); !errors.Is(err, experiment.ErrConfig) {
			t.Errorf("%+v: %v", c, err)
		}
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
			if err := w.addSample(1, m); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// The next process begins anew.
		err := w.addSample(2, Memory{})
		if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
		if err := w.endProcess(); err != nil || w.longest.Samples != 2 || w.longest.Last != c.last {
			t.Errorf("%s: %v, %+v", name, err, w.longest)
		}
	}
}

func TestReportIsWritten(t *testing.T) {
	r := newReport(Defaults())
	r.Links = []*LinkReport{{
		Link: "process", Sent: 1_234_567, Answered: 1_234_000, Dropped: 500, Destroyed: 67,
		Interfaces: map[string]uint64{"near TX": 500}, LateArrivals: 1, Latest: 31 * time.Millisecond,
	}}
	r.Recoveries = []Recovery{{Link: "process", Kind: "server killed and restarted", Times: Times{Count: 3, P50: 40e6}, Lost: 67}}
	r.Memory = []Growth{{Process: "clients", Samples: 4, First: Memory{Heap: 1000}, Last: Memory{Heap: 2000}}}
	var out bytes.Buffer
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1,234,567", "server killed and restarted", "40.0", "1,000 → 2,000", "near TX 500", "1 (31ms)", "Every check passed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	r.addFailure("link %s is gone", "process")
	out.Reset()
	if err := experiment.WriteTables(&out, r); err != nil || !strings.Contains(out.String(), "FAILED: link process is gone") || strings.Contains(out.String(), "passed") {
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

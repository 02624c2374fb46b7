// SPDX-License-Identifier: Apache-2.0

package hotset

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/realdata"
	"github.com/libra-ina/libra/train/data"
)

// checkReport checks what holds for every study.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	for _, p := range r.Precision {
		if !(p.Share >= 0 && p.Share <= 1) || (p.Hot == 0) != (len(p.Rates) == 0) || (p.Hot == 0) != (p.Least == 0) {
			t.Errorf("%s, step %d: %+v", p.Log, p.Step, p)
		}
		if p.Hot%p.Step != 0 && p.Hot != parameters(r, p.Log) {
			t.Errorf("%s: |Hg| = %d is no multiple of step %d", p.Log, p.Hot, p.Step)
		}
		for i, q := range p.Rates {
			if !(0 <= q.Min && q.Min <= q.Median && q.Median <= q.Max && q.Max <= 1) {
				t.Errorf("%s, step %d: %+v", p.Log, p.Step, q)
			}
			// A larger sample finds more, but for the noise of few samples
			// and of an Hs that is a step longer or shorter.
			if i > 0 && q.Median < p.Rates[i-1].Median-0.12 {
				t.Errorf("%s, step %d: precision falls from %v to %v at rate %v", p.Log, p.Step, p.Rates[i-1].Median, q.Median, q.Rate)
			}
		}
	}
	type group struct {
		log      string
		combined bool
	}
	groups := map[group]map[Method]Packets{}
	for _, p := range r.Packets {
		g := group{p.Log, p.Combined}
		if groups[g] == nil {
			groups[g] = map[Method]Packets{}
		}
		groups[g][p.Method] = p
		if p.Pairs == 0 || p.Packets < (p.Pairs+capacity-1)/capacity || p.Unfilled() < 0 || p.Unfilled() >= 1 {
			t.Errorf("%+v", p)
		}
		if (p.None == 1) != (p.Worst == 0) || p.Recirculations > float64(p.Worst) {
			t.Errorf("%+v", p)
		}
	}
	if len(groups) != 2*len(r.Logs) {
		t.Errorf("packets of %d groups for %d logs", len(groups), len(r.Logs))
	}
	for g, m := range groups {
		for method, p := range m {
			if p.Pairs != m[RandomInOrder].Pairs {
				t.Errorf("%v: %q packs %d pairs, others %d", g, method, p.Pairs, m[RandomInOrder].Pairs)
			}
		}
		if p := m[LaneAligned]; p.Worst != 0 {
			t.Errorf("%v: lane-aligned stripes recirculate: %+v", g, p)
		}
		if a, o := m[HeatAlgorithm1], m[HeatInOrder]; a.Recirculations >= o.Recirculations || a.Packets < o.Packets {
			t.Errorf("%v: Algorithm 1 gains nothing: %+v, in order %+v", g, a, o)
		}
		if g.combined && m[HeatAlgorithm1].Recirculations >= 1 { // the paper's claim
			t.Errorf("%v: Algorithm 1 takes %v recirculations a packet", g, m[HeatAlgorithm1].Recirculations)
		}
		if d, o := m[Dense], m[HeatInOrder]; d.Packets != o.Packets || d.Recirculations != o.Recirculations {
			t.Errorf("%v: dense stripes are not packets in order: %+v, %+v", g, d, o)
		}
	}
	last := map[group]Lanes{}
	for _, l := range r.Lanes {
		if l.Batches == 0 {
			continue
		}
		if !(0 <= l.Dense && l.Dense <= l.LaneAligned && l.LaneAligned < 1) || l.HotPairs > float64(l.Size) {
			t.Errorf("%+v", l)
		}
		g := group{l.Log, l.Combined}
		if before, ok := last[g]; ok && l.Combined && l.LaneAligned >= before.LaneAligned {
			t.Errorf("a larger batch leaves more lanes unfilled: %+v after %+v", l, before)
		}
		last[g] = l
	}
}

func parameters(r *Report, log string) int {
	for _, l := range r.Logs {
		if l.Name == log {
			return l.Parameters
		}
	}
	return -1
}

func rate(t *testing.T, r *Report, log string, step int, rate float64) RatePrecision {
	t.Helper()
	for _, p := range r.Precision {
		for _, q := range p.Rates {
			if p.Log == log && p.Step == step && q.Rate == rate {
				return q
			}
		}
	}
	t.Fatalf("no precision of %s at step %d, rate %v", log, step, rate)
	return RatePrecision{}
}

func TestStudyOfRealData(t *testing.T) {
	c := Defaults()
	c.LibFM = []string{realdata.Path(t, "frappe-train.libfm.gz")}
	c.Text = []string{realdata.Path(t, "wikitext2-valid.txt.gz")}
	c.HotShares, c.Samples = nil, 3
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, r)
	want := []Log{
		{Name: "frappe-train", Rows: 57722, Updates: 577220, Parameters: 5292, Top30K: 1},
		{Name: "wikitext2-valid", Rows: 2461, Updates: 213886, Parameters: 13776, Top30K: 1},
	}
	if diff := cmp.Diff(want, r.Logs); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// The paper's figures hold on frappe once the step fits its size.
	for _, c := range []struct {
		log         string
		step        int
		rate, least float64
	}{
		{"frappe-train", 1000, 0.16, 0.5},
		{"frappe-train", 100, 0.04, 0.8},
		{"frappe-train", 100, 0.08, 0.9},
		{"wikitext2-valid", 1000, 0.16, 0.5},
		{"wikitext2-valid", 10, 0.04, 0.8},
		{"wikitext2-valid", 10, 0.08, 0.9},
	} {
		if q := rate(t, r, c.log, c.step, c.rate); q.Median < c.least {
			t.Errorf("%s, step %d: precision %v at rate %v, want at least %v", c.log, c.step, q.Median, c.rate, c.least)
		}
	}
}

func TestStudyOfSyntheticLogs(t *testing.T) {
	c := Defaults()
	c.SyntheticRows, c.Samples, c.BatchSizes = 20_000, 2, []int{64, 1024, 1 << 30}
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	checkReport(t, r)
	for i, share := range []float64{0.5, 0.7} { // the draws wander a little
		if got := r.Logs[i].Top30K; math.Abs(got-share) > 0.05 {
			t.Errorf("%s: the top 30,000 have %v of the updates", r.Logs[i].Name, got)
		}
	}
	for _, l := range r.Lanes {
		if l.Size == 1<<30 && l.Batches != 0 {
			t.Errorf("a batch larger than the log: %+v", l)
		}
	}

	encoded, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var decoded Report
	if err := json.Unmarshal(encoded, &decoded); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &decoded); diff != "" {
		t.Errorf("JSON changes the report (-run +decoded)\n%s", diff)
	}

	var b bytes.Buffer
	if err := experiment.WriteTables(&b, r); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"(A) Precision", "over 90", "(B) Recirculations", "about 10", "below 1", "(C) Unfilled lanes", "synthetic 70 %"} {
		if !strings.Contains(b.String(), text) {
			t.Errorf("tables lack %q", text)
		}
	}

	paths, err := chart.Write(filepath.Join(t.TempDir(), "new", "directory"), r.Charts())
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) != 3 {
		t.Errorf("plots: %v", paths)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		shapes := 0
		for d := xml.NewDecoder(f); ; {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
				shapes++
			}
		}
		if shapes < 10 {
			t.Errorf("%s draws %d shapes", path, shapes)
		}
	}
}

func TestRunErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var syntax *data.SyntaxError
	for name, c := range map[string]struct {
		change func(*Config)
		check  func(error) bool
	}{
		"nothing to study":  {func(c *Config) { c.HotShares = nil }, isConfig},
		"rate of 0":         {func(c *Config) { c.Rates = []float64{0} }, isConfig},
		"rate not a number": {func(c *Config) { c.Rates = []float64{math.NaN()} }, isConfig},
		"negative step":     {func(c *Config) { c.Steps = []int{100, -1} }, isConfig},
		"negative samples":  {func(c *Config) { c.Samples = -1 }, isConfig},
		"no such log": {
			func(c *Config) { c.LibFM = []string{filepath.Join(dir, "absent")} },
			func(err error) bool { return errors.Is(err, os.ErrNotExist) },
		},
		"no such text": {
			func(c *Config) { c.Text = []string{filepath.Join(dir, "absent")} },
			func(err error) bool { return errors.Is(err, os.ErrNotExist) },
		},
		"malformed log": {
			func(c *Config) { c.LibFM = []string{write("bad", "1 2:1\n1 x\n")} },
			func(err error) bool { return errors.As(err, &syntax) && syntax.Line == 2 },
		},
		"log of nothing": {
			func(c *Config) { c.LibFM = []string{write("labels", "1\n1\n")} },
			func(err error) bool { return strings.Contains(err.Error(), "no row of labels") },
		},
		"empty text": {
			func(c *Config) { c.Text = []string{write("blank", " \n\n")} },
			func(err error) bool { return strings.Contains(err.Error(), "no row of blank") },
		},
		"damaged gzip": {
			func(c *Config) { c.Text = []string{write("bad.gz", "\x1f\x8b\x08rubbish")} },
			func(err error) bool { return errors.Is(err, gzip.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) },
		},
		"impossible share": {
			func(c *Config) { c.HotShares = []float64{1.5} },
			func(err error) bool { return strings.Contains(err.Error(), "cannot have a share") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := Defaults()
			c.change(&config)
			if _, err := Run(config); err == nil || !c.check(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func isConfig(err error) bool { return errors.Is(err, experiment.ErrConfig) }

// Two files of the same name must not be taken for one log.
func TestLogsOfTheSameName(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	for _, dir := range []string{a, b} {
		if err := os.WriteFile(filepath.Join(dir, "log.txt"), []byte("a b a\nc a\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	logs, err := load(Config{Text: []string{filepath.Join(a, "log.txt"), filepath.Join(b, "log.txt")}})
	if err != nil {
		t.Fatal(err)
	}
	if logs[0].name != "log" || logs[1].name != "log (2)" {
		t.Errorf("names %q and %q", logs[0].name, logs[1].name)
	}
	if diff := cmp.Diff([][]uint64{{0, 1, 0}, {2, 0}}, [][]uint64{logs[0].row(0), logs[0].row(1)}); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// SPDX-License-Identifier: Apache-2.0

package arithmetic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/report/chart"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/realdata"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
)

func small(data string) Config {
	c := Defaults()
	c.Data, c.Batches, c.Pairs, c.Additions, c.Trials = data, 30, 5000, []int{10, 100, 1000}, 3
	return c
}

func mustRun(t *testing.T, c Config) *Report {
	t.Helper()
	r, err := Run(c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPrecision(t *testing.T) {
	for _, c := range []struct{ got, want, precision float64 }{
		{1, 1, 1},
		{0.75, 1, 0.75},
		{-1.25, -1, 0.75},
		{3, 1, 0},
		{-1, 1, 0},
		{0, 0, 1},
		{1e-9, 0, 0},
	} {
		if p := precision(c.got, c.want); p != c.precision {
			t.Errorf("precision of %g for %g is %g, want %g", c.got, c.want, p, c.precision)
		}
	}
}

// TestTableLookupReachesPaper compares with Table 2, on real gradients if they
// are installed and on synthetic ones.
func TestTableLookupReachesPaper(t *testing.T) {
	for name, data := range map[string]func(t *testing.T) string{
		"frappe":    func(t *testing.T) string { return realdata.Path(t, "frappe-train.libfm.gz") },
		"synthetic": func(*testing.T) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			r := mustRun(t, small(data(t)))
			rows := r.table2(LUT)
			if len(rows) != 2 {
				t.Fatalf("%d rows", len(rows))
			}
			for _, p := range rows {
				// The paper prints two decimals.
				if math.Round(1e4*p.Median)/1e4 < p.Paper.Median || p.Average < p.Paper.Average {
					t.Errorf("%s: median %g, average %g; the paper has %g and %g", p.DataSet, p.Median, p.Average, p.Paper.Median, p.Paper.Average)
				}
				if limit := 1 - max(r.Bound.SameSigns, r.Bound.OppositeSigns); p.Worst < limit {
					t.Errorf("%s: worst precision %g, bound %g", p.DataSet, p.Worst, limit)
				}
			}
		})
	}
}

func TestReport(t *testing.T) {
	r := mustRun(t, small(""))
	if len(r.DataSets) != 3 || len(r.Precision) != 8 || len(r.LongSums) != 3*4*3 || len(r.Memory) != 4 {
		t.Fatalf("%d data sets, %d precisions, %d long sums, %d memories", len(r.DataSets), len(r.Precision), len(r.LongSums), len(r.Memory))
	}
	for _, s := range r.LongSums {
		// Half a unit of 2^-46 each, and the rounding to float32.
		if s.Arithmetic == Exact && s.DataSet != r.DataSets[0].Name && s.Largest > 0x1p-23 {
			t.Errorf("%s, %d additions: error of exact is %g", s.DataSet, s.Additions, s.Largest)
		}
		if !(s.Median <= s.Largest) {
			t.Errorf("%+v: median above the largest", s)
		}
	}
	if r.Foreign.Average > 0.99 {
		t.Errorf("scale of gradients gives uniform numbers a precision of %g", r.Foreign.Average)
	}
	if total := r.Memory[0].Total(); total != 656.5*kilobyte {
		t.Errorf("the paper's memory is %d, §5.7 says 656.5 KB", total)
	}
	for _, m := range r.Memory[1:] {
		if m.Slots < 4*hotParameters || m.Spare != m.Slots || m.Control < 8*4096 || (m.Tables > 0) != (m.Name == string(LUT)) {
			t.Errorf("%+v", m)
		}
	}

	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &back); diff != "" {
		t.Errorf("report changes as JSON: %s", diff)
	}
	if diff := cmp.Diff(r, mustRun(t, small(""))); diff != "" {
		t.Errorf("same configuration, other report: %s", diff)
	}

	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"36.79 %", "62.46 %", "656.5", "R1 synthetic click log", "R2 uniform (-1, 1)", "545280", "1,000 additions", "Choose exact"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("tables do not contain %q:\n%s", want, out.String())
		}
	}
	paths, err := chart.Write(t.TempDir()+"/plots", r.Charts())
	if err != nil || len(paths) != 3 {
		t.Fatalf("%v, %v", paths, err)
	}
	for i, label := range []string{"paper, median", "relative error", "second bank"} {
		svg, err := os.ReadFile(paths[i])
		if err != nil || !strings.Contains(string(svg), "<svg") || !strings.Contains(string(svg), label) {
			t.Errorf("%s has %d bytes without %q, %v", paths[i], len(svg), label, err)
		}
	}
}

type fullDisk struct{}

var errFull = errors.New("disk full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWriteTablesReportsFailure(t *testing.T) {
	if err := experiment.WriteTables(fullDisk{}, mustRun(t, small(""))); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Pairs = 0 }, func(c *Config) { c.Trials = -1 },
		func(c *Config) { c.Batches = -1 }, func(c *Config) { c.Senders = -1 },
		func(c *Config) { c.Additions = nil }, func(c *Config) { c.Additions = []int{0, 5} }, func(c *Config) { c.Additions = []int{5, 3} },
	} {
		c := small("")
		change(&c)
		if _, err := Run(c); !errors.Is(err, experiment.ErrConfig) {
			t.Errorf("%+v: error %v, want ErrConfig", c, err)
		}
	}
	if _, err := Run(small(t.TempDir() + "/absent.libfm")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent log: %v", err)
	}
	c := small("")
	c.Batches, c.Pairs = 2, 10_000_000
	if _, err := Run(c); err == nil || !strings.Contains(err.Error(), "train on more") {
		t.Errorf("too few gradients: %v", err)
	}
}

func TestRecorderPairsWorkers(t *testing.T) {
	store, err := ps.New(train.SmallData.Store(train.Linear{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{Local: train.Local{Store: store}, rng: rand.New(rand.NewPCG(1, 1)), limit: 10}
	ctx := context.Background()
	for step, push := range []struct {
		keys  []uint64
		grads []float32
	}{
		{[]uint64{1, 2, 5, 9}, []float32{0.1, 0.2, 0.5, 8}},
		{[]uint64{2, 3, 5, 7}, []float32{-0.2, 0.3, 0, 0.7}}, // 5: nothing to add
		{[]uint64{2}, []float32{0.25}},                       // another iteration
		{[]uint64{2}, []float32{0.125}},
		{[]uint64{2}, []float32{4}}, // has no partner
	} {
		if err := r.Push(ctx, push.keys, push.grads); err != nil {
			t.Fatal(err)
		}
		if err := r.Barrier(ctx, uint64(step)); err != nil {
			t.Fatal(err)
		}
	}
	want := []pair{{0.2, -0.2, 127 + 3}, {0.25, 0.125, 127 - 2}}
	if diff := cmp.Diff(want, r.pairs, cmp.AllowUnexported(pair{})); diff != "" {
		t.Error(diff)
	}
}

// TestSampleIsUniform offers the recorder more pairs than it keeps.
func TestSampleIsUniform(t *testing.T) {
	const limit, offered, rounds = 10, 40, 4000
	kept := make([]int, offered)
	rng := rand.New(rand.NewPCG(1, 1))
	for range rounds {
		r := &recorder{rng: rng, limit: limit}
		for i := range offered {
			r.sample(pair{a: float32(i + 1), b: 1})
		}
		for _, p := range r.pairs {
			kept[int(p.a)-1]++
		}
	}
	for i, n := range kept { // 1,000 expected, standard deviation 27
		if n < 850 || n > 1150 {
			t.Errorf("pair %d was kept %d times of %d", i, n, rounds)
		}
	}
}

func TestTrueSums(t *testing.T) {
	numbers := []float32{math.MaxFloat32, 0x1p-149, 1, -math.MaxFloat32, 0x1p-60, -1}
	// 2^-149 is lost in the rounding of the results, the others must not be lost
	// beside the largest number.
	want := []float64{math.MaxFloat32, 1, 0x1p-60}
	got := trueSums(numbers, []int{2, 4, 6})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUniformKeepsInside(t *testing.T) {
	for _, low := range []float64{-1, 0} {
		d := uniform(fmt.Sprint(low), low, 20_000, rand.New(rand.NewPCG(1, 1)))
		info := describe(d)
		if info.Largest >= 1 || info.Largest < 0.99 || info.Median < 0.45 || info.Median > 0.55 {
			t.Errorf("from %g: %+v", low, info)
		}
	}
}

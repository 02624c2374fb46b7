// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/train/data"
)

func openRows(t *testing.T, rows int) data.Source {
	t.Helper()
	src, err := OpenSource(&cluster.Config{Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: rows, Seed: 9, HotShare: 0.6, Hot: 1000}}}, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// A P4 switch has no second page: a hot set that needs one is refused before the switch is asked.
func TestHotSetBeyondP4(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hot.libra")
	load := func(plane string, rows int) error {
		t.Helper()
		keys := make([]uint64, rows)
		for i := range keys {
			keys[i] = uint64(i)
		}
		hot, err := packer.NewHotSet(9, keys, nil, packer.Meta{})
		if err == nil {
			err = packer.SaveHotSet(path, hot)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = loadHotSet(&cluster.Config{Job: cluster.Job{HotSet: path}, Switch: cluster.Switch{Plane: plane}}, 9)
		return err
	}
	most := packer.PageSlots / 9 // the last row would straddle the border
	for _, plane := range []string{cluster.PlaneP4, cluster.PlaneXDP} {
		if err := load(plane, most); err != nil {
			t.Errorf("%s: %v", plane, err)
		}
	}
	if err := load(cluster.PlaneXDP, most+1); err != nil {
		t.Errorf("two pages in XDP: %v", err)
	}
	if err := load(cluster.PlaneP4, most+1); err == nil || !strings.Contains(err.Error(), "build it with --hot-rows 7281 or fewer") {
		t.Errorf("two pages in a P4 switch: %v", err)
	}
}

// A number of rows is kept, where the data have as many keys, although a sample has fewer.
func TestHotSetHasTheRowsAskedFor(t *testing.T) {
	src := openRows(t, 4000)
	all, _, err := sampleHotSet(src, HotSetOptions{Rate: 1, Dim: 1, Rows: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	few, _, err := sampleHotSet(src, HotSetOptions{Rate: DefaultRate, Dim: 1, Rows: 1 << 20})
	if err != nil || few.Len() >= all.Len() {
		t.Fatalf("%d keys in a sample of %d, %v", few.Len(), all.Len(), err)
	}
	for name, c := range map[string]struct {
		o    HotSetOptions
		rows int
		rate float64
	}{
		"all of a sample":          {HotSetOptions{Rows: few.Len()}, few.Len(), DefaultRate},
		"one more":                 {HotSetOptions{Rows: few.Len() + 1}, few.Len() + 1, 1},
		"all":                      {HotSetOptions{Rows: all.Len()}, all.Len(), 1},
		"more than there are":      {HotSetOptions{Rows: all.Len() + 1}, all.Len(), 1},
		"at most":                  {HotSetOptions{Rows: all.Len(), AtMost: true}, few.Len(), DefaultRate},
		"more than the sample":     {HotSetOptions{Rows: all.Len(), Rate: DefaultRate}, few.Len(), DefaultRate},
		"more than a sketch takes": {HotSetOptions{Rows: all.Len(), Counters: 99}, 99, DefaultRate},
		"more than a job takes":    {HotSetOptions{Rows: all.Len(), Dim: 65000}, packer.MaxHotRows(65000), DefaultRate},
	} {
		c.o.Dim = max(c.o.Dim, 1)
		hot, err := BuildHotSet(src, c.o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if hot.Len() != c.rows || hot.Meta().Rate != c.rate {
			t.Errorf("%s: %d rows at rate %v, want %d at %v", name, hot.Len(), hot.Meta().Rate, c.rows, c.rate)
		}
	}
}

// By cost, too, a sample decides only on keys of which it knows how often they are updated.
func TestAutoCountsAllRowsOfRareKeys(t *testing.T) {
	src := openRows(t, 2000)
	build := func(rate, load float64) *packer.HotSet {
		t.Helper()
		hot, err := BuildHotSet(src, HotSetOptions{Rate: rate, Dim: 1, Auto: &heat.Auto{Rate: load}})
		if err != nil {
			t.Fatal(err)
		}
		return hot
	}
	for load, want := range map[float64]float64{1e3: DefaultRate, 1e9: 1} { // a load at which few rows pay, and one at which all do
		hot, sample := build(0, load), build(DefaultRate, load)
		if rare := sample.Count(uint32(sample.Len()-1)) == 1; rare != (want == 1) {
			t.Fatalf("load %g: the last of %d rows occurs once: %v", load, sample.Len(), rare)
		}
		if hot.Fingerprint() != build(want, load).Fingerprint() {
			t.Errorf("load %g: %d rows at rate %g, want those at %g; a sample has %d", load, hot.Len(), hot.Meta().Rate, want, sample.Len())
		}
	}
}

// Options that are left out have the values that their comments give.
func TestBuildHotSet(t *testing.T) {
	src := openRows(t, 16000)
	build := func(o HotSetOptions) *packer.HotSet {
		t.Helper()
		hot, err := BuildHotSet(src, o)
		if err != nil {
			t.Fatal(err)
		}
		return hot
	}
	given := build(HotSetOptions{Rate: 0.08, Seed: 3, Dim: 4, Rows: 50})
	if left := build(HotSetOptions{Seed: 3, Dim: 4, Rows: 50}); left.Fingerprint() != given.Fingerprint() {
		t.Error("the rate that stands for 0 is not 0.08")
	}
	meta := given.Meta()
	if given.Len() != 50 || given.Dim() != 4 || meta.Rate != 0.08 || meta.Seed != 3 || meta.Rows < 1100 || meta.Rows > 1460 {
		t.Errorf("%d rows of %d scalars, %+v", given.Len(), given.Dim(), meta)
	}
	if other := build(HotSetOptions{Seed: 4, Dim: 4, Rows: 50}); other.Fingerprint() == given.Fingerprint() {
		t.Error("the seed changes nothing")
	}
	// The bias is in every sample, so that its count is that of the samples.
	if r, ok := given.Rank(data.BiasKey); !ok || given.Count(r) != meta.Rows {
		t.Errorf("the bias has rank %d, %v", r, ok)
	}

	// A row without features is a sample, too.
	path := filepath.Join(t.TempDir(), "sparse.libfm")
	if err := os.WriteFile(path, []byte(strings.Repeat("1 3:1\n0\n0 3:1 4:1\n", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	sparse, err := OpenSource(&cluster.Config{Data: cluster.Data{Train: path}}, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	hot, err := BuildHotSet(sparse, HotSetOptions{Rate: 1, Dim: 1, Rows: 3})
	if err != nil || hot.Meta().Rows != 30 || hot.Count(0) != 30 || hot.Count(1) != 20 || hot.Count(2) != 10 || hot.Meta().Updates != 60 {
		t.Errorf("of 30 rows, 10 of them without features: %+v, %v", hot.Meta(), err)
	}

	programs := build(HotSetOptions{Seed: 3, Dim: 4, Rows: 50, NoBias: true})
	if _, ok := programs.Rank(data.BiasKey); ok || programs.Len() != 50 || programs.Key(0) != given.Key(1) {
		t.Errorf("without the bias there are %d rows, the bias among them: %v", programs.Len(), ok)
	}

	// A sketch with room for all keys counts as exactly; one without finds the
	// hottest still.
	if sketch := build(HotSetOptions{Seed: 3, Dim: 4, Rows: 50, Counters: 100_000}); sketch.Fingerprint() != given.Fingerprint() {
		t.Error("a sketch with room for all keys finds other rows")
	}
	small := build(HotSetOptions{Seed: 3, Dim: 4, Rows: 50, Counters: 40})
	if _, ok := small.Rank(data.BiasKey); small.Len() != 40 || !ok {
		t.Errorf("a sketch of 40 keys finds %d rows, the bias among them: %v", small.Len(), ok)
	}

	// Twenty rows are enough of a sample, nineteen are not.
	for rows, seen := 250, map[uint64]bool{}; !seen[EnoughRows]; rows++ {
		few := openRows(t, rows)
		hot, sampled, err := sampleHotSet(few, HotSetOptions{Rate: DefaultRate, Dim: 4, Rows: 50})
		if err != nil || sampled > EnoughRows {
			t.Fatalf("%d of %d rows, %v", sampled, rows, err)
		}
		if sampled < EnoughRows-1 || seen[sampled] {
			continue
		}
		seen[sampled] = true
		rate := 1.0
		if sampled == 20 {
			rate = hot.Meta().Rate
		}
		if hot, err := BuildHotSet(few, HotSetOptions{Dim: 4, Rows: 50}); err != nil || hot.Meta().Rate != rate {
			t.Errorf("of %d rows, of which %d are in a sample: %+v, %v; want rate %g", rows, sampled, hot.Meta(), err, rate)
		}
	}

	// Few rows are looked at all.
	if few, err := BuildHotSet(openRows(t, 10), HotSetOptions{Dim: 4, Rows: 50}); err != nil || few.Meta().Rows != 10 || few.Meta().Rate != 1 {
		t.Errorf("of 10 rows: %v", err)
	}

	// More rows than fit a page, which was asked for.
	if many := build(HotSetOptions{Seed: 3, Dim: packer.PageSlots / 7, Rows: 50}); many.Len() != 50 || many.Slots() < 7*packer.PageSlots {
		t.Errorf("%d rows of %d scalars, want 50, on more than 7 pages", many.Len(), many.Slots())
	}
	// Without a number of rows, the principle decides how many there are.
	if by := build(HotSetOptions{Seed: 3, Dim: 4, Principle: heat.Principle{Step: 10, MinGain: 1e-6, ChipBytes: 4 * 4 * 30 * 20}}); by.Len() != 30 {
		t.Errorf("%d rows within the budget of 30", by.Len())
	}
}

func TestHotSetErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.libfm")
	if err := os.WriteFile(bad, []byte("1 5:1\nnonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken, err := data.OpenFile(bad, data.Classification, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	empty, err := data.OpenKeys(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	for name, c := range map[string]struct {
		src  data.Source
		o    HotSetOptions
		want string
	}{
		"rate":      {openRows(t, 10), HotSetOptions{Rate: 1.5, Dim: 1, Rows: 1}, "1.5"},
		"sketch":    {openRows(t, 10), HotSetOptions{Rate: 0.5, Dim: 1, Rows: 1, Counters: -1}, "-1"},
		"no rows":   {empty, HotSetOptions{Dim: 1, Rows: 1}, "there are no rows: give a file that has some"},
		"no sample": {openRows(t, 10), HotSetOptions{Rate: 1e-9, Dim: 1, Rows: 1}, "none of the 10 rows was sampled at rate 1e-09: raise the rate"},
		"principle": {openRows(t, 10), HotSetOptions{Rate: 1, Dim: 1, Principle: heat.Principle{Share: 2}}, "p = 2"},
		"rows":      {broken, HotSetOptions{Rate: 1, Dim: 1, Rows: 1}, "bad.libfm:2"},
	} {
		if hot, err := BuildHotSet(c.src, c.o); err == nil || !strings.Contains(err.Error(), c.want) || hot != nil {
			t.Errorf("%s: error %v, want %q in it", name, err, c.want)
		}
	}
	if _, err := BuildHotSet(openRows(t, 10), HotSetOptions{Rate: 1, Dim: 1, Principle: heat.Principle{Share: 2}}); !errors.Is(err, packer.ErrConfig) {
		t.Errorf("the reason is lost: %v", err)
	}
}

// A hot set may be for several switches, by Principle 1 or by the number of rows, and a job on one
// of them may take all of it.
func TestHotSetsOfSeveralSwitches(t *testing.T) {
	src := openRows(t, 8000)
	const dim, want = 4096, 40 // 16 rows a page
	for _, switches := range []int{0, 1, 3} {
		hot, err := BuildHotSet(src, HotSetOptions{Rate: 1, Dim: dim, Rows: 40, Switches: switches})
		if err != nil || hot.Len() != want {
			t.Fatalf("%d switches: %d rows, %v, want %d", switches, hot.Len(), err, want)
		}
		path := filepath.Join(t.TempDir(), "hot.libra")
		if err := packer.SaveHotSet(path, hot); err != nil {
			t.Fatal(err)
		}
		if _, err := loadHotSet(&cluster.Config{Job: cluster.Job{HotSet: path}}, dim); err != nil {
			t.Error(err)
		}
	}
	path := filepath.Join(t.TempDir(), "hot.libra")
	large, err := packer.NewHotSet(dim, slices.Collect(func(yield func(uint64) bool) {
		for k := uint64(0); k <= uint64(packer.MaxHotRows(dim)) && yield(k); k++ {
		}
	}), nil, packer.Meta{})
	if err := errors.Join(err, packer.SaveHotSet(path, large)); err != nil {
		t.Fatal(err)
	}
	_, err = loadHotSet(&cluster.Config{Job: cluster.Job{HotSet: path}}, dim)
	if text := "hot.libra: it has 16385 rows, and a job takes 16384 of 4096 scalars: build it with --hot-rows 16384 or fewer"; err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
	one, err := BuildHotSet(src, HotSetOptions{Rate: 1, Dim: 1000, Principle: heat.Principle{Step: 10, MinGain: 1e-9}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := BuildHotSet(src, HotSetOptions{Rate: 1, Dim: 1000, Principle: heat.Principle{Step: 10, MinGain: 1e-9}, Switches: 2})
	if err != nil || one.Len() != 65 || two.Len() != 131 {
		t.Errorf("by Principle 1: %d and %d rows, %v, want 65 and 131", one.Len(), two.Len(), err)
	}
}

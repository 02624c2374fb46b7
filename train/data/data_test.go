// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestBatchHoldsItsSamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ones := rapid.Bool().Draw(t, "ones")
		log := samples(t, ones, Classification)
		d := dataset(t, log)
		if ones && d.values != nil {
			t.Fatal("values of 1 take memory")
		}
		var b Batch
		for range 3 { // the memory is reused
			rows := rapid.SliceOfN(rapid.IntRange(0, len(log)-1), 1, 30).Draw(t, "rows")
			b.Build(d, rows)
			want := []uint64{BiasKey}
			for i, row := range rows {
				features, values := b.Sample(i)
				var keys []uint64
				for _, f := range features {
					keys = append(keys, b.Keys[f])
				}
				if values == nil {
					values = slices.Repeat([]float32{1}, len(features))
				}
				if !slices.Equal(keys, log[row].Keys) || !slices.Equal(values, log[row].Values) || b.Labels[i] != log[row].Label {
					t.Fatalf("sample %d is %v %v %v, want %v", i, b.Labels[i], keys, values, log[row])
				}
				want = append(want, keys...)
			}
			slices.Sort(want)
			if diff := cmp.Diff(slices.Compact(want), b.Keys); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// A batch moves from one window of a log to the next, whose values may all be 1.
func TestBatchGoesOnWithOtherData(t *testing.T) {
	load := func(value float32) *Dataset {
		d, err := Load(&memory{samples: []Sample{{1, []uint64{5, 3}, []float32{1, value}}}, shard: Shard{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	var b Batch
	for _, value := range []float32{0.5, 1, 2} {
		b.Build(load(value), []int{0})
		features, values := b.Sample(0)
		want := []float32{1, value}
		if value == 1 {
			want = nil
		}
		if !slices.Equal(features, []uint32{1, 0}) || !slices.Equal(values, want) {
			t.Errorf("value %g: features %v, values %v", value, features, values)
		}
	}
}

// A batch takes a bit per key, and no new memory for more of the same data.
func TestBatchReusesItsMemory(t *testing.T) {
	for n, words := range map[int]int{1: 1, 64: 1, 65: 2, 1000: 16} {
		d := dataset(t, numbered(n, Shard{0, 1}).samples)
		samples := make([]int, n)
		for i := range samples {
			samples[i] = i
		}
		var b Batch
		b.Build(d, samples)
		if len(b.used) != words || len(b.position) != 64*words {
			t.Errorf("%d keys: %d words of bits, %d positions", n, len(b.used), len(b.position))
		}
		if allocs := testing.AllocsPerRun(10, func() { b.Build(d, samples) }); allocs != 0 {
			t.Errorf("%d keys: %g allocations", n, allocs)
		}
	}
}

// A window ends after its number of samples, and its keys ascend like those of the whole log.
func TestLoadTakesWindows(t *testing.T) {
	src := &memory{shard: Shard{0, 1}}
	for _, key := range []uint64{9, 4, 7, 2, 1} {
		src.samples = append(src.samples, Sample{1, []uint64{key}, []float32{1}})
	}
	for i, want := range [][]uint64{{4, 9}, {2, 7}, {1}} {
		d, more, err := LoadPart(src, 2)
		if err != nil || d.Len() != len(want) || !slices.Equal(d.Keys(), want) || more != (i < 2) {
			t.Errorf("window %d: %d samples, keys %v, more %v, %v", i, d.Len(), d.Keys(), more, err)
		}
	}
}

// A source refills a sample.
func TestSamplesAreReused(t *testing.T) {
	f := open(t, write(t, "1 3:0.5 4:1\n-1 7:2\n1\n-1 8:1\n"), Shard{})
	var s Sample
	for i, want := range []Sample{{1, []uint64{3, 4}, []float32{0.5, 1}}, {0, []uint64{7}, []float32{2}}, {Label: 1}, {0, []uint64{8}, []float32{1}}} {
		if err := f.Next(&s); err != nil {
			t.Fatal(err)
		}
		if s.Label != want.Label || !slices.Equal(s.Keys, want.Keys) || !slices.Equal(s.Values, want.Values) {
			t.Errorf("row %d is %v, want %v", i, s, want)
		}
	}
}

// A file that cannot be rewound returns an error, once, to each caller that starts a pass.
func TestClosedFile(t *testing.T) {
	f, err := OpenFile(write(t, "1 1:1\n"), Classification, Shard{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Rewind(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Rewind: %v", err)
	}
	n := 0
	for keys, err := range SampledKeys(f, 1, 1) {
		if n++; keys != nil || !errors.Is(err, os.ErrClosed) {
			t.Errorf("keys %v, %v", keys, err)
		}
	}
	if n != 1 {
		t.Errorf("%d items, want the error", n)
	}
}

// A refused file stays closed.
func TestRefusedFileIsClosed(t *testing.T) {
	const open = "/proc/self/fd"
	if _, err := os.ReadDir(open); err != nil {
		t.Skip(err)
	}
	name := write(t, "\x1f\x8bnot gzip")
	if _, err := OpenFile(name, Classification, Shard{}); err == nil {
		t.Fatal("it was not refused")
	}
	files, err := os.ReadDir(open)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if target, err := os.Readlink(open + "/" + f.Name()); err == nil && target == name {
			t.Errorf("descriptor %s is of the file", f.Name())
		}
	}
}

func TestShardsAreChecked(t *testing.T) {
	for _, s := range []Shard{{3, 2}, {-1, 2}, {2, 2}, {0, -1}} {
		want := fmt.Sprintf("shard %d of %d does not exist", s.Index, s.Count)
		if _, err := s.normal(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", s, err)
		}
	}
	if s, err := (Shard{}).normal(); err != nil || s != (Shard{0, 1}) {
		t.Errorf("the whole log is %v, %v", s, err)
	}
}

// goldenLabels are the first 128 labels of a synthetic log, the first in the
// highest bit.
var goldenLabels = [2]uint64{0x2006f181680c8229, 0x091732299822a080}

// TestSyntheticLogStays checks that a log does not change, because results are compared between
// versions. Some labels may differ on another processor architecture.
func TestSyntheticLogStays(t *testing.T) {
	cfg := SyntheticConfig{Rows: 128, Fields: 5, Features: 1000, Hot: 100, Seed: 9}
	var labels [2]uint64
	rows := all(t, synthetic(t, cfg, Shard{}))
	for i, s := range rows {
		if s.Label > 0 {
			labels[i/64] |= 1 << (63 - i%64)
		}
	}
	differ := 0
	for i, want := range goldenLabels {
		for x := labels[i] ^ want; x != 0; x &= x - 1 {
			differ++
		}
	}
	if differ > 3 {
		t.Errorf("%d of 128 labels differ: %#x", differ, labels)
	}
	if got, want := fmt.Sprint(rows[0].Keys, rows[1].Keys), "[3 210 422 629 923] [13 237 471 600 800]"; got != want {
		t.Errorf("the first keys are %s, want %s", got, want)
	}
	cfg.First = 100
	for i, s := range all(t, synthetic(t, cfg, Shard{})) {
		if j := 100 + i; j < len(rows) && (!slices.Equal(s.Keys, rows[j].Keys) || s.Label != rows[j].Label) {
			t.Errorf("row %d of a log that begins there is %v, want %v", j, s, rows[j])
		}
	}
}

// TestPlantedScore computes scores from the definition.
func TestPlantedScore(t *testing.T) {
	x := truth{linear: 0.5, sums: [2]float64{0.3, -0.7}, squares: [2]float64{0.05, 0.25}}
	pairs := (0.3*0.3 - 0.05 + 0.7*0.7 - 0.25) / 2
	for _, fields := range []int{1, 4} {
		n := float64(fields)
		if got, want := x.score(fields), -1+4*0.5/math.Sqrt(n)+3*pairs/n; math.Abs(got-want) > 1e-12 {
			t.Errorf("%d fields: %g, want %g", fields, got, want)
		}
	}
}

// TestChoiceOfSamples checks that seed and shard choose the part of the log that decides the hot
// set.
func TestChoiceOfSamples(t *testing.T) {
	const seed, fraction = 7, 0.3
	for shard := range 2 {
		var got, want []uint64
		for keys, err := range SampledKeys(numbered(60, Shard{shard, 2}), fraction, seed) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, keys[0])
		}
		rng := rand.New(rand.NewPCG(seed, uint64(shard)))
		for i := shard; i < 60; i += 2 {
			if rng.Float64() < fraction {
				want = append(want, uint64(i))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("shard %d: %v, want %v", shard, got, want)
		}
	}
}

// Values of a feature in several rows, negative ones, and files whose values are all 1.
func TestLargestValues(t *testing.T) {
	for text, want := range map[string][]Largest{
		"1 3:1 7:-40 9:2\n-1 7:30 8:11 5:1e9\n": {{5, 1e9}, {7, 40}},
		"1 3:1 7:10\n":                          nil,
		"1 3:1\n":                               nil,
	} {
		d, err := Load(open(t, write(t, text), Shard{}))
		if err != nil {
			t.Fatal(err)
		}
		if got := d.LargestValues(10, 2); !slices.Equal(got, want) || d.LargestLabel() != 1 {
			t.Errorf("%q: %v and %v", text, got, d.LargestLabel())
		}
	}
}

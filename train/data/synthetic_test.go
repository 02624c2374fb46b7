// SPDX-License-Identifier: Apache-2.0

package data

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func synthetic(tb testing.TB, cfg SyntheticConfig, shard Shard) *Synthetic {
	tb.Helper()
	s, err := NewSynthetic(cfg, shard)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestMassMatchesTheSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := zipfMandelbrot{
			s: rapid.OneOf(rapid.Float64Range(0, 4), rapid.Just(1.0)).Draw(t, "s"),
			q: rapid.Float64Range(0, 100).Draw(t, "q"),
			n: rapid.IntRange(1, 20_000).Draw(t, "n"),
		}
		var want float64
		for r := z.n; r >= 1; r-- {
			want += math.Pow(float64(r)+z.q, -z.s)
		}
		if got := z.mass(z.n); math.Abs(got-want) > 1e-9*want {
			t.Fatalf("mass %.12g, want %.12g", got, want)
		}
	})
}

func TestFitSkew(t *testing.T) {
	for _, test := range []struct {
		n, hot int
		share  float64
	}{
		{52_428, 1500, 0.5},
		{52_428, 1500, 0.7},
		{150_000_000, 30_000, 0.5}, // the paper's §3.1, task 1
		{150_000_000, 30_000, 0.7}, // task 2
		{10, 5, 0.5},               // no skew at all
	} {
		z, err := fitSkew(test.n, test.hot, skewOffset, test.share)
		if err != nil {
			t.Fatal(err)
		}
		if got := z.share(test.hot); math.Abs(got-test.share) > 1e-9 {
			t.Errorf("%d of %d have a share of %g with exponent %g, want %g", test.hot, test.n, got, z.s, test.share)
		}
	}
	for name, args := range map[string][4]float64{
		"more hot than all": {10, 20, 0, 0.5},
		"none hot":          {10, 0, 0, 0.5},
		"below uniform":     {10, 5, 0, 0.4},
		"certain":           {10, 5, 0, 1.1},
		"NaN":               {10, 5, 0, math.NaN()},
	} {
		if _, err := fitSkew(int(args[0]), int(args[1]), args[2], args[3]); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestFitSkewRange compares refusals, and their reasons, with the possible range.
func TestFitSkewRange(t *testing.T) {
	for _, c := range []struct {
		n, hot   int
		q, share float64
		refuse   string
	}{
		{2, 1, 0, 0.6, ""}, // the least
		{10, 1, 0, 0.5, ""},
		{10, 9, 0, 0.95, ""},
		{10, 5, 3, 0.6, ""},
		{10, 5, 0, zipfMandelbrot{8, 0, 10}.share(5), ""}, // the most
		{1, 1, 0, 0.5, "data: 1 hot of 1 parameters with offset 0 make no skew"},
		{10, 0, 0, 0.5, "data: 0 hot of 10 parameters with offset 0 make no skew"},
		{10, 10, 0, 0.5, "data: 10 hot of 10 parameters with offset 0 make no skew"},
		{10, 5, -1, 0.5, "data: 5 hot of 10 parameters with offset -1 make no skew"},
		{10, 5, 0, 0.4, "data: the top 5 of 10 parameters cannot have a share of 0.4 of the updates; from 0.5 to "},
		{10, 5, 0, 1.1, "cannot have a share of 1.1 of the updates; from 0.5 to "},
	} {
		z, err := fitSkew(c.n, c.hot, c.q, c.share)
		if c.refuse == "" {
			if got := z.share(c.hot); err != nil || got < c.share-1e-9 || got > c.share+1e-9 {
				t.Errorf("%+v: share %g, %v", c, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.refuse) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestDrawFollowsTheDistribution(t *testing.T) {
	c := zipfMandelbrot{s: 1, q: 0, n: 3}.cumulative() // 6/11, 9/11, 1
	for _, test := range []struct {
		u    float64
		want int
	}{{0, 0}, {0.5454, 0}, {0.5455, 1}, {0.8181, 1}, {0.8182, 2}, {math.Nextafter(1, 0), 2}} {
		if got := draw(c, test.u); got != test.want {
			t.Errorf("draw(%g) = %d, want %d", test.u, got, test.want)
		}
	}
	// The last rank has the rest after rounding.
	if got := draw([]float64{0.5, 0.75}, 0.8); got != 1 {
		t.Errorf("beyond the last sum: %d, want 1", got)
	}
}

func TestSyntheticSkew(t *testing.T) {
	for _, share := range []float64{0.5, 0.7} {
		cfg := SyntheticConfig{Rows: 20_000, HotShare: share, Seed: 3}
		s := synthetic(t, cfg, Shard{})
		hot, total := 0, 0
		for _, sample := range all(t, s) {
			for field, key := range sample.Keys {
				if rank := int(key) - field*s.perField; rank < 0 || rank >= s.perField {
					t.Fatalf("field %d has key %d", field, key)
				} else if rank < DefaultHot/DefaultFields {
					hot++
				}
				total++
			}
		}
		// Five standard errors of a proportion.
		got := float64(hot) / float64(total)
		if math.Abs(got-share) > 5*math.Sqrt(share*(1-share)/float64(total)) {
			t.Errorf("the hot features have a share of %g, want %g", got, share)
		}
	}
}

func TestSyntheticIsDeterministic(t *testing.T) {
	cfg := SyntheticConfig{Rows: 50, Fields: 3, Features: 1000, Hot: 100, Seed: 9}
	whole := all(t, synthetic(t, cfg, Shard{}))
	if len(whole) != 50 {
		t.Fatalf("%d rows, want 50", len(whole))
	}
	again := synthetic(t, cfg, Shard{})
	for range 2 {
		if diff := cmp.Diff(whole, all(t, again)); diff != "" {
			t.Error(diff)
		}
		if again.Rows() != 50 {
			t.Errorf("Rows is %d, want 50", again.Rows())
		}
		if err := again.Rewind(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		s := synthetic(t, cfg, Shard{i, 3})
		for j, sample := range all(t, s) {
			if diff := cmp.Diff(whole[i+3*j], sample); diff != "" {
				t.Errorf("shard %d, row %d: %s", i, j, diff)
			}
		}
		if s.Rows() != 50 {
			t.Errorf("shard %d came by %d rows, want 50", i, s.Rows())
		}
	}
	cfg.Seed++
	if cmp.Equal(whole, all(t, synthetic(t, cfg, Shard{}))) {
		t.Error("the seed changes nothing")
	}
	cfg.Seed--
	cfg.Spread = true
	for i, sample := range all(t, synthetic(t, cfg, Shard{})) {
		for j, key := range sample.Keys {
			if key != scatter(whole[i].Keys[j]) || key < 1000 {
				t.Fatalf("row %d: key %d is not spread", i, key)
			}
		}
		if sample.Label != whole[i].Label {
			t.Fatalf("row %d: spreading the keys changes the label", i)
		}
	}
}

// TestScatterKeepsTheBiasKeyFree inverts scatter: the inverse of BiasKey must be larger than any
// number of features.
func TestScatterKeepsTheBiasKeyFree(t *testing.T) {
	// The inverses of the two odd factors modulo 2^64, and of the shifts.
	x := uint64(BiasKey)
	x ^= x>>31 ^ x>>62
	x *= inverse(0x94d049bb133111eb)
	x ^= x>>27 ^ x>>54
	x *= inverse(0xbf58476d1ce4e5b9)
	x ^= x>>30 ^ x>>60
	x -= 0x9e3779b97f4a7c15
	if scatter(x) != BiasKey || x < math.MaxUint32 {
		t.Errorf("scatter(%d) = %d", x, scatter(x))
	}
}

// inverse returns the inverse of an odd number modulo 2^64 by Newton's method.
func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}

func TestSyntheticConfigIsChecked(t *testing.T) {
	for name, cfg := range map[string]SyntheticConfig{
		"rows":            {Rows: -1},
		"fields":          {Fields: -1},
		"too few":         {Fields: 20, Features: 10},
		"all hot":         {Features: 30_000},
		"share too small": {HotShare: 0.01},
	} {
		if _, err := NewSynthetic(cfg, Shard{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := NewSynthetic(SyntheticConfig{}, Shard{-1, 2}); err == nil {
		t.Error("shard -1 of 2 is accepted")
	}
}

func TestSampledKeys(t *testing.T) {
	cfg := SyntheticConfig{Rows: 5000, Fields: 3, Features: 1000, Hot: 100}
	s := synthetic(t, cfg, Shard{})
	keys := func(seed uint64) (rows [][]uint64) {
		for k, err := range SampledKeys(s, 0.1, seed) {
			if err != nil {
				t.Fatal(err)
			}
			if len(k) != 4 || k[3] != BiasKey {
				t.Fatalf("keys %v, want three features and the bias", k)
			}
			rows = append(rows, slices.Clone(k))
		}
		return rows
	}
	first := keys(1)
	if n := len(first); n < 394 || n > 606 { // five standard errors
		t.Errorf("%d of 5000 samples, want about 500", n)
	}
	if diff := cmp.Diff(first, keys(1)); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(first, keys(2)) {
		t.Error("the seed changes nothing")
	}
	for _, err := range SampledKeys(s, 1, 1) {
		if err != nil {
			t.Error(err)
		}
		break // must not continue, or the range panics
	}
	broken := open(t, write(t, "1 1:1\n1 1\n"), Shard{})
	n := 0
	var last error
	for k, err := range SampledKeys(broken, 1, 1) {
		n++
		last = err
		if (k == nil) != (err != nil) {
			t.Errorf("keys %v with error %v", k, err)
		}
	}
	if n != 2 || last == nil {
		t.Errorf("%d items, the last with error %v", n, last)
	}
}

func BenchmarkSynthetic(b *testing.B) {
	s := synthetic(b, SyntheticConfig{Rows: math.MaxInt}, Shard{})
	var sample Sample
	for b.Loop() {
		if err := s.Next(&sample); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func run(t *testing.T, cfg Config, direction uint64, n int) ([]int, Stats) {
	t.Helper()
	l, err := NewLine(cfg, direction, func(x int) int { return x })
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for i := range n {
		l.Pass(i, func(x int) { out = append(out, x) })
	}
	l.Flush(func(x int) { out = append(out, x) })
	return out, l.Stats()
}

func TestSameSeedSameFaults(t *testing.T) {
	cfg := Config{Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Late: 0.01, LateDelay: 50, Seed: 7}
	a, _ := run(t, cfg, 0, 2000)
	b, _ := run(t, cfg, 0, 2000)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Fatalf("two runs differ:\n%s", diff)
	}
	if c, _ := run(t, cfg, 1, 2000); slices.Equal(a, c) {
		t.Fatal("both directions met the same faults")
	}
}

func TestStatsAdd(t *testing.T) {
	s := Stats{Frames: 1, Dropped: 2, Duplicated: 3, Reordered: 4}
	s.Add(Stats{Frames: 10, Dropped: 20, Duplicated: 30, Reordered: 40})
	if want := (Stats{Frames: 11, Dropped: 22, Duplicated: 33, Reordered: 44}); s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
}

func TestNoFaultsIsIdentity(t *testing.T) {
	got, _ := run(t, Config{Seed: 3}, 0, 100)
	for i, x := range got {
		if i != x {
			t.Fatalf("frame %d came out at place %d", x, i)
		}
	}
	if len(got) != 100 {
		t.Fatalf("%d frames of 100 came out", len(got))
	}
}

// TestEachFrame compares output and counts of the line for each frame: its number of copies, and
// the frames that overtake each.
func TestEachFrame(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.Float64Range(0, 0.5)
		cfg := Config{
			Drop: p.Draw(rt, "drop"), Duplicate: p.Draw(rt, "dup"), Reorder: p.Draw(rt, "reorder"),
			Late: p.Draw(rt, "late"), Delay: rapid.IntRange(1, 20).Draw(rt, "delay"), LateDelay: 60,
			Seed: rapid.Uint64().Draw(rt, "seed"),
		}
		l, err := NewLine(cfg, 0, func(x int) int { return x })
		if err != nil {
			rt.Fatal(err)
		}
		const n = 500
		var counted [n]Stats
		var delays [n][]int
		for i := range n {
			before := l.Stats()
			var out []int
			l.Pass(i, func(x int) {
				out = append(out, x)
				delays[x] = append(delays[x], i-x)
			})
			after := l.Stats()
			counted[i] = Stats{1, after.Dropped - before.Dropped, after.Duplicated - before.Duplicated, after.Reordered - before.Reordered}
			if after.Frames != before.Frames+1 || len(out) > 0 && out[0] == i && !slices.IsSorted(out[1:]) || !slices.IsSorted(out) && out[0] != i {
				rt.Fatalf("%v come out with frame %d, of %+v", out, i, after)
			}
		}
		for i, d := range delays[:n-cfg.LateDelay-1] { // some of the others are delayed
			c := counted[i]
			var at, late, held int
			for _, d := range d {
				switch {
				case d == 0:
					at++
				case d == cfg.LateDelay:
					late++
				case d < 2*cfg.Delay && (c.Duplicated > 0 || d <= cfg.Delay):
					held++
				default:
					rt.Errorf("frame %d is overtaken by %d", i, d)
				}
			}
			want := 1 - c.Dropped + c.Duplicated
			if c.Dropped+c.Reordered > 1 || uint64(at) != 1-c.Dropped-c.Reordered || late > 1 ||
				uint64(at+late+held) != want || c.Dropped > 0 && want > 0 {
				rt.Errorf("frame %d comes out %v frames later, counted as %+v", i, d, c)
			}
		}
		left := 0
		l.Flush(func(int) { left++ })
		for _, d := range delays {
			left += len(d)
		}
		s := l.Stats()
		if want := n - s.Dropped + s.Duplicated; uint64(left) != want {
			rt.Errorf("%d frames came out, %d expected (%+v)", left, want, s)
		}
		kept := 1 - cfg.Drop
		for _, rate := range []struct {
			name  string
			count uint64
			want  float64
		}{
			{"dropped", s.Dropped, cfg.Drop},
			{"reordered", s.Reordered, kept * cfg.Reorder},
			{"duplicated", s.Duplicated, kept * (cfg.Duplicate + cfg.Late)},
		} {
			if got := float64(rate.count) / n; math.Abs(got-rate.want) > 0.2 { // at least six standard deviations
				rt.Errorf("%g of the frames are %s, want %g", got, rate.name, rate.want)
			}
		}
	})
}

// TestFlushKeepsTheOrder delays copies that are all due after the same delay.
func TestFlushKeepsTheOrder(t *testing.T) {
	l, err := NewLine(Config{Late: 0.9, LateDelay: 100}, 0, func(x int) int { return x })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		l.Pass(i, func(int) {})
	}
	var out []int
	l.Flush(func(x int) { out = append(out, x) })
	if uint64(len(out)) != l.Stats().Duplicated || !slices.IsSorted(out) {
		t.Errorf("%v, %+v", out, l.Stats())
	}
}

func TestReorderedFramesAreOvertaken(t *testing.T) {
	out, s := run(t, Config{Reorder: 0.2, Seed: 1}, 0, 1000)
	inversions := 0
	for i := 1; i < len(out); i++ {
		if out[i] < out[i-1] {
			inversions++
		}
	}
	if s.Reordered == 0 || inversions == 0 {
		t.Fatalf("%d frames reordered, %d inversions seen", s.Reordered, inversions)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for words, cfg := range map[string]Config{
		"probability drop is 1, not in [0, 1)":               {Drop: 1},
		"probability duplicate is -0.1, not in [0, 1)":       {Duplicate: -0.1},
		"probability reorder is NaN, not in [0, 1)":          {Reorder: math.NaN()},
		"probability late is 2, not in [0, 1)":               {Late: 2},
		"delays of -1 and 0 frames: neither may be negative": {Delay: -1},
		"delays of 3 and -1 frames: neither may be negative": {Delay: 3, LateDelay: -1},
		"probability drop is 1.5, not in [0, 1)":             {Drop: 1.5, Delay: -1},
	} {
		if _, err := NewLine(cfg, 0, func(x int) int { return x }); err == nil || err.Error() != "fault: "+words {
			t.Errorf("%+v: %v, want %q", cfg, err, words)
		}
	}
}

// A fault happens if its draw is below its probability, and each fault has its own draw for each
// frame.
func TestProbabilitiesAreBounds(t *testing.T) {
	const seed, direction = 7, 3
	rng := rand.New(rand.NewPCG(seed, direction))
	for _, c := range []struct {
		set  func(c *Config, p float64)
		want Stats
	}{
		{func(c *Config, p float64) { c.Drop = p }, Stats{Frames: 1, Dropped: 1}},
		{func(c *Config, p float64) { c.Duplicate = p }, Stats{Frames: 1, Duplicated: 1}},
		{func(c *Config, p float64) { c.Reorder = p }, Stats{Frames: 1, Reordered: 1}},
		{func(c *Config, p float64) { c.Late = p }, Stats{Frames: 1, Duplicated: 1}},
	} {
		draw := rng.Float64()
		for p, want := range map[float64]Stats{draw: {Frames: 1}, math.Nextafter(draw, 1): c.want} {
			cfg := Config{Seed: seed}
			c.set(&cfg, p)
			if _, got := run(t, cfg, direction, 1); got != want {
				t.Errorf("%+v, whose draw is %v: %+v, want %+v", cfg, draw, got, want)
			}
		}
	}
}

// The decisions of a seed stay the same from version to version, with the default delays.
func TestDecisionsOfASeed(t *testing.T) {
	cfg := Config{Drop: 0.1, Duplicate: 0.2, Reorder: 0.2, Late: 0.1, Delay: 4, LateDelay: 9, Seed: 7}
	got, _ := run(t, cfg, 1, 24)
	want := []int{0, 1, 2, 2, 6, 3, 7, 8, 9, 10, 11, 12, 6, 13, 14, 8, 16, 17, 18, 15, 19, 21, 22, 23, 20, 16, 17, 19}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	cfg.Delay, cfg.LateDelay = 0, 0
	got, _ = run(t, cfg, 1, 5000)
	cfg.Delay, cfg.LateDelay = 16, 1500
	if want, _ := run(t, cfg, 1, 5000); !slices.Equal(want, got) {
		t.Error("the delays are not 16 and 1500 frames")
	}
}

// A delivered frame is not kept.
func TestDeliveredFramesAreGone(t *testing.T) {
	l, err := NewLine(Config{Late: 0.9, LateDelay: 5}, 0, func(x *int) *int { y := *x; return &y })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		l.Pass(&i, func(x *int) {
			if x != &i && *x != i-5 {
				t.Errorf("frame %d comes out with frame %d", *x, i)
			}
		})
	}
	l.Flush(func(*int) {})
	for _, h := range l.held[:cap(l.held)] {
		if h.frame != nil {
			t.Errorf("frame %d is kept", *h.frame)
		}
	}
}

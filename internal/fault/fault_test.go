package fault

import (
	"math"
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

func TestAnyFault(t *testing.T) {
	for want, configs := range map[bool][]Config{
		false: {{}, {Seed: 7, Delay: 3, LateDelay: 9}},
		true:  {{Drop: 0.1}, {Duplicate: 0.1}, {Reorder: 0.1}, {Late: 0.1}},
	} {
		for _, c := range configs {
			if c.Any() != want {
				t.Errorf("%+v: %v, want %v", c, c.Any(), want)
			}
		}
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

// TestAccounting checks that what comes out is what went in, minus the drops,
// plus the copies, and that no frame is held longer than allowed.
func TestAccounting(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.Float64Range(0, 0.5)
		cfg := Config{
			Drop: p.Draw(rt, "drop"), Duplicate: p.Draw(rt, "dup"), Reorder: p.Draw(rt, "reorder"),
			Late: p.Draw(rt, "late"), Delay: rapid.IntRange(1, 20).Draw(rt, "delay"), LateDelay: 60,
			Seed: rapid.Uint64().Draw(rt, "seed"),
		}
		const n = 500
		out, s := run(t, cfg, 0, n)
		if want := n - s.Dropped + s.Duplicated; uint64(len(out)) != want {
			rt.Fatalf("%d frames came out, %d expected (%+v)", len(out), want, s)
		}
		copies := map[int]int{}
		for _, x := range out {
			copies[x]++
		}
		missing := 0
		for i := range n {
			if copies[i] == 0 {
				missing++
			}
			if copies[i] > 3 {
				rt.Fatalf("frame %d came out %d times", i, copies[i])
			}
		}
		if uint64(missing) != s.Dropped {
			rt.Fatalf("%d frames are missing, %d were dropped", missing, s.Dropped)
		}
	})
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
	for _, cfg := range []Config{
		{Drop: 1}, {Duplicate: -0.1}, {Reorder: math.NaN()}, {Late: 2}, {Delay: -1}, {LateDelay: -1},
	} {
		if _, err := NewLine(cfg, 0, func(x int) int { return x }); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

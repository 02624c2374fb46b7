package scaled

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func mustNegotiate(t *testing.T, workers int) *Negotiation {
	t.Helper()
	n, err := NewNegotiation(workers)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNegotiationOverLossyNetwork lets workers repeat reports in any order, with
// answers lost, and checks that all of them learn the same right scale of every
// iteration.
func TestNegotiationOverLossyNetwork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const iterations = 4
		workers := rapid.IntRange(1, 5).Draw(t, "workers")
		n, err := NewNegotiation(workers)
		if err != nil {
			t.Fatal(err)
		}
		exponents := make([][]uint8, iterations)
		want := make([]Scale, iterations)
		for i := range exponents {
			exponents[i] = rapid.SliceOfN(rapid.Uint8Max(infinite-1), workers, workers).Draw(t, "exponents")
			var largest uint8
			for _, e := range exponents[i] {
				largest = max(largest, e)
			}
			if want[i], err = ScaleFor(largest, workers); err != nil {
				t.Fatal(err)
			}
		}
		at := make([]int, workers) // iteration of each worker
		for unfinished := workers; unfinished > 0; {
			w := rapid.IntRange(0, workers-1).Draw(t, "worker")
			if at[w] == iterations {
				w = leastOf(at)
			}
			scale, decided, err := n.Report(w, uint32(at[w]), exponents[at[w]][w])
			if err != nil {
				t.Fatalf("worker %d, iteration %d: %v", w, at[w], err)
			}
			if !decided || rapid.Bool().Draw(t, "answer lost") {
				continue
			}
			if scale != want[at[w]] {
				t.Fatalf("iteration %d: scale %v, want %v", at[w], scale, want[at[w]])
			}
			if at[w]++; at[w] == iterations {
				unfinished--
			}
		}
		if n.Iteration() != iterations || n.Missing() != workers {
			t.Fatalf("at iteration %d, %d reports missing", n.Iteration(), n.Missing())
		}
	})
}

func leastOf(at []int) int {
	least := 0
	for w := range at {
		if at[w] < at[least] {
			least = w
		}
	}
	return least
}

func TestReportRefuses(t *testing.T) {
	n := mustNegotiate(t, 2)
	report := func(worker int, iteration uint32, e uint8) error {
		_, _, err := n.Report(worker, iteration, e)
		return err
	}
	for _, step := range []struct {
		about     string
		worker    int
		iteration uint32
		exponent  uint8
		want      error
		missing   int
	}{
		{"no such worker", 2, 0, 1, ErrWorker, 2},
		{"negative worker", -1, 0, 1, ErrWorker, 2},
		{"iteration before the first", 0, ^uint32(0), 1, ErrIteration, 2},
		{"future iteration", 0, 1, 1, ErrIteration, 2},
		{"exponent of infinity", 0, 0, infinite, ErrExponent, 2},
		{"first report", 0, 0, 100, nil, 1},
		{"repeated", 0, 0, 100, nil, 1},
		{"changed", 0, 0, 101, ErrConflict, 1},
		{"last report", 1, 0, 90, nil, 2},
		{"asked again", 0, 0, 100, nil, 2},
		{"asked again, changed", 0, 0, 99, ErrConflict, 2},
		{"next iteration", 0, 1, 99, nil, 1},
		{"other worker still at the one before", 1, 0, 90, nil, 1},
		{"next iteration is complete", 1, 1, 99, nil, 2},
		{"too old", 0, 0, 100, ErrIteration, 2},
	} {
		if err := report(step.worker, step.iteration, step.exponent); !errors.Is(err, step.want) {
			t.Errorf("%s: error %v, want %v", step.about, err, step.want)
		}
		if n.Missing() != step.missing {
			t.Errorf("%s: %d reports missing, want %d", step.about, n.Missing(), step.missing)
		}
	}
}

func TestIterationsWrapAround(t *testing.T) {
	n := mustNegotiate(t, 1)
	n.iteration = ^uint32(0)
	if _, decided, err := n.Report(0, ^uint32(0), 127); err != nil || !decided {
		t.Fatalf("decided %v, %v", decided, err)
	}
	if n.Iteration() != 0 {
		t.Fatalf("at iteration %d", n.Iteration())
	}
	if _, decided, err := n.Report(0, ^uint32(0), 127); err != nil || !decided {
		t.Fatalf("asked again: decided %v, %v", decided, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package experiment

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/chart"
)

// subject returns a subject whose samples are the numbers of its measurements;
// it notes its name in log each time, and fails at the n-th.
func subject(name string, log *[]string, failAt int, failure error) *Subject[int] {
	n := 0
	return &Subject[int]{What: name, Measure: func(context.Context) (int, error) {
		*log = append(*log, name)
		if n++; n == failAt {
			return 0, failure
		}
		return n, nil
	}}
}

func TestSubjectsTakeTurnsWithinRounds(t *testing.T) {
	var log, announced []string
	var steps []int
	s := &ProgressCounter{Total: 6, Progress: func(done, total int, what string) {
		announced, steps = append(announced, what), append(steps, done, total)
	}}
	a, b := subject("a", &log, 0, nil), subject("b", &log, 0, nil)
	if err := TakeTurns(t.Context(), 3, s, []*Subject[int]{a, b}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b", "a", "b", "a", "b"}; !slices.Equal(log, want) || !slices.Equal(announced, want) {
		t.Errorf("turns %v, announced %v, want %v", log, announced, want)
	}
	if want := []int{0, 6, 1, 6, 2, 6, 3, 6, 4, 6, 5, 6}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
	if want := []int{1, 2, 3}; !slices.Equal(a.Samples, want) || !slices.Equal(b.Samples, want) {
		t.Errorf("samples %v and %v, want %v of both", a.Samples, b.Samples, want)
	}
}

func TestFailureEndsTurns(t *testing.T) {
	broken := errors.New("broken")
	var log []string
	a, b := subject("a", &log, 2, broken), subject("b", &log, 0, nil)
	err := TakeTurns(t.Context(), 3, &ProgressCounter{}, []*Subject[int]{a, b})
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "a: ") || len(log) != 3 {
		t.Errorf("error %v after turns %v, want a's after its second turn", err, log)
	}
}

func TestInterruptKeepsSamples(t *testing.T) {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var log []string
	a := subject("a", &log, 0, nil)
	b := &Subject[int]{Measure: func(ctx context.Context) (int, error) {
		cancel(enough)
		return 0, ctx.Err()
	}}
	err := TakeTurns(ctx, 3, &ProgressCounter{}, []*Subject[int]{a, b})
	if !errors.Is(err, enough) || len(a.Samples) != 1 {
		t.Errorf("error %v, %d samples: want the cause and one sample", err, len(a.Samples))
	}
	if err := Sleep(ctx, time.Hour); !errors.Is(err, enough) {
		t.Errorf("sleep ended with %v", err)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{4, 1}, 2.5},
		{[]float64{9, 1, 5}, 5},
		{[]float64{7, 1, 100, 3}, 5},
	} {
		values := slices.Clone(c.values)
		if got := Median(values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
		if !slices.Equal(values, c.values) {
			t.Errorf("Median changed %v to %v", c.values, values)
		}
	}
}

// Of n values, the quantile is the first that has a share q of them at or below.
func TestQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int32(), 1, 50).Draw(t, "values")
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		got := Quantile(values, q)
		below, upTo := 0, 0
		for _, v := range values {
			if v < got {
				below++
			}
			if v <= got {
				upTo++
			}
		}
		n := float64(len(values))
		if !slices.Contains(values, got) || float64(upTo) < q*n || float64(below) >= q*n {
			t.Errorf("quantile %v of %v is %v", q, values, got)
		}
	})
}

// A machine that slows down between rounds changes the rates, not the ratios.
func TestRatiosAreTakenWithinRounds(t *testing.T) {
	if diff := cmp.Diff(Spread{2, 2, 2}, Ratios([]float64{1000, 10, 100, 1}, []float64{500, 5, 50})); diff != "" {
		t.Error(diff)
	}
	if got := Ratios([]float64{1, 2}, []float64{0, 0}); got != (Spread{}) {
		t.Errorf("ratio to nothing is %v; JSON could not hold an infinity", got)
	}
	if got := Ratios(nil, nil); got != (Spread{}) {
		t.Errorf("ratios of no rounds are %v", got)
	}
}

func TestSpread(t *testing.T) {
	if diff := cmp.Diff(Spread{Median: 2.5, Min: 1, Max: 9}, Over([]int{9, 1, 2, 3}, func(n int) float64 { return float64(n) })); diff != "" {
		t.Error(diff)
	}
	encoded, err := json.Marshal(Spread{1, 2, 3})
	if err != nil || string(encoded) != `{"median":1,"min":2,"max":3}` {
		t.Errorf("JSON %s, %v", encoded, err)
	}
}

func TestDifference(t *testing.T) {
	before := map[string]uint64{"a": 1, "b": 5}
	after := map[string]uint64{"a": 4, "b": 5, "new": 2, "none": 0}
	if diff := cmp.Diff(map[string]uint64{"a": 3, "new": 2}, Difference(before, after)); diff != "" {
		t.Error(diff)
	}
	if after["a"] != 4 {
		t.Error("Difference changed its argument")
	}
}

func TestDistinctAndFind(t *testing.T) {
	words := []string{"one", "four", "two", "three"}
	if got := Distinct(words, func(w string) int { return len(w) }); !slices.Equal(got, []int{3, 4, 5}) {
		t.Errorf("lengths %v", got)
	}
	if got := Find(words, func(w string) bool { return len(w) == 4 }); got != &words[1] {
		t.Errorf("found %v", got)
	}
	if got := Find(words, func(w string) bool { return w == "" }); got != nil {
		t.Errorf("found %v", got)
	}
}

func TestConfigurationErrorsNameWhatIsWrong(t *testing.T) {
	if err := errors.Join(InRange("rounds", 1, 9, 1, 5, 9), Known("test", []string{"a", "b"}, "b", "a")); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"rounds: 12 is not from 1 to 9":        InRange("rounds", 1, 9, 3, 12),
		"rounds: 0 is not from 1 to 9":         InRange("rounds", 1, 9, 0),
		"exponents: NaN":                       InRange("exponents", 0, 4, math.NaN()),
		"bound: 10 is there twice":             InRange("bound", 1, 14, 10, 8, 10),
		"measure: b is there twice":            Known("measure", []string{"a", "b"}, "b", "a", "b"),
		"measure: \"c\" is none of a b":        Known("measure", []string{"a", "b"}, "a", "c"),
		"duration: 1m0s is not from 1ms to 1s": InRange("duration", time.Millisecond, time.Second, time.Minute),
	} {
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrConfig and %q", err, want)
		}
	}
}

// example is a report with everything that reports share.
type example struct {
	Targets     []Target      `json:"targets"`
	Unavailable []Unavailable `json:"unavailable"`
}

func (e *example) Print(out *report.Printer) {
	PrintTargets(out, e.Targets)
	PrintUnavailable(out, e.Unavailable)
}

func (e *example) Charts() []chart.Chart { return nil }

func TestReport(t *testing.T) {
	e := &example{
		Targets: []Target{{"rate", AtLeast(4, 3.5)}, {"time", AtMost(0.7, 0.7)}},
		Unavailable: []Unavailable{
			{What: "cost", Reason: "no root"},
			{Baseline: "dpdk", Test: "echo", Size: 190, Reason: "no testpmd", Install: "build it"},
		},
	}
	encoded, err := json.Marshal(e)
	want := `{"targets":[{"what":"rate","want":4,"got":3.5,"met":false},{"what":"time","want":0.7,"got":0.7,"met":true}],` +
		`"unavailable":[{"what":"cost","reason":"no root"},{"peer":"dpdk","test":"echo","frame_bytes":190,"reason":"no testpmd","install":"build it"}]}`
	if err != nil || string(encoded) != want {
		t.Errorf("JSON %s, %v, want %s", encoded, err, want)
	}
	var out strings.Builder
	if err := WriteTables(&out, e); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"rate at least 4.00 3.50 missed", "time at most 0.70 0.70 met", "Not measured: cost: no root",
		"Not measured: dpdk, echo, 190 bytes: no testpmd to have it: build it",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("the tables lack %q:\n%s", want, out.String())
		}
	}
}

func TestMedianOf(t *testing.T) {
	type Inner struct{ X float64 }
	type sample struct {
		Inner
		Took time.Duration
		Some *Inner
		None *float64
		Name string
	}
	got := MedianOf([]sample{
		{Inner{1}, 30, &Inner{5}, nil, "a"}, {Inner{9}, 10, nil, nil, "b"}, {Inner{4}, 20, &Inner{7}, nil, "c"},
	})
	if got.X != 4 || got.Took != 20 || got.Some == nil || got.Some.X != 6 || got.None != nil || got.Name != "" {
		t.Errorf("the median is %+v", got)
	}
}

package workload

import (
	"math"
	"slices"
	"testing"

	"gonum.org/v1/gonum/integrate"
	"gonum.org/v1/gonum/stat"
	"pgregory.net/rapid"
)

func TestAUC(t *testing.T) {
	for _, test := range []struct {
		name        string
		predictions []float32
		labels      []bool
		want        float64
	}{
		{"perfect", []float32{0.1, 0.9, 0.2}, []bool{false, true, false}, 1},
		{"inverted", []float32{0.9, 0.1}, []bool{false, true}, 0},
		{"all tied", []float32{0.5, 0.5, 0.5}, []bool{false, true, true}, 0.5},
		{"one tie", []float32{0.5, 0.5, 0.1}, []bool{false, true, false}, 0.75},
	} {
		if got := AUC(test.predictions, test.labels); got != test.want {
			t.Errorf("%s: %g, want %g", test.name, got, test.want)
		}
	}
	if got := AUC([]float32{0.1, 0.2}, []bool{true, true}); !math.IsNaN(got) {
		t.Errorf("without non-clicks: %g, want NaN", got)
	}
}

// TestAUCIsExact compares with all pairs, and with the area under gonum's ROC.
func TestAUCIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "n")
		// Few different predictions, so that there are ties.
		predictions := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 12), func(i int) float32 { return float32(i) / 16 }), n, n).Draw(t, "predictions")
		labels := rapid.SliceOfN(rapid.Bool(), n, n).Draw(t, "labels")
		labels[0], labels[1] = true, false
		var twice, pairs int
		for i, a := range predictions {
			for j, b := range predictions {
				if labels[i] && !labels[j] {
					pairs++
					switch {
					case a > b:
						twice += 2
					case a == b:
						twice++
					}
				}
			}
		}
		got := AUC(predictions, labels)
		if want := float64(twice) / float64(2*pairs); got != want {
			t.Fatalf("AUC %g, want %g", got, want)
		}
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int { return int(16*predictions[a]) - int(16*predictions[b]) })
		var y []float64
		var classes []bool
		for _, i := range order {
			y, classes = append(y, float64(predictions[i])), append(classes, labels[i])
		}
		tpr, fpr, _ := stat.ROC(nil, y, classes, nil)
		if want := integrate.Trapezoidal(fpr, tpr); math.Abs(got-want) > 1e-12 {
			t.Fatalf("AUC %g, gonum has %g", got, want)
		}
	})
}

func TestLogLoss(t *testing.T) {
	logit := func(p float64) float32 { return float32(math.Log(p / (1 - p))) }
	got := LogLoss([]float32{0, logit(0.25), 100}, []bool{true, false, true})
	if want := (math.Log(2) + math.Log(4.0/3)) / 3; math.Abs(got-want) > 1e-7 {
		t.Errorf("log-loss %g, want %g", got, want)
	}
	if got := LogLoss([]float32{100, -200}, []bool{false, true}); math.Abs(got-150) > 1e-6 {
		t.Errorf("log-loss of certain errors: %g", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package data

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
		labels      []float32
		want        float64
	}{
		{"perfect", []float32{0.1, 0.9, 0.2}, []float32{0, 1, 0}, 1},
		{"inverted", []float32{0.9, 0.1}, []float32{0, 1}, 0},
		{"all tied", []float32{0.5, 0.5, 0.5}, []float32{0, 1, 1}, 0.5},
		{"one tie", []float32{0.5, 0.5, 0.1}, []float32{0, 1, 0}, 0.75},
	} {
		if got := areaUnderROC(test.predictions, test.labels); got != test.want {
			t.Errorf("%s: %g, want %g", test.name, got, test.want)
		}
	}
	if got := areaUnderROC([]float32{0.1, 0.2}, []float32{1, 1}); !math.IsNaN(got) {
		t.Errorf("without non-clicks: %g, want NaN", got)
	}
}

// TestAUCIsExact compares with all pairs, and with the area under gonum's ROC.
func TestAUCIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "n")
		// Few different predictions, so that there are ties.
		predictions := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 12), func(i int) float32 { return float32(i) / 16 }), n, n).Draw(t, "predictions")
		labels := rapid.SliceOfN(rapid.Map(rapid.Bool(), label), n, n).Draw(t, "labels")
		labels[0], labels[1] = 1, 0
		var twice, pairs int
		for i, a := range predictions {
			for j, b := range predictions {
				if labels[i] > labels[j] {
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
		got := areaUnderROC(predictions, labels)
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
			y, classes = append(y, float64(predictions[i])), append(classes, labels[i] > 0)
		}
		tpr, fpr, _ := stat.ROC(nil, y, classes, nil)
		if want := integrate.Trapezoidal(fpr, tpr); math.Abs(got-want) > 1e-12 {
			t.Fatalf("AUC %g, gonum has %g", got, want)
		}
	})
}

func TestLogLoss(t *testing.T) {
	logit := func(p float64) float32 { return float32(math.Log(p / (1 - p))) }
	got := *Classification.Measure([]float32{0, logit(0.25), 100}, []float32{1, 0, 1}).LogLoss
	if want := (math.Log(2) + math.Log(4.0/3)) / 3; math.Abs(got-want) > 1e-7 {
		t.Errorf("log-loss %g, want %g", got, want)
	}
	if got := *Classification.Measure([]float32{100, -200}, []float32{0, 1}).LogLoss; math.Abs(got-150) > 1e-6 {
		t.Errorf("log-loss of certain errors: %g", got)
	}
}

// Errors of regression have the unit of the labels, which classification does not have.
func TestErrorsOfRegression(t *testing.T) {
	m := Regression.Measure([]float32{1, -2, 3.5, 0}, []float32{1, 1, 3, -4})
	if m.AUC != nil || m.LogLoss != nil || m.RMSE == nil || m.MAE == nil {
		t.Fatalf("%+v", m)
	}
	if want := math.Sqrt((9 + 0.25 + 16) / 4.0); *m.RMSE != want || *m.MAE != 7.5/4 {
		t.Errorf("RMSE %g, MAE %g; want %g, %g", *m.RMSE, *m.MAE, want, 7.5/4)
	}
	var names []string
	for _, metric := range append(m.All(), Classification.Measure([]float32{1, 2}, []float32{0, 1}).All()...) {
		names = append(names, metric.Name+" "+metric.Key)
	}
	if want := []string{"RMSE rmse", "MAE mae", "AUC auc", "log-loss log_loss"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if !m.Finite() || Regression.Measure([]float32{float32(math.Inf(1))}, []float32{0}).Finite() || Classification.Measure([]float32{float32(math.NaN())}, []float32{0}).Finite() {
		t.Error("which metrics are finite is not told")
	}
}

func TestTasks(t *testing.T) {
	for i, name := range Tasks() {
		if task, err := ParseTask(name); err != nil || task != Task(i) || task.String() != name {
			t.Errorf("%s: %v, %v", name, task, err)
		}
	}
	if task, err := ParseTask(""); err != nil || task != Classification {
		t.Errorf("no name: %v, %v", task, err)
	}
	if _, err := ParseTask("ranking"); err == nil {
		t.Error("an unknown task is accepted")
	}
	if got := Regression.Prediction(-3); got != -3 {
		t.Errorf("a score of -3 predicts %g", got)
	}
	if got := Classification.Prediction(0); got != 0.5 {
		t.Errorf("a score of 0 predicts the probability %g", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package train

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/settings"
)

// drawWeights draws the weights of a batch's rows.
func drawWeights(t *rapid.T, b *data.Batch, dim int) []float32 {
	n := len(b.Keys) * dim
	return rapid.SliceOfN(rapid.Float32Range(-1, 1), n, n).Draw(t, "weights")
}

// scores computes the samples' scores from the definition, in float64, all pairs
// of features included.
func scores(b *data.Batch, weights []float64, dim int) []float64 {
	bias := len(b.Keys) - 1
	scores := make([]float64, b.Len())
	for i := range scores {
		features, values := b.Sample(i)
		x := func(j int) float64 {
			if values == nil {
				return 1
			}
			return float64(values[j])
		}
		z := weights[bias*dim]
		for j, f := range features {
			z += weights[int(f)*dim] * x(j)
			for k := range j {
				for c := 1; c < dim; c++ {
					z += weights[int(f)*dim+c] * weights[int(features[k])*dim+c] * x(j) * x(k)
				}
			}
		}
		scores[i] = z
	}
	return scores
}

// meanLoss computes the penalised mean loss from the definition, in float64.
func meanLoss(task data.Task, b *data.Batch, weights []float64, dim int, l2 float64) float64 {
	var sum float64
	bias := len(b.Keys) - 1
	for i, z := range scores(b, weights, dim) {
		switch label := float64(b.Labels[i]); {
		case task == data.Regression:
			sum += (z - label) * (z - label) / 2
		case label == 1:
			sum += math.Log1p(math.Exp(-z))
		default:
			sum += math.Log1p(math.Exp(z))
		}
	}
	var squares float64
	for _, w := range weights[:bias*dim] {
		squares += w * w
	}
	return sum/float64(b.Len()) + l2/2*squares
}

// TestGradientIsTheDerivative compares gradients with central differences of the
// loss.
func TestGradientIsTheDerivative(t *testing.T) {
	const l2, h = 0.125, 1e-4
	for name, model := range map[string]Model{
		"lr":                Linear{L2: l2},
		"fm":                FM{Factors: 3, L2: l2},
		"lr without L2":     Linear{},
		"fm, one factor":    FM{Factors: 1},
		"linear regression": Linear{For: data.Regression, L2: l2},
		"fm of regression":  FM{For: data.Regression, Factors: 3, L2: l2},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dim := model.Dim()
				penalty := float64(l2)
				if model == (Linear{}) || model == (FM{Factors: 1}) {
					penalty = 0
				}
				d := dataset(t, samples(t, rapid.Bool().Draw(t, "ones"), model.Task()))
				var b data.Batch
				rows := make([]int, d.Len())
				for i := range rows {
					rows[i] = i
				}
				b.Build(d, rows)
				weights := drawWeights(t, &b, dim)
				grads := make([]float32, len(weights))
				for i := range grads {
					grads[i] = float32(math.NaN()) // must be overwritten
				}
				loss := model.Gradient(&b, weights, grads)
				exact := make([]float64, len(weights))
				for i, w := range weights {
					exact[i] = float64(w)
				}
				if want := meanLoss(model.Task(), &b, exact, dim, 0); math.Abs(loss/float64(b.Len())-want) > 1e-5*(1+want) {
					t.Fatalf("mean loss %g, want %g", loss/float64(b.Len()), want)
				}
				for i := range exact {
					w := exact[i]
					exact[i] = w + h
					up := meanLoss(model.Task(), &b, exact, dim, penalty)
					exact[i] = w - h
					down := meanLoss(model.Task(), &b, exact, dim, penalty)
					exact[i] = w
					if want := (up - down) / (2 * h); math.Abs(float64(grads[i])-want) > 2e-4*(1+math.Abs(want)) {
						t.Fatalf("gradient %d of row %d is %g, want %g", i%dim, i/dim, grads[i], want)
					}
				}
				// A score of the largest samples has about a hundred terms, each rounded to
				// float32, and moves a probability by at most a quarter of its own error.
				predictions := make([]float32, b.Len())
				model.Score(&b, weights, predictions)
				for i, z := range scores(&b, exact, dim) {
					got, want := model.Task().Prediction(predictions[i]), 1/(1+math.Exp(-z))
					if model.Task() == data.Regression {
						want = z
					}
					if math.Abs(got-want) > 2e-5*(1+math.Abs(want)) {
						t.Fatalf("prediction of sample %d is %g, want %g", i, got, want)
					}
				}
			})
		})
	}
}

func TestNewModelHasThePenalty(t *testing.T) {
	for _, want := range []Model{Linear{L2: 0.5}, FM{Factors: 3, L2: 0.5}} {
		name := "lr"
		if want.Dim() > 1 {
			name = "fm"
		}
		if got, err := NewModel(name, data.Classification, 3, 0.5); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		for _, l2 := range []float64{-1, math.NaN(), math.Inf(1)} {
			if _, err := NewModel(name, data.Classification, 3, float32(l2)); err == nil {
				t.Errorf("%s takes a penalty of %g", name, l2)
			}
		}
	}
}

func TestNewModel(t *testing.T) {
	for _, test := range []struct {
		name    string
		factors int
		dim     int
	}{{"lr", 0, 1}, {"fm", 0, settings.Factors.Default + 1}, {"fm", 1, 2}, {"fm", 64, 65}} {
		m, err := NewModel(test.name, data.Classification, test.factors, 0)
		if err != nil || m.Dim() != test.dim {
			t.Errorf("%s, %d factors: %v, %v", test.name, test.factors, m, err)
		}
	}
	for _, test := range []struct {
		name    string
		factors int
	}{{"gbdt", 0}, {"fm", -1}, {"fm", 65}} {
		if _, err := NewModel(test.name, data.Classification, test.factors, 0); err == nil {
			t.Errorf("%s with %d factors is accepted", test.name, test.factors)
		}
	}
	if _, err := NewModel("fm", data.Classification, 65, 0); err == nil || !strings.Contains(err.Error(), "65 factors are not in [1, 64]") {
		t.Error(err)
	}
}

// TestNoPenalty checks that without a penalty no weights change the result, whatever their values.
func TestNoPenalty(t *testing.T) {
	grads := []float32{9, 9, 9, 9}
	penalty([]float32{float32(math.Inf(1)), float32(math.NaN()), -1, 1}, grads, 0, 1)
	for i, g := range grads {
		if math.Float32bits(g) != 0 {
			t.Errorf("gradient %d starts with %g", i, g)
		}
	}
}

func BenchmarkGradient(b *testing.B) {
	src, err := data.NewSynthetic(data.SyntheticConfig{Rows: 4096, Fields: 10}, data.Shard{})
	if err != nil {
		b.Fatal(err)
	}
	d, err := data.Load(src)
	if err != nil {
		b.Fatal(err)
	}
	const size = 256
	rows := make([]int, size)
	for i := range rows {
		rows[i] = i
	}
	for name, model := range map[string]Model{"lr": Linear{}, "fm8": FM{Factors: 8}, "fm24": FM{Factors: 24}} {
		b.Run(name, func(b *testing.B) {
			var batch data.Batch
			var weights, grads []float32
			for b.Loop() {
				batch.Build(d, rows)
				weights = resize(weights, len(batch.Keys)*model.Dim())
				grads = resize(grads, len(weights))
				model.Gradient(&batch, weights, grads)
			}
			b.ReportMetric(float64(b.N)*size/b.Elapsed().Seconds(), "samples/s")
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package train

import (
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// memory is a Source of samples in memory.
type memory struct {
	samples []Sample
	shard   Shard
	next    int
}

func (m *memory) Next(s *Sample) error {
	for m.next < len(m.samples) && m.next%m.shard.Count != m.shard.Index {
		m.next++
	}
	if m.next >= len(m.samples) {
		return io.EOF
	}
	s.Label = m.samples[m.next].Label
	s.Keys = append(s.Keys[:0], m.samples[m.next].Keys...)
	s.Values = append(s.Values[:0], m.samples[m.next].Values...)
	m.next++
	return nil
}

func (m *memory) Rewind() error { m.next = 0; return nil }
func (m *memory) Shard() Shard  { return m.shard }
func (m *memory) Rows() int     { return min(m.next, len(m.samples)) }
func (m *memory) Close() error  { return nil }

// samples draws a click log with few features, some of which occur twice in a sample.
func samples(t *rapid.T, ones bool, task Task) []Sample {
	labels := rapid.Map(rapid.Bool(), label)
	if task == Regression {
		labels = rapid.Float32Range(-5, 5)
	}
	key := rapid.OneOf(rapid.Uint64Range(0, 12), rapid.Uint64Max(BiasKey-1))
	value := rapid.Float32Range(-2, 2)
	if ones {
		value = rapid.Just(float32(1))
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Sample {
		keys := rapid.SliceOfN(key, 0, 6).Draw(t, "keys")
		return Sample{
			labels.Draw(t, "label"), keys,
			rapid.SliceOfN(value, len(keys), len(keys)).Draw(t, "values"),
		}
	}), 1, 20).Draw(t, "samples")
}

func dataset(t *rapid.T, samples []Sample) *Dataset {
	d, err := Load(&memory{samples: samples, shard: Shard{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

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
				features, values := b.sample(i)
				var keys []uint64
				for _, f := range features {
					keys = append(keys, b.Keys[f])
				}
				if values == nil {
					values = slices.Repeat([]float32{1}, len(features))
				}
				if !slices.Equal(keys, log[row].Keys) || !slices.Equal(values, log[row].Values) || b.labels[i] != log[row].Label {
					t.Fatalf("sample %d is %v %v %v, want %v", i, b.labels[i], keys, values, log[row])
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

// drawWeights draws the weights of a batch's rows.
func drawWeights(t *rapid.T, b *Batch, dim int) []float32 {
	n := len(b.Keys) * dim
	return rapid.SliceOfN(rapid.Float32Range(-1, 1), n, n).Draw(t, "weights")
}

// scores computes the samples' scores from the definition, in float64, all pairs
// of features included.
func scores(b *Batch, weights []float64, dim int) []float64 {
	bias := len(b.Keys) - 1
	scores := make([]float64, b.Len())
	for i := range scores {
		features, values := b.sample(i)
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
func meanLoss(task Task, b *Batch, weights []float64, dim int, l2 float64) float64 {
	var sum float64
	bias := len(b.Keys) - 1
	for i, z := range scores(b, weights, dim) {
		switch label := float64(b.labels[i]); {
		case task == Regression:
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
		"linear regression": Linear{For: Regression, L2: l2},
		"fm of regression":  FM{For: Regression, Factors: 3, L2: l2},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				dim := model.Dim()
				penalty := float64(l2)
				if model == (Linear{}) || model == (FM{Factors: 1}) {
					penalty = 0
				}
				d := dataset(t, samples(t, rapid.Bool().Draw(t, "ones"), model.Task()))
				var b Batch
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
					if model.Task() == Regression {
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

func TestExtremeScores(t *testing.T) {
	for _, test := range []struct {
		score      float32
		label      bool
		derivative float32
		loss       float64
	}{
		{0, true, -0.5, math.Ln2},
		{0, false, 0.5, math.Ln2},
		{1e30, true, 0, 0},
		{1e30, false, 1, float64(float32(1e30))},
		{-1e30, true, -1, float64(float32(1e30))},
		{-1e30, false, 0, 0},
	} {
		derivative, loss := logLoss(test.score, test.label)
		if derivative != test.derivative || math.Abs(loss-test.loss) > 1e-15*test.loss {
			t.Errorf("score %g, label %v: %g, %g; want %g, %g", test.score, test.label, derivative, loss, test.derivative, test.loss)
		}
	}
	// Diverged weights must be visible, so that a push refuses the gradient.
	if d, _ := logLoss(float32(math.NaN()), true); d == d {
		t.Errorf("derivative %g of a NaN score", d)
	}
}

func TestNewModelHasThePenalty(t *testing.T) {
	for _, want := range []Model{Linear{L2: 0.5}, FM{Factors: 3, L2: 0.5}} {
		name := "lr"
		if want.Dim() > 1 {
			name = "fm"
		}
		if got, err := NewModel(name, Classification, 3, 0.5); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		for _, l2 := range []float64{-1, math.NaN(), math.Inf(1)} {
			if _, err := NewModel(name, Classification, 3, float32(l2)); err == nil {
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
	}{{"lr", 0, 1}, {"fm", 0, DefaultFactors + 1}, {"fm", 1, 2}, {"fm", 64, 65}} {
		m, err := NewModel(test.name, Classification, test.factors, 0)
		if err != nil || m.Dim() != test.dim {
			t.Errorf("%s, %d factors: %v, %v", test.name, test.factors, m, err)
		}
	}
	for _, test := range []struct {
		name    string
		factors int
	}{{"gbdt", 0}, {"fm", -1}, {"fm", 65}} {
		if _, err := NewModel(test.name, Classification, test.factors, 0); err == nil {
			t.Errorf("%s with %d factors is accepted", test.name, test.factors)
		}
	}
	if _, err := NewModel("fm", Classification, 65, 0); err == nil || !strings.Contains(err.Error(), "65 factors are not in [1, 64]") {
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
	src, err := NewSynthetic(SyntheticConfig{Rows: 4096, Fields: 10}, Shard{})
	if err != nil {
		b.Fatal(err)
	}
	d, err := Load(src)
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
			var batch Batch
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

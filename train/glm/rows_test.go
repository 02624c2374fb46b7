// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/internal/test/realdata"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// Features are rounded to even, cut, and keep their sign.
func TestQuantise(t *testing.T) {
	for _, c := range []struct {
		x, magnitude float32
		bits         int
		want         int16
	}{
		{0, 0, 4, 0}, {1, 1, 4, 15}, {-1, 1, 4, -15}, {0.5, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 8, 255}, {-7, 7, 8, -255},
		{0.25, 1, 1, 0}, {0.75, 1, 1, 1}, {1.5, 16, 4, 2}, {2.5, 16, 4, 2}, {-3.5, 16, 4, -4}, {1e-45, 1e-45, 8, 255},
		{math.MaxFloat32, math.MaxFloat32, 8, 255}, {1e-45, math.MaxFloat32, 8, 0},
	} {
		if q := quantise(c.x, c.magnitude, c.bits); q != c.want {
			t.Errorf("%v of %v with %d bits is %d, want %d", c.x, c.magnitude, c.bits, q, c.want)
		}
	}
}

// Each column belongs to one worker, and all workers have the labels and the same digest.
func TestColumnsAreDivided(t *testing.T) {
	src := gisette(20, 100)
	whole, err := Load(t.Context(), src, 1, 0, 4)
	if err != nil {
		t.Fatal(err)
	}
	var keys []uint64
	for i := range 3 {
		r, err := Load(t.Context(), src, 3, i, 4)
		if err != nil {
			t.Fatal(err)
		}
		if r.Len() != 20 || !slices.Equal(r.labels, whole.labels) || r.Digest() != whole.Digest() || !slices.IsSorted(r.keys) {
			t.Errorf("worker %d: %+v", i, r)
		}
		for _, key := range r.keys {
			if packer.Split(3).Of(key) != i {
				t.Errorf("worker %d has column %d", i, key)
			}
		}
		keys = append(keys, r.keys...)
	}
	if slices.Sort(keys); !slices.Equal(keys, whole.keys) || len(keys) != 100 {
		t.Errorf("%d columns", len(keys))
	}
	src.rows[7].Values[3]++
	if other, err := Load(t.Context(), src, 3, 1, 4); err != nil || other.Digest() == whole.Digest() {
		t.Error("another value, and the same digest", err)
	}
}

// Values of a column that comes twice in a row may be too large together.
func TestRepeatedColumnOverflows(t *testing.T) {
	src := &table{rows: []data.Sample{{}, {Keys: []uint64{3, 4, 3}, Values: []float32{3e38, 1, 3e38}}}}
	if _, err := Load(t.Context(), src, 1, 0, 4); err == nil || !strings.Contains(err.Error(), "row 2: feature 3 comes more than once") {
		t.Error(err)
	}
}

// Labels outside the objective's domain are refused at their place.
func TestLabels(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	for _, c := range []struct {
		o          Objective
		text, want string
	}{
		{Logistic, "1 2:1\n2 3:1\n", `:2:1: label "2" is not 1, 0 or -1`},
		{Hinge, "-1 2:1\n1 3:1\n  0.5 3:1", `:3:3: label "0.5" is not 1, 0 or -1`},
		{Hinge, "-1 2:1\n0 3:1\n", ":2:1: label 0 in a file whose negative label is -1"},
		{Logistic, "nan 2:1\n", `:1:1: label "nan" is not 1, 0 or -1`},
		{Square, "1 2:1\n\nNaN 2:1\n", `:3:1: label "NaN" is not a finite float32`},
		{Square, "inf 2:1\n", `:1:1: label "inf" is not a finite float32`},
		{Square, "1 2:x\n", `:1:5: feature value "x"`},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		src, err := data.OpenFile(path, c.o.Task(), data.Shard{})
		if err != nil {
			t.Fatal(err)
		}
		var at *data.SyntaxError
		if _, err = Load(t.Context(), src, 2, 1, 4); !errors.As(err, &at) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, %q: %v", c.o, c.text, err)
		}
		src.Close()
	}
}

// On frappe, the loss of each epoch is within 2 % of that of float32 with 4 bits, and within 0.5 %
// with 8; and the area under the ROC curve of held-out rows within 0.005.
func TestFrappe(t *testing.T) {
	load := func(name string) *table {
		src, err := data.OpenFile(realdata.Path(t, name), data.Classification, data.Shard{})
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		rows := &table{}
		for {
			var s data.Sample
			if err := src.Next(&s); errors.Is(err, io.EOF) {
				return rows
			} else if err != nil {
				t.Fatal(err)
			}
			rows.rows = append(rows.rows, s)
		}
	}
	src, held := load("frappe-train.libfm.gz"), load("frappe-test.libfm.gz")
	cfg := Config{Objective: Logistic, Batch: 64, MicroBatch: 8, Epochs: 3, LearningRate: 2}
	area := func(score func(keys []uint64) float32) float64 {
		var scores, labels []float32
		for _, row := range held.rows {
			scores, labels = append(scores, score(row.Keys)), append(labels, row.Label)
		}
		return *data.Classification.Measure(scores, labels).AUC
	}
	losses, floats := reference(src, cfg)
	want := area(func(keys []uint64) (z float32) {
		for _, key := range keys {
			z += floats[key]
		}
		return z
	})
	for bits, bound := range map[int]float64{4: 0.02, 8: 0.005} {
		cfg.Bits = bits
		epochs, model := mustTrain(t, src, cfg, 2)
		for e, loss := range losses {
			if off := epochs[e].Loss/loss - 1; math.Abs(off) > bound {
				t.Errorf("%d bits, epoch %d: loss %.4f, in floats %.4f: %.2f %%", bits, e+1, epochs[e].Loss, loss, 100*off)
			}
		}
		w, err := model.Weights(cfg.Objective)
		if err != nil {
			t.Fatal(err)
		}
		m, err := w.Model()
		if err != nil {
			t.Fatal(err)
		}
		d, err := data.Load(held)
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Rewind(); err != nil {
			t.Fatal(err)
		}
		scores, err := train.Scores(t.Context(), w, m, d)
		if err != nil {
			t.Fatal(err)
		}
		got := *data.Classification.Measure(scores, d.Labels()).AUC
		t.Logf("%d bits: losses %.4f, area %.4f; in floats %.4f, %.4f", bits, epochs, got, losses, want)
		if math.Abs(got-want) > 0.005 {
			t.Errorf("%d bits: area %.4f, in floats %.4f", bits, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package weights

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

var comparable = cmp.AllowUnexported(Weights{})

// draw returns weights with features below limit. No row is zero, which libFM's format cannot
// distinguish from no row.
func draw(t *rapid.T, limit uint64) *Weights {
	w := &Weights{Factors: rapid.SampledFrom([]int{0, 1, 8, train.MaxFactors}).Draw(t, "factors")}
	x := rapid.Float32Min(math.SmallestNonzeroFloat32).Filter(func(x float32) bool { return !math.IsInf(float64(x), 0) })
	w.Bias = -x.Draw(t, "bias")
	w.features = slices.Sorted(slices.Values(rapid.SliceOfNDistinct(rapid.Uint64Max(limit), 0, 20, rapid.ID).Draw(t, "features")))
	w.rows = rapid.SliceOfN(x, len(w.features)*w.dim(), len(w.features)*w.dim()).Draw(t, "rows")
	return w
}

// Written weights are read again, bit for bit, in every format.
func TestSaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			limit := uint64(data.BiasKey - 1)
			if f.name == "libfm" {
				limit = 300
			}
			path := filepath.Join(dir, "weights."+f.name)
			rapid.Check(t, func(t *rapid.T) {
				w := draw(t, limit)
				var text bytes.Buffer
				if err := errors.Join(f.write(&text, w), os.WriteFile(path, text.Bytes(), 0o600)); err != nil {
					t.Fatal(err)
				}
				got, err := Load(path)
				if err != nil {
					t.Fatal(err)
				}
				if len(w.features) == 0 && (f.name == "libfm" || f.name == "xlearn") {
					w.Factors = got.Factors // there is no line to tell
				}
				if !slices.Equal(w.features, got.features) || !slices.Equal(w.rows, got.rows) || w.Bias != got.Bias || w.Factors != got.Factors {
					t.Fatalf("saved %+v, loaded %+v", w, got)
				}
			})
		})
	}
}

func small() *Weights {
	return &Weights{Factors: 2, Bias: 0.5, features: []uint64{1, 4}, rows: []float32{0.25, 1, -2, 1e-9, 3, 4.5}}
}

// TestTexts checks the exact formats, which other programs read.
func TestTexts(t *testing.T) {
	dir := t.TempDir()
	for format, want := range map[string]string{
		"csv":    "feature,weight,factor_1,factor_2\nbias,0.5,0,0\n1,0.25,1,-2\n4,1e-09,3,4.5\n",
		"libfm":  "#global bias W0\n0.5\n#unary interactions Wj\n0\n0.25\n0\n0\n1e-09\n#pairwise interactions Vj,f\n0 0\n1 -2\n0 0\n0 0\n3 4.5\n",
		"xlearn": "bias: 0.5\ni_1: 0.25\ni_4: 1e-09\nv_1: 1 -2\nv_4: 3 4.5\n",
	} {
		path := filepath.Join(dir, "weights."+format)
		if err := small().Save(path, FormatOf(path)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if diff := cmp.Diff(want, string(text)); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", format, err, diff)
		}
	}
	path := filepath.Join(dir, "weights.npz")
	if err := small().Save(path, "npz"); err != nil {
		t.Fatal(err)
	}
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	f, err := z.Open("factors.npy")
	if err != nil {
		t.Fatal(err)
	}
	array, err := io.ReadAll(f)
	want := "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,2,), }" + strings.Repeat(" ", 58) + "\n" +
		"\x00\x00\x80?\x00\x00\x00\xc0\x00\x00@@\x00\x00\x90@"
	if diff := cmp.Diff(want, string(array)); err != nil || diff != "" {
		t.Errorf("npz: %v (-want +got):\n%s", err, diff)
	}
}

// Files without weights are refused with their kind, or with the place of the fault.
func TestLoadRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights")
	for text, want := range map[string]string{
		"":                                     "the file is empty",
		"1 3:1 7:1\n":                          "it may be data, which --data takes",
		"-1 3:1 7:1\n":                         "it may be data, which --data takes",
		"LIBRAHOT....":                         "it is a hot set",
		"hello":                                "neither a checkpoint nor exported weights",
		"libra-ps":                             "corrupt",
		"feature,weight\nbias,0\n3,0.5\n3,1\n": "line 4: the feature comes twice",
		"feature,weight\n3,x\n":                `line 2: "x" is not a finite float32`,
		"feature,weight\n3,NaN\n":              `line 2: "NaN" is not a finite float32`,
		"feature,weight\n3,1e60\n":             "line 2",
		"feature,weight\nx,1\n":                `line 2: feature "x" is not an integer`,
		"feature,weight\n18446744073709551615,1\n":          "line 2: feature",
		"feature,weight,factor_1\n3,1\n":                    "record on line 2: wrong number of fields",
		"feature,click\n3,1\n":                              "line 1: columns feature, weight",
		"#global bias W0\nx\n":                              "line 2",
		"#global bias W0\n0\n#unary interactions Wj\n1 2\n": "line 4: 2 numbers where one is wanted",
		"#global bias W0\n0\n#unary interactions Wj\n1\n1\n#pairwise interactions Vj,f\n1 2\n1\n": "line 8: 1 factors, and 2 in the lines before",
		"#global bias W0\n0\n#unary interactions Wj\n1\n1\n#pairwise interactions Vj,f\n1 2\n":    "2 linear weights and latent weights of 1 features",
		"#global bias W0\n0\n#another\n1\n":                                                       `line 4: unknown section "#another"`,
		"bias: 1\ni_1: 2\ni_1: 3\n":                                                               "line 3: the feature comes twice",
		"bias: 1\ni_1: 2 3\n":                                                                     "line 2: 2 numbers where one is wanted",
		"bias: 1\nw_1: 2\n":                                                                       `line 2: unknown weight "w_1"`,
		"bias: 1\ni_1: 2\ni_2: 1\nv_1: 1 2\nv_2: 1\n":                                             "line 5: 1 factors, and 2 in the lines before",
		"bias: 1\ni_1: 2\nv_2: 1\n":                                                               "feature 1 has a linear weight and no latent weights",
		"bias: 1\ni_1: 2\nv_2: 1\nv_1: 1\n":                                                       "linear weights of 1 features and latent weights of 2",
		"bias: 1\nhello\n":                                                                        `line 2: "hello" is not a name`,
		"PK\x03\x04 but no more":                                                                  "not weights in npz format",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := Load(filepath.Join(path, "none")); err == nil {
		t.Error("no file is loaded")
	}
	if err := small().Save(path, "onnx"); err == nil || !strings.Contains(err.Error(), "csv, npz, libfm, xlearn") {
		t.Errorf("an unknown format: %v", err)
	}
	far := &Weights{features: []uint64{1 << 40}, rows: []float32{1}}
	if err := far.Save(path, "libfm"); err == nil || !strings.Contains(err.Error(), "choose another format") {
		t.Errorf("features far apart in libfm: %v", err)
	}
}

// Archives of other arrays are refused, and damaged ones.
func TestLoadRefusesArrays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights.npz")
	good := map[string]string{}
	for name, a := range map[string]struct {
		kind  string
		shape []int
		data  string
	}{
		"bias":     {npyFloat32, nil, "\x00\x00\x80\x3f"},
		"features": {npyUint64, []int{1}, "\x07\x00\x00\x00\x00\x00\x00\x00"},
		"weights":  {npyFloat32, []int{1}, "\x00\x00\x80\x3f"},
		"factors":  {npyFloat32, []int{1, 2}, "\x00\x00\x80\x3f\x00\x00\x80\x3f"},
	} {
		var b bytes.Buffer
		if err := npyHead(&b, a.kind, a.shape); err != nil {
			t.Fatal(err)
		}
		good[name] = b.String() + a.data
	}
	save := func(change, to string) error {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, name := range []string{"bias", "features", "weights", "factors"} {
			text := good[name]
			if name == change {
				text = to
			}
			f, err := z.Create(name + ".npy")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(f, text)
		}
		if err := errors.Join(z.Close(), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		return err
	}
	if err := save("", ""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, text, want string }{
		{"bias", "hello", "array bias is not in .npy format"},
		{"bias", good["bias"][:40], "array bias ends in its head"},
		{"bias", good["weights"][:len(good["weights"])-1], "less elements than its shape"},
		{"weights", strings.Replace(good["weights"], "<f4", "<f8", 1), "array weights: elements <f4"},
		{"weights", strings.Replace(good["weights"], "False", "True ", 1), "array weights: elements <f4 in C order"},
		{"weights", strings.Replace(good["weights"], "(1,)", "(0,)", 1), "1, 1 and 0 elements"},
		{"factors", strings.Replace(good["factors"], "(1,2,)", "(2,1,)", 1), "has shape [2 1]"},
		{"factors", strings.Replace(good["factors"], "(1,2,)", "(2000000000,2000000000,)", 1), "array factors: shape"},
		{"factors", strings.Replace(good["factors"], "(1,2,)", "(2000000,2000000,)", 1), "less elements than its shape"},
		{"factors", good["factors"][:len(good["factors"])-4] + "\x00\x00\xc0\x7f", "not all weights are finite"},
		{"features", good["features"][:len(good["features"])-8] + strings.Repeat("\xff", 8), "or is no feature"},
	} {
		if err := save(c.name, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: %v, want %q", c.name, c.text, err, c.want)
		}
	}
}

// The weights of a checkpoint are those of its rows; it names their model.
func TestLoadCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights.libra")
	store, err := ps.New(ps.Config{Dim: 3, Exp: ps.DefaultExp, Init: ps.Init{Seed: 3}})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Push([]uint64{12, data.BiasKey, 5}, []float32{1, 2, 3, 4, 0, 0, 5, 6, 7}); err != nil {
		t.Fatal(err)
	}
	store.Commit()
	for attachment, want := range map[string]string{
		`{"agreed": {"model.kind": "fm", "model.factors": "2"}}`:                          "",
		`{"agreed": {"model.kind": "fm", "model.factors": "3"}}`:                          "its rows have 3 floats instead of 4",
		`{"agreed": {"model.kind": "lr"}}`:                                                "0 factors, but its rows have 3 floats",
		`{"agreed": {"model.kind": "fm", "model.factors": "2", "model.task": "ranking"}}`: `model.task is "ranking", and this program knows classification and regression`,
		`{"agreed": {"model.kind": "ffm"}}`:                                               `model.kind is "ffm"`,
		`{"agreed": {"model.kind": "fm"}}`:                                                `model.factors is ""`,
		`{}`:                                                                              "does not tell its model",
		``:                                                                                "its attachment is not that of a training",
	} {
		if err := store.Checkpoint(path, []byte(attachment)); err != nil {
			t.Fatal(err)
		}
		w, err := Load(path)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", attachment, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rows := make([]float32, 9)
		store.Read([]uint64{5, 12, data.BiasKey}, rows)
		if diff := cmp.Diff(&Weights{Task: new(data.Task), Factors: 2, Bias: rows[6], features: []uint64{5, 12}, rows: rows[:6]}, w, comparable); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		got := make([]float32, 12)
		if err := w.Pull(t.Context(), []uint64{4, 5, 13, data.BiasKey}, got); err != nil {
			t.Fatal(err)
		}
		if want := slices.Concat([]float32{0, 0, 0}, rows[:3], []float32{0, 0, 0}, []float32{rows[6], 0, 0}); !slices.Equal(got, want) {
			t.Errorf("pulled %v, want %v", got, want)
		}
		if w.Kind() != "fm" || w.Len() != 2 {
			t.Errorf("%s, %d features", w.Kind(), w.Len())
		}
	}
}

// Ascending keys are looked up one after the other.
func TestPullOfSeveralFeatures(t *testing.T) {
	w := &Weights{Bias: 0.5, features: []uint64{2, 3, 5, 8, 13}, rows: []float32{20, 30, 50, 80, 130}}
	keys, got := []uint64{1, 2, 5, 6, 8, 13, 21, data.BiasKey}, make([]float32, 8)
	if err := w.Pull(t.Context(), keys, got); err != nil || !slices.Equal(got, []float32{0, 20, 50, 0, 80, 130, 0, 0.5}) {
		t.Errorf("%v: %v, %v", keys, got, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/weights"
)

// clicks is a click log in libFM's format, whose features determine the clicks.
func clicks(rows int, seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 1))
	var text strings.Builder
	for range rows {
		a, b := rng.IntN(20), rng.IntN(30)
		label := "-1"
		if rng.IntN(20)+rng.IntN(30) < (a*7)%20+(b*11)%30 {
			label = "1"
		}
		fmt.Fprintf(&text, "%s %d:1 %d:%g %d:1\n", label, a, 100+b, 0.5+rng.Float64(), 1000+rng.IntN(rows))
	}
	return text.String()
}

// trained trains rows of a click log for classification in this process, and returns the folder
// with the checkpoint, weights.libra, and unseen test rows, test.libfm.
func trained(t *testing.T, model string) string {
	t.Helper()
	const task = data.Classification
	dir := t.TempDir()
	rows, test := filepath.Join(dir, "train.libfm"), filepath.Join(dir, "test.libfm")
	if err := errors.Join(os.WriteFile(rows, []byte(clicks(3000, 1)), 0o600), os.WriteFile(test, []byte(clicks(1000, 2)), 0o600)); err != nil {
		t.Fatal(err)
	}
	m, err := train.NewModel(model, task, 4, 0)
	if err != nil {
		t.Fatal(err)
	}
	store, err := ps.New(train.SmallData.Store(m, 1))
	if err != nil {
		t.Fatal(err)
	}
	src, err := data.OpenFile(rows, task, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := train.Reference(t.Context(), store, []data.Source{src}, train.Config{Model: m, Epochs: 2, Batch: 16, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	attachment := fmt.Sprintf(`{"agreed": {"model.kind": %q, "model.factors": "%d"}}`, model, m.Dim()-1)
	if err := store.Checkpoint(filepath.Join(dir, "weights.libra"), []byte(attachment)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// python returns the program of docs/weights.md, and skips the test without Python.
func python(t *testing.T) (interpreter, program string) {
	t.Helper()
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on the PATH: the weights are not used in Python")
	}
	page, err := os.ReadFile("../../docs/weights.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)\n```python\n(.*?)\n```\n").FindSubmatch(page)
	if blocks == nil {
		t.Fatal("docs/weights.md has no program")
	}
	return interpreter, string(blocks[1])
}

// Weights give the same results wherever they are read: as a checkpoint, in each format, and in
// plain Python, whose AUC is equal to 1e-6.
func TestWeightsAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"fm", "lr"} {
		t.Run(model, func(t *testing.T) {
			dir := trained(t, model)
			path := func(name string) string { return filepath.Join(dir, name) }
			auc := func(from string) float64 {
				t.Helper()
				stdout, stderr, code := inProcess(t, "evaluate", "--weights", path(from), "--data", path("test.libfm"), "--json")
				var e Evaluation
				if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil || e.AUC == nil || e.Rows != 1000 || !(*e.LogLoss < 0.69) {
					t.Fatalf("%s: code %d, %v\n%s%s", from, code, err, stdout, stderr)
				}
				return *e.AUC
			}
			want := auc("weights.libra")
			if want < 0.7 {
				t.Errorf("AUC %g", want)
			}
			predicted, _, code := inProcess(t, "predict", "--weights", path("weights.libra"), "--data", path("test.libfm"))
			if lines := strings.Fields(predicted); code != 0 || len(lines) != 1000 {
				t.Errorf("code %d, %d predictions", code, len(lines))
			}
			for _, format := range weights.Formats() {
				out := "exported." + format
				if stdout, stderr, code := inProcess(t, "export", "--weights", path("weights.libra"), "--out", path(out)); code != 0 || !strings.Contains(stdout, "features of model "+model+" for classification with") {
					t.Fatalf("%s: code %d\n%s%s", format, code, stdout, stderr)
				}
				if got := auc(out); got != want {
					t.Errorf("%s: AUC %v, of the checkpoint %v", format, got, want)
				}
				file := path("predictions.txt")
				_, stderr, code := inProcess(t, "predict", "--weights", path(out), "--data", path("test.libfm"), "--out", file)
				if text, err := os.ReadFile(file); err != nil || code != 0 || string(text) != predicted {
					t.Errorf("%s: other predictions than those of the checkpoint: %v, code %d\n%s", format, err, code, stderr)
				}
			}
			interpreter, program := python(t)
			cmd := exec.CommandContext(t.Context(), interpreter, "-c", program, path("exported.csv"), path("test.libfm"))
			var errs bytes.Buffer
			cmd.Stderr = &errs
			text, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, &errs)
			}
			if got, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil || math.Abs(got-want) > 1e-6 {
				t.Errorf("Python has AUC %s, libra %v: %v", text, want, err)
			}
		})
	}
}

// Data that cannot be scored are refused with a remedy.
func TestWeightsOfAnotherKind(t *testing.T) {
	dir := trained(t, "lr")
	checkpoint, test := filepath.Join(dir, "weights.libra"), filepath.Join(dir, "test.libfm")
	rows := func(text string) string { return writeFile(t, "rows.txt", text) }
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"no flags":          {[]string{"predict"}, exitUsage, []string{"--weights and --data are required"}},
		"no weights":        {[]string{"evaluate", "--data", test}, exitUsage, []string{"--weights and --data are required"}},
		"no output":         {[]string{"export", "--weights", checkpoint}, exitUsage, []string{"--weights and --out are required"}},
		"no format":         {[]string{"export", "--weights", checkpoint, "--out", "model.txt"}, exitUsage, []string{"--format", "csv, npz, libfm, xlearn"}},
		"other format":      {[]string{"export", "--weights", checkpoint, "--out", "model.txt", "--format", "onnx"}, exitUsage, []string{`"onnx"`, "csv, npz, libfm, xlearn"}},
		"data as weights":   {[]string{"predict", "--weights", test, "--data", test}, exitFailure, []string{"test.libfm", "it may be data"}},
		"weights as data":   {[]string{"predict", "--weights", checkpoint, "--data", checkpoint}, exitFailure, []string{"weights.libra:1:1", "label"}},
		"missing weights":   {[]string{"predict", "--weights", "/no/such", "--data", test}, exitFailure, []string{"/no/such"}},
		"empty data":        {[]string{"evaluate", "--weights", checkpoint, "--data", rows("")}, exitFailure, []string{"rows.txt", "no rows"}},
		"other data":        {[]string{"evaluate", "--weights", checkpoint, "--data", rows("1 777777:1\n")}, exitFailure, []string{"none of its features has weights in", "take the weights of a training on data like this"}},
		"dense data":        {[]string{"evaluate", "--weights", checkpoint, "--data", rows("1,0.5,0,0\n")}, exitFailure, []string{"rows.txt:1:1", "CSV", "libfm"}},
		"dense blanks":      {[]string{"evaluate", "--weights", checkpoint, "--data", rows("1 0.5 0 0\n")}, exitFailure, []string{"rows.txt:1:3", "index:value"}},
		"no place to write": {[]string{"export", "--weights", checkpoint, "--out", "/no/such/weights.csv"}, exitFailure, []string{"--out", "/no/such", "make that folder"}},
	} {
		stdout, stderr, code := inProcess(t, c.args...)
		if code != c.code || stdout != "" {
			t.Errorf("%s: exit code %d, want %d; %q", name, code, c.code, stdout)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: no %q in: %s", name, want, stderr)
			}
		}
	}
	// libffm's fields are ignored, and a single label has no AUC.
	stdout, stderr, code := inProcess(t, "evaluate", "--weights", checkpoint, "--data", rows("1 0:3:1 1:100:0.5\n1 0:4:1\n"))
	if code != 0 || !strings.Contains(stdout, "undefined: all rows have the same label") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	stdout, _, _ = inProcess(t, "evaluate", "--weights", checkpoint, "--json", "--data", rows("1 0:3:1 1:100:0.5\n"))
	if strings.Contains(stdout, `"auc"`) || !strings.Contains(stdout, `"log_loss"`) {
		t.Error(stdout)
	}
}

// Weights of a training that diverged predict no numbers. No command prints others in their place,
// and a file of predictions stays as it was.
func TestDivergedWeightsPredictNothing(t *testing.T) {
	csv := writeFile(t, "weights.csv", "feature,weight,factor_1\nbias,0,0\n1,1,3e38\n2,1,3e38\n3,1,1\n")
	rows := writeFile(t, "rows.libfm", "1 3:1\n0 3:1\n1 1:1 2:1\n")
	out := writeFile(t, "predictions.txt", "before")
	for _, args := range [][]string{{"predict"}, {"predict", "--out", out}, {"evaluate"}} {
		_, errs, code := inProcess(t, append(args, "--weights", csv, "--data", rows)...)
		if want := fmt.Sprintf("%s: the weights predict no numbers, first for row 3 of %s: either their training diverged", csv, rows); code != exitFailure || !strings.Contains(errs, want) {
			t.Errorf("%v: exit code %d, %s, want %q", args, code, errs, want)
		}
	}
	if text, err := os.ReadFile(out); err != nil || string(text) != "before" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

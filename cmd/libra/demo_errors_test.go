// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rowsFile writes the rows of a data file.
func rowsFile(t *testing.T, n int, row func(i int) string) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintln(&text, row(i))
	}
	path := filepath.Join(t.TempDir(), "rows.libfm")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Processes end because the one that fails has gone, and are often gone first: the demo still names
// the cause, and shows what the others said.
func TestDemoNamesTheCause(t *testing.T) {
	t.Parallel()
	rows := rowsFile(t, 200, func(i int) string { // every second worker has the large features
		if i%4 < 2 {
			return fmt.Sprintf("%d %d:1 7:1e7", 1-i%2, 3+i%2)
		}
		return fmt.Sprintf("%d %d:1 9:1", 1-i%2, 3+i%2)
	})
	for i := range 10 {
		_, stderr, code := output(t, "demo", "--backend", "udp", "--data", rows, "--model", "lr", "--workers", "4", "--sync", "--baseline", "none")
		_, failure, _ := strings.Cut(stderr, "libra: ")
		cause, _, _ := strings.Cut(failure, "\nand ")
		if code != exitFailure || !strings.HasPrefix(cause, "worker ") || !strings.Contains(cause, "out of range") || strings.Contains(cause, "left before") {
			t.Fatalf("run %d: code %d, the cause is not first: %s", i, code, stderr)
		}
	}
}

// Features up to 100 train with the defaults, in the demo as with a cluster file, and with the
// initial values that result.json names.
func TestLargeFeaturesTrain(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 1))
	rows := rowsFile(t, 400, func(int) string {
		line := fmt.Sprintf("%.3f", 3*rng.NormFloat64())
		for feature := range 11 {
			line += fmt.Sprintf(" %d:%.2f", feature+1, 100*rng.Float64())
		}
		return line
	})
	args := []string{"--backend", "udp", "--data", rows, "--task", "regression", "--workers", "1", "--sync", "--epochs", "2"}
	r := runDemo(t, append(args, "--learning-rate", "0.001")...)
	if r.RMSE == nil || *r.RMSE > 10 || r.InitScale != 0.01 || r.InitialAccumulator != 1e-4 || r.LearningRate != 0.001 {
		t.Errorf("got %+v", r)
	}
	r = runDemo(t, append(args, "--learning-rate", "1e-5", "--init-scale", "0.002", "--initial-accumulator", "3")...)
	if r.InitScale != 0.002 || r.InitialAccumulator != 3 || r.WeightsSHA256 != r.ReferenceSHA256 {
		t.Errorf("got %+v", r)
	}
	for want, more := range map[string][]string{
		"--init-scale -1: it must be above zero":                                    {"--init-scale", "-1"},
		"--init-scale 1e-60: it must be above 0, and a float32":                     {"--init-scale", "1e-60"},
		"--init-scale 0.5: model lr begins with zeros, so leave it out":             {"--init-scale", "0.5", "--model", "lr"},
		"--initial-accumulator 0: it must be above zero":                            {"--initial-accumulator", "0"},
		"--initial-accumulator 1e+60: it must be above 0, and a float32":            {"--initial-accumulator", "1e60"},
		"--initial-accumulator 1: optimizer sgd has none, so leave it out, or give": {"--initial-accumulator", "1", "--optimizer", "sgd"},
		"--learning-rate 1e-60: it must be above 0, and a float32":                  {"--learning-rate", "1e-60"},
	} {
		if _, stderr, code := inProcess(t, append(append([]string{"demo"}, args...), more...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d: %s", more, code, stderr)
		}
	}
}

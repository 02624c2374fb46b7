// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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

// What the error says of too large gradients is tried: with the remedy, the training succeeds; a
// learning rate is blamed only where a lower one helps.
func TestRemediesOfLargeGradients(t *testing.T) {
	t.Parallel()
	const scale, rate, labels = "scale feature 7 (values up to %s), for example by its standard deviation", "lower the learning rate", "divide the labels by a number such as their standard deviation (they go up to 9e+06)"
	stamps := func(values ...float64) func(i int) string {
		return func(i int) string { return fmt.Sprintf("%d %d:1 7:%g", i%2, 3+i%2, values[i%len(values)]) }
	}
	real := func(label float64, value float64) func(i int) string {
		return func(i int) string { return fmt.Sprintf("%g 3:1 7:%g", label*float64(i%5), value) }
	}
	for name, c := range map[string]struct {
		rows   func(i int) string
		args   []string
		want   string
		others []string // must not be advised
		remedy func(i int) string
		more   []string // of the remedy
	}{
		"time stamp":           {stamps(1.7e9), []string{"--model", "lr"}, fmt.Sprintf(scale, "1.7e+09"), []string{rate}, stamps(1.1, 0.9), nil},
		"time stamp, low rate": {stamps(1.7e9), []string{"--model", "lr", "--learning-rate", "1e-38"}, fmt.Sprintf(scale, "1.7e+09"), []string{rate}, stamps(1.1, 0.9), nil},
		"time stamp, fm":       {stamps(1.7e9, 1), nil, fmt.Sprintf(scale, "1.7e+09"), []string{rate}, stamps(1.1, 0.9), nil},
		"time stamp, sync":     {stamps(1.7e9), []string{"--model", "lr", "--sync"}, fmt.Sprintf(scale, "1.7e+09"), []string{rate}, stamps(1.1, 0.9), nil},
		"no numbers":           {stamps(3e38), nil, fmt.Sprintf(scale, "3e+38"), []string{rate}, stamps(1.1, 0.9), nil},
		"regression":           {real(0.001, 1.7e9), []string{"--task", "regression"}, fmt.Sprintf(scale, "1.7e+09"), []string{rate, "labels"}, real(0.001, 1), nil},
		// Each of the two workers gets both labels.
		"labels":          {func(i int) string { return fmt.Sprintf("%d %d:1", 1000000+8000000*(i/2%2), i%2) }, []string{"--task", "regression"}, labels, []string{rate, "scale"}, real(1, 1), nil},
		"rate":            {stamps(1), []string{"--optimizer", "sgd", "--learning-rate", "1e30", "--epochs", "3"}, "because training diverges: " + rate, []string{"scale", "labels"}, nil, []string{"--learning-rate", "0.1"}},
		"initial weights": {stamps(1), []string{"--init-scale", "1e5"}, "lower the bound of the initial weights (model.init_scale, --init-scale)", []string{rate, "scale "}, nil, []string{"--init-scale", "0.01"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(rows func(int) string, more ...string) (stderr string, code int) {
				args := append([]string{"demo", "--backend", "udp", "--workers", "2", "--baseline", "none", "--data", rowsFile(t, 300, rows)}, c.args...)
				_, stderr, code = output(t, append(args, more...)...)
				return stderr, code
			}
			stderr, code := run(c.rows)
			_, remedy, _ := strings.Cut(stderr, "gradients are too large")
			remedy, _, _ = strings.Cut(remedy, "\n")
			if code != exitFailure || !strings.Contains(remedy, c.want) {
				t.Fatalf("code %d: %s", code, stderr)
			}
			if strings.Contains(stderr, "libra-demo-") {
				t.Errorf("it names a file that is gone: %s", stderr)
			}
			if slices.Contains(c.others, rate) && strings.Contains(stderr, "learning_rate") {
				t.Errorf("a process blames the learning rate: %s", stderr)
			}
			for _, other := range c.others {
				if strings.Contains(remedy, other) {
					t.Errorf("it also advises %q: %s", other, remedy)
				}
			}
			better := c.rows
			if c.remedy != nil {
				better = c.remedy
			}
			if stderr, code := run(better, c.more...); code != 0 {
				t.Errorf("with the remedy: code %d: %s", code, stderr)
			}
		})
	}
}

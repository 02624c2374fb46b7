// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/weights"
)

// ratings are rows with a real label, which two features determine except for some noise.
func ratings(rows int, seed uint64) string {
	rng := rand.New(rand.NewPCG(seed, 2))
	var text strings.Builder
	for range rows {
		user, item := rng.IntN(20), rng.IntN(30)
		label := 3 + float64(user*7%20)/10 - float64(item*11%30)/15 + 0.1*rng.NormFloat64()
		fmt.Fprintf(&text, "%.3f %d:1 %d:1\n", label, user, 100+item)
	}
	return text.String()
}

// Regression predicts numbers: a whole cluster trains like one process, bit for bit, and its
// weights give the same predictions wherever they are read.
func TestRegression(t *testing.T) {
	t.Parallel()
	train, test := writeFile(t, "train.libfm", ratings(3000, 1)), writeFile(t, "test.libfm", ratings(500, 2))
	for _, model := range []string{"lr", "fm"} {
		t.Run(model, func(t *testing.T) {
			dir := t.TempDir()
			r := runDemo(t, "--task", "regression", "--model", model, "--backend", "udp", "--data", train, "--test", test,
				"--workers", "2", "--epochs", "6", "--sync", "--learning-rate", "0.2", "--baseline", "one-process,server-only", "--out", dir)
			if r.Task != "regression" || r.AUC != nil || r.LogLoss != nil || r.RMSE == nil || r.MAE == nil {
				t.Fatalf("%+v", r)
			}
			// The labels' standard deviation is above 0.8, and the noise is 0.1.
			if *r.RMSE > 0.3 || *r.MAE > *r.RMSE || r.WeightsSHA256 != r.ReferenceSHA256 || !cmp.Equal(r.Metrics, r.OneProcess.Metrics) || !cmp.Equal(r.Metrics, r.ServerOnly.Metrics) {
				t.Errorf("RMSE %g, MAE %g: %+v", *r.RMSE, *r.MAE, r)
			}
			if len(r.Evaluations) != 6 || !cmp.Equal(r.Evaluations[5].Metrics, r.Metrics) || *r.Evaluations[0].RMSE <= *r.RMSE {
				t.Errorf("evaluations %+v", r.Evaluations)
			}
			for _, chart := range []string{"rmse.svg", "mae.svg"} {
				text, err := os.ReadFile(filepath.Join(dir, chart))
				if err != nil || !strings.Contains(string(text), strings.ToUpper(chart[:len(chart)-4])+" of held-out rows") {
					t.Errorf("%s: %v", chart, err)
				}
			}
			checkpoint := filepath.Join(dir, "weights.libra")
			evaluate(t, checkpoint, test, r.Metrics)
			predictions := predict(t, checkpoint, test)
			for _, format := range weights.Formats() {
				out := filepath.Join(dir, "exported."+format)
				if stdout, stderr, code := inProcess(t, "export", "--weights", checkpoint, "--out", out); code != 0 || !strings.Contains(stdout, "for regression") {
					t.Fatalf("%s: code %d\n%s%s", format, code, stdout, stderr)
				}
				evaluate(t, out, test, r.Metrics, "--task", "regression")
				if diff := cmp.Diff(predictions, predict(t, out, test, "--task", "regression")); diff != "" {
					t.Errorf("%s: %s", format, diff)
				}
			}
			inPython(t, filepath.Join(dir, "exported.csv"), test, *r.RMSE)
		})
	}
}

// evaluate compares the metrics of 'libra evaluate' with the known ones.
func evaluate(t *testing.T, from, data string, want data.Metrics, more ...string) {
	t.Helper()
	stdout, stderr, code := inProcess(t, append([]string{"evaluate", "--weights", from, "--data", data, "--json"}, more...)...)
	var e Evaluation
	if err := json.Unmarshal([]byte(stdout), &e); code != 0 || err != nil {
		t.Fatalf("%s: code %d, %v\n%s", from, code, err, stderr)
	}
	conforms(t, "libra evaluate", stdout)
	if diff := cmp.Diff(Evaluation{500, "regression", want}, e); diff != "" {
		t.Errorf("%s: %s", from, diff)
	}
}

func predict(t *testing.T, from, data string, more ...string) []string {
	t.Helper()
	stdout, stderr, code := inProcess(t, append([]string{"predict", "--weights", from, "--data", data}, more...)...)
	lines := strings.Fields(stdout)
	if code != 0 || len(lines) != 500 {
		t.Fatalf("%s: code %d, %d predictions\n%s", from, code, len(lines), stderr)
	}
	return lines
}

// inPython compares the RMSE of the program of docs/weights.md, changed as the page describes, with
// the known one.
func inPython(t *testing.T, from, data string, want float64) {
	t.Helper()
	interpreter, program := python(t)
	page, err := os.ReadFile("../../docs/weights.md")
	if err != nil {
		t.Fatal(err)
	}
	const keep, show = "scored.append((score, float(label)))", "print((sum((score - label) ** 2 for score, label in scored) / len(scored)) ** 0.5)"
	if !strings.Contains(string(page), "`"+keep+"`") || !strings.Contains(string(page), "\n"+show+"\n") {
		t.Fatal("docs/weights.md has no program for regression")
	}
	program, _, _ = strings.Cut(program, "\n# The area under")
	program = strings.Replace(program, "scored.append((score, float(label) > 0))", keep, 1) + "\n" + show + "\n"
	text, err := exec.CommandContext(t.Context(), interpreter, "-c", program, from, data).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil || math.Abs(got-want) > 1e-6 {
		t.Errorf("Python has RMSE %s, libra %v: %v", text, want, err)
	}
}

// Without a file the demo draws labels for the task, and asynchronous workers learn them.
func TestSyntheticRegression(t *testing.T) {
	t.Parallel()
	r := runDemo(t, "--task", "regression", "--backend", "udp", "--rows", "30000", "--workers", "2", "--epochs", "1")
	if r.Data != "synthetic" || r.RMSE == nil || r.OneProcess.RMSE == nil || *r.RMSE > 1.2**r.OneProcess.RMSE {
		t.Errorf("%+v", r)
	}
}

// A cluster file names the task, and the services report errors in the unit of the labels.
func TestRegressionByHand(t *testing.T) {
	t.Parallel()
	config := handMade(t)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	train, test := writeFile(t, "train.libfm", ratings(400, 1)), writeFile(t, "test.libfm", ratings(100, 2))
	// handMade's rows have indices of their own, so that its hot rows are few of these.
	changed := strings.NewReplacer("kind: fm,", "kind: fm, task: regression,").Replace(string(text))
	at := strings.Index(changed, "data: {train:")
	changed = changed[:at] + fmt.Sprintf("data: {train: %s, test: %s}\n", train, test)
	if err := os.WriteFile(config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	sw := libra(t.Context(), "switch", "--config", config)
	if err := sw.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sw.Wait() }()
	defer func() { _ = sw.Cancel() }()
	var workers []*exec.Cmd
	for _, id := range []string{"1", "4"} {
		worker := libra(t.Context(), "worker", "--config", config, "--id", id)
		out := new(strings.Builder)
		worker.Stdout, worker.Stderr = out, out
		if err := worker.Start(); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, worker)
		defer func() {
			if !strings.Contains(out.String(), ", RMSE ") || strings.Contains(out.String(), "log-loss") {
				t.Errorf("worker %s printed: %s", id, out)
			}
		}()
	}
	server := libra(t.Context(), "ps", "--config", config, "--json")
	var log strings.Builder
	server.Stderr = &log
	printed, err := server.Output()
	for _, worker := range workers {
		if failed := worker.Wait(); failed != nil {
			t.Error(failed)
		}
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	conforms(t, "libra ps", string(printed))
	if !strings.Contains(string(printed), `"rmse":`) || strings.Contains(string(printed), `"auc":`) || !strings.Contains(log.String(), "rmse=") {
		t.Errorf("%s\n%s", printed, log.String())
	}
}

// An error about the task has a remedy.
func TestTaskMistakes(t *testing.T) {
	dir := trained(t, "lr")
	checkpoint, real := filepath.Join(dir, "weights.libra"), writeFile(t, "ratings.libfm", "3.5 1:1\n2 2:1\n")
	exported := filepath.Join(dir, "weights.csv")
	if _, stderr, code := inProcess(t, "export", "--weights", checkpoint, "--out", exported); code != 0 {
		t.Fatal(stderr)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"unknown":             {[]string{"evaluate", "--weights", checkpoint, "--data", real, "--task", "ranking"}, exitUsage, `--task ranking: "ranking" is none of classification, regression`},
		"unknown in the demo": {[]string{"demo", "--task", "ranking"}, exitUsage, "--task ranking"},
		"another":             {[]string{"predict", "--weights", checkpoint, "--data", real, "--task", "regression"}, exitUsage, "was trained for classification: leave --task out"},
		"real labels":         {[]string{"evaluate", "--weights", exported, "--data", real}, exitFailure, "ratings.libfm:1:1: label \"3.5\" is not 1, 0 or -1: to predict numbers and not clicks, choose task regression"},
		"demo, real labels":   {[]string{"demo", "--backend", "udp", "--data", real, "--workers", "1"}, exitFailure, "choose task regression"},
		"diverged":            {[]string{"demo", "--backend", "udp", "--data", writeFile(t, "clicks.libfm", clicks(60, 1)), "--workers", "1", "--epochs", "1", "--learning-rate", "1e38", "--json"}, exitFailure, "training diverged: lower --learning-rate"},
		"gradients diverge":   {[]string{"demo", "--backend", "udp", "--data", writeFile(t, "clicks.libfm", clicks(300, 1)), "--workers", "1", "--epochs", "3", "--optimizer", "sgd", "--learning-rate", "1e30"}, exitFailure, "because training diverges: lower the learning rate"},
		"large labels":        {[]string{"demo", "--backend", "udp", "--task", "regression", "--data", writeFile(t, "large.libfm", strings.Repeat("1e6 1:1\n9e6 2:1\n", 100)), "--workers", "1"}, exitFailure, "divide the labels by a number"},
	} {
		if _, stderr, code := output(t, c.args...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, want %d\n%s", name, code, c.code, stderr)
		}
	}
	// Predictions need no labels.
	if stdout, stderr, code := inProcess(t, "predict", "--weights", checkpoint, "--data", real); code != 0 || len(strings.Fields(stdout)) != 2 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}

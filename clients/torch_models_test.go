// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
)

// trained is what an example reports about the model that it has trained with a backend.
type trained struct {
	Backend, Weights string
	Ranks, Steps     int
	AUC, Perplexity  float64
	StepP50          float64  `json:"step_p50_ms"`
	Sent             *float64 `json:"sent_mb_step"` // null where /proc is not mounted
	EmbeddingsZeros  float64  `json:"embeddings_zeros"`
	DeepZeros        float64  `json:"deep_zeros"`
	PairsZeros       float64  `json:"pairs_zeros"`
}

// reports returns the reports in what an example prints, by backend.
func reports(t *testing.T, out string) map[string]trained {
	t.Helper()
	found := map[string]trained{}
	for line := range strings.Lines(out) {
		_, line, ok := strings.Cut(line, `{"backend"`)
		if !ok {
			continue
		}
		var r trained
		if err := json.Unmarshal([]byte(`{"backend"`+line), &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if _, known := found[r.Backend]; known || r.StepP50 <= 0 || r.Sent == nil && os.Getenv(interpreter) == "" {
			t.Errorf("reported %s", line)
		}
		found[r.Backend] = r
	}
	return found
}

// TestTorchModels trains the examples' models with gloo and with Libra, in turns, with Libra alone,
// and in one process. All have learnt as much, and both runs with Libra end with the same weights.
func TestTorchModels(t *testing.T) {
	t.Parallel()
	frappe := []string{"--data", shorter(t, "frappe-train.libfm.gz", 16384), "--test", shorter(t, "frappe-test.libfm.gz", 8192), "--batch", "256"}
	text := []string{"--data", shorter(t, "wikitext2-valid.txt.gz", 300), "--hidden", "16", "--width", "16", "--sampled", "128", "--unroll", "10"}
	for _, test := range []struct {
		name, options string
		data          []string
		steps         int
		reached       func(trained) bool
	}{
		{"ncf", "--factors 8 --rate 0.05", frappe, 96, func(r trained) bool { return r.AUC > 0.9 }},
		{"deeplight", "--hidden 16 --warm-up 20", frappe, 96, func(r trained) bool {
			return r.AUC > 0.8 && r.EmbeddingsZeros > 0.2 && r.DeepZeros > 0.4 && r.PairsZeros > 0.2
		}},
		{"lstm", "--epochs 10 --batch 16", text, 96, func(r trained) bool { return 1 < r.Perplexity && r.Perplexity < 500 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			program := append([]string{"python/examples/" + test.name + ".py", "--json", "--steps", "96"}, test.data...)
			program = append(program, strings.Fields(test.options)...)
			run2 := func(backend string) map[string]trained {
				options := strings.Fields("--sync --optimizer none --hosts 2 --workers 2 --dim 16")
				return reports(t, run(t, torch(t, options, append(program, "--backend", backend)...)))
			}
			both, again := run2("gloo,libra"), run2("libra")
			alone := reports(t, ranksOf(t, 1, nil, append(program, "--backend", "none")...)[0])
			if len(both) != 2 || len(again) != 1 || len(alone) != 1 {
				t.Fatalf("reported %v, %v and %v", both, again, alone)
			}
			libra := both["libra"]
			if libra.Weights == "" || libra.Weights != again["libra"].Weights {
				t.Errorf("two runs end with the weights %q and %q", libra.Weights, again["libra"].Weights)
			}
			for _, r := range []trained{libra, both["gloo"], alone["none"]} {
				t.Logf("%+v", r)
				ranks := 2
				if r.Backend == "none" {
					ranks = 1
				}
				if r.Ranks != ranks || r.Steps != test.steps || !test.reached(r) {
					t.Errorf("reached %+v", r)
				}
				if math.Abs(r.AUC-libra.AUC) > 0.005 || math.Abs(r.Perplexity/libra.Perplexity-1) > 0.01 {
					t.Errorf("reached %+v, with Libra %+v", r, libra)
				}
			}
		})
	}
}

// TestTorchModelsRefuse trains on what is no data, and with options that cannot be.
func TestTorchModelsRefuse(t *testing.T) {
	t.Parallel()
	folder := openDir(t)
	for rank, out := range ranksOf(t, 2, []string{"LIBRA_FOLDER=" + folder, "TMPDIR=" + folder, "LIBRA_JOB="}, "python/test/torch_examples.py") {
		if !strings.Contains(out, "all refused") {
			t.Errorf("rank %d printed %s", rank, out)
		}
	}
}

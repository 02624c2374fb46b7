// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"regexp"
	"strings"
	"testing"
)

// Every field has a name, a flag and a sentence of its own.
func TestFields(t *testing.T) {
	seen := map[string]string{}
	for _, f := range All() {
		if !regexp.MustCompile(`^(job|model|data)\.[a-z0-9_]+$`).MatchString(f.Name()) {
			t.Errorf("%s is no field of the cluster file", f.Name())
		}
		if about := f.Sentence(); !regexp.MustCompile(`^[A-Z].*[^.]$`).MatchString(about) || strings.ContainsAny(about, "|`\n") {
			t.Errorf("%s: %q", f.Name(), about)
		}
		for _, word := range []string{f.Name(), "--" + f.Flag(), f.Sentence()} {
			if other, twice := seen[word]; twice {
				t.Errorf("%s and %s have %q in common", other, f.Name(), word)
			}
			seen[word] = f.Name()
		}
	}
}

func TestHelp(t *testing.T) {
	for got, want := range map[string]string{
		Harvest.Help(""):              "time between two harvests of the sums; not with --sync",
		Harvest.Help(Harvest.Usual()): "time between two harvests of the sums; not with --sync (default 20ms)",
		Batch.Help("any"):             "rows of the data in a mini-batch (default any)",
		Harvest.Possible():            "1µs..1h; not with sync",
		Batch.Possible():              "1 or more",
		Seed.Possible():               "",
		Model.Flag():                  "model",
		LearningRate.Flag():           "learning-rate",
		LearningRate.Usual():          "0.05",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A recipe has the default where it has no value of its own.
func TestRecipes(t *testing.T) {
	f := Field[int]{Default: 3, clickLog: 4}
	if f.SmallData() != 3 || f.ClickLog() != 4 {
		t.Errorf("%d and %d, want 3 and 4", f.SmallData(), f.ClickLog())
	}
}

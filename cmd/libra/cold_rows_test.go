// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// Rows of features that were never trained, or of none, have predictions, those of the intercept;
// alone they have a warning too. To measure weights on such data alone is a mistake.
func TestColdRows(t *testing.T) {
	t.Parallel()
	w := writeFile(t, "w.csv", "feature,weight\nbias,0.5\n3,1\n")
	const cold, warm, unseen, none = "0.622459331\n", "0.817574476\n", "none of the features has weights", "no row has a feature"
	long := strings.Repeat("1 99:1\n", scoredRows+1) // more rows than are read at once
	for name, c := range map[string]struct {
		rows, want, warning string
		code                int // of evaluate
		refusal             string
	}{
		"one cold row":             {"1 99:1\n", cold, unseen, exitFailure, "none of its features has weights in"},
		"a cold and a warm one":    {"1 99:1\n0 3:1\n", cold + warm, "", 0, ""},
		"a row without features":   {"1\n", cold, none, 0, ""},
		"such and a cold one":      {"1\n0 99:1 98:1\n", cold + cold, unseen, exitFailure, "none of its features has weights in"},
		"warm after many":          {long + "0 3:1\n", strings.Repeat(cold, scoredRows+1) + warm, "", 0, ""},
		"many cold ones":           {long, strings.Repeat(cold, scoredRows+1), unseen, exitFailure, "none of its features has weights in"},
		"cold after many warm":     {strings.Repeat("1 3:1\n", scoredRows) + "0 99:1\n", strings.Repeat(warm, scoredRows) + cold, "", 0, ""},
		"none after many cold":     {long + "1\n", strings.Repeat(cold, scoredRows+2), unseen, exitFailure, "none of its features has weights in"},
		"many without any feature": {strings.Repeat("1\n", scoredRows+1), strings.Repeat(cold, scoredRows+1), none, 0, ""},
	} {
		rows := writeFile(t, "rows.libfm", c.rows)
		stdout, stderr, code := output(t, "predict", "--weights", w, "--data", rows)
		if code != 0 || stdout != c.want || !strings.Contains(stderr, c.warning) || (c.warning == "") != (stderr == "") {
			t.Errorf("%s: code %d, %d bytes, %s", name, code, len(stdout), stderr)
		}
		_, stderr, code = output(t, "evaluate", "--weights", w, "--data", rows)
		if code != c.code || !strings.Contains(stderr, c.refusal) {
			t.Errorf("%s, evaluate: code %d, %s", name, code, stderr)
		}
	}
	// Values beyond those of the training are not blamed on the training alone.
	rows := writeFile(t, "rows.libfm", "1 3:1\n0 3:3e38 99:1 3:3e38\n")
	_, stderr, code := output(t, "evaluate", "--weights", w, "--data", rows)
	if code != exitFailure || !strings.Contains(stderr, "first for row 2 of") || !strings.Contains(stderr, "then scale them alike") {
		t.Errorf("code %d: %s", code, stderr)
	}
}

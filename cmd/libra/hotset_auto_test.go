// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// 'libra hotset build --hot-rows auto' says what it expects, and takes more rows for a higher load.
func TestHotsetAuto(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "train.libfm")
	var text strings.Builder
	for i := range 400 { // feature 1 in each row, 2 in every second one, and some of which each is in few
		fmt.Fprintf(&text, "1 1:1 %d:1 %d:1\n", 2+i%2, 10+i%97)
	}
	if err := os.WriteFile(data, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	build := func(arg ...string) HotSet {
		t.Helper()
		out := filepath.Join(t.TempDir(), "hot.libra")
		arg = append([]string{"hotset", "build", "--data", data, "--out", out, "--model", "lr", "--rate", "1", "--hot-rows", "auto"}, arg...)
		plain, stderr, code := inProcess(t, arg...)
		if code != 0 || !strings.Contains(plain, "expected: ") || !strings.Contains(plain, " sums in a harvest; a server alone takes ") {
			t.Fatalf("code %d: %s%s", code, plain, stderr)
		}
		stdout, stderr, code := inProcess(t, append(arg, "--json")...)
		var h HotSet
		if err := json.Unmarshal([]byte(stdout), &h); err != nil || code != 0 {
			t.Fatalf("code %d, %v: %s%s", code, err, stdout, stderr)
		}
		return h
	}
	h := build()
	if math.Round(h.Expected.Server) != 25 { // by key, of few rows
		t.Errorf("a server alone takes %v ns", h.Expected.Server)
	}
	if h.Rows != 101 || h.Expected == nil || h.Expected.Rows != h.Rows || h.Expected.Both <= 0 || h.Expected.Both >= h.Expected.Server {
		t.Errorf("%+v, expected %+v; want all 101 rows", h, h.Expected)
	}
	if numbered := build("--numbered"); numbered.Expected.Server >= h.Expected.Server {
		t.Errorf("a server alone takes %v by numbers, and %v by keys", numbered.Expected.Server, h.Expected.Server)
	}
	for want, arg := range map[string][]string{
		"--p is for Principle 1":        {"--hot-rows", "auto", "--p", "0.5"},
		"--switches is for Principle 1": {"--hot-rows", "auto", "--switches", "2"},
		"--workers 0:":                  {"--hot-rows", "auto", "--workers", "0"},
		"--push-rate -1:":               {"--hot-rows", "auto", "--push-rate", "-1"},
		"--push-rate NaN:":              {"--hot-rows", "auto", "--push-rate", "NaN"},
		"--push-rate 1e+308: it is too low or too high for 100 workers": {"--hot-rows", "auto", "--push-rate", "1e308", "--workers", "100", "--harvest-period", "1s"},
		"--push-rate 5e-324: it is too low or too high for 4 workers":   {"--hot-rows", "auto", "--push-rate", "5e-324"},
		"--push-rows 0:":                          {"--hot-rows", "auto", "--push-rows", "0"},
		"--harvest-period 0s:":                    {"--hot-rows", "auto", "--harvest-period", "0s"},
		"--workers is for --hot-rows auto":        {"--workers", "2"},
		"--harvest-period is for --hot-rows auto": {"--hot-rows", "7", "--harvest-period", "1s"},
		"--numbered is for --hot-rows auto":       {"--numbered"},
		"--apart is for --hot-rows auto":          {"--apart"},
		"--hot-rows some:":                        {"--hot-rows", "some"},
		"--hot-rows -1:":                          {"--hot-rows", "-1"},
	} {
		out := filepath.Join(t.TempDir(), "hot.libra")
		_, stderr, code := inProcess(t, append([]string{"hotset", "build", "--data", data, "--out", out}, arg...)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d, %q; want %q", arg, code, stderr, want)
		}
	}
}

// A number of hot rows is a promise: all rows are counted where a sample has too few keys, and
// where all have, it is said.
func TestHotsetOfSoManyRows(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 1000 { // each with a key of its own
		fmt.Fprintf(&text, "1 %d:1\n", i)
	}
	data := writeFile(t, "train.libfm", text.String())
	for want, arg := range map[string][]string{
		"": {"--hot-rows", "900"},
		"only 1001 rows are hot, and not the 1002 of --hot-rows: the data have no more keys\n":                     {"--hot-rows", "1002"},
		" of --hot-rows: the sample has no more keys: leave out --rate, so that all rows are counted\n":            {"--hot-rows", "900", "--rate", "0.5"},
		"--counters 899: they cannot find the 900 rows of --hot-rows: give several times as many, or leave it out": {"--hot-rows", "900", "--counters", "899"},
	} {
		out := filepath.Join(t.TempDir(), "hot.libra")
		_, stderr, code := inProcess(t, append([]string{"hotset", "build", "--model", "lr", "--data", data, "--out", out}, arg...)...)
		if refused := strings.HasPrefix(want, "--"); (code == exitUsage) != refused || !refused && code != 0 || !strings.Contains(stderr, want) || want == "" && stderr != "" {
			t.Errorf("%v: code %d: %q, want %q", arg, code, stderr, want)
		}
	}
}

// The demo takes rows by cost too: not all of a log whose rows are updated about as often.
func TestDemoAuto(t *testing.T) {
	t.Parallel()
	rows := []string{"--backend", "udp", "--rows", "4000", "--epochs", "1", "--workers", "1", "--baseline", "none", "--hot-rows"}
	all, auto := runDemo(t, append(rows, "6000")...), runDemo(t, append(rows, "auto")...)
	if auto.HotRows < 1 || auto.HotRows >= all.HotRows || auto.HotPairs == 0 {
		t.Errorf("%d rows of %d are hot, with %d of %d pairs", auto.HotRows, all.HotRows, auto.HotPairs, auto.Pairs)
	}
}

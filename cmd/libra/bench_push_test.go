// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What cannot be replayed is refused before anything starts, with the file and a remedy.
func TestTracesAreChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(other, "trace.json")
	for text, want := range map[string]string{
		`1 1:0.5`:                  index + " is no index of a trace",
		`{"model": "ncf"}`:         index + `: its format is "", and "libra trace" is wanted: give a folder that 'libra run --record' wrote`,
		`{"format":"libra trace"}`: index + ": it has version 0, and this program reads 1: record the trace again with 'libra run --record'",
		`{"format":"libra trace","version":1,"complete":false}`: index + ": the trace was cut short",
	} {
		if err := os.WriteFile(index, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, stderr, code := inProcess(t, "bench", "push", "--trace", other); code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d: %s", text, code, stderr)
		}
	}
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"--trace " + dir, exitFailure, dir + " is no trace, since there is no trace.json in it: give a folder that 'libra run --record' wrote"},
		{"--trace se,se", exitFailure, "two traces have the name se: rename a folder"},
		{"--trace se --scale", exitUsage, "--scale is not for traces: leave it or --trace out"},
		{"--trace se --batches 32", exitUsage, "--batches is not for traces"},
		{"--baseline switchml", exitUsage, "switchml"},
	} {
		if _, stderr, code := inProcess(t, append([]string{"bench", "push"}, strings.Fields(test.args)...)...); code != test.code ||
			!strings.Contains(stderr, test.want) {
			t.Errorf("%s: code %d: %s", test.args, code, stderr)
		}
	}
}

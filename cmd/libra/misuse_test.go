// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// namedField matches where a configuration is refused by the name of a field.
var namedField = regexp.MustCompile(`experiment\.(?:InRange|Known|ConfigError\{Field:)[( ]*"([^"]+)"`)

// What a measurement or a study refuses is named as the flag that gave it.
func TestRefusedFieldsAreFlags(t *testing.T) {
	noFlags := []string{"warm-up", "CPU"} // nobody gives them to a command
	commandsOf := map[string]string{
		"study/lossy": "libra codec study", "study/schedule": "libra bench schedule",
	}
	folders, err := filepath.Glob("../../bench/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		name := filepath.Base(folder)
		commandsOf["bench/"+name] = "libra bench " + name
	}
	commandsOf["bench/chaos"] = "libra chaos"
	all, found := commands(), 0
	for folder, name := range commandsOf {
		files, err := filepath.Glob("../../" + folder + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", folder, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range namedField.FindAllSubmatch(text, -1) {
				field := string(m[1])
				found++
				if c := all[name]; !slices.Contains(noFlags, field) && (c == nil || c.Flags().Lookup(field) == nil) {
					t.Errorf("%s refuses %q, which is no flag of %q", file, field, name)
				}
			}
		}
	}
	if found < 80 {
		t.Errorf("only %d refusals found", found)
	}
}

// A command that fails leaves no folder for results that it has made itself, and no other is
// touched.
func TestFailuresLeaveNoFolder(t *testing.T) {
	for _, args := range [][]string{
		{"bench", "codec", "--values", "0"},
		{"codec", "study", "--images", "no.gz", "--labels", "no.gz"},
		{"hotset", "study", "--rates", "7"},
		{"lut", "study", "--pairs", "0"},
		{"demo", "--backend", "udp", "--data", "no.libfm"},
	} {
		there := t.TempDir()
		for _, folder := range []string{filepath.Join(there, "new", "newer"), there} {
			if _, stderr, code := inProcess(t, append(args, "--out", folder)...); code == 0 {
				t.Errorf("%v: exit code %d\n%s", args, code, stderr)
			}
			if left, err := os.ReadDir(there); err != nil || len(left) != 0 {
				t.Errorf("%v --out %s left %v, %v", args, folder, left, err)
			}
		}
	}
}

// A bound of 0 is refused as in a cluster file, though programs without a codec have it.
func TestBoundOfZeroIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"demo", "--backend", "udp", "--codec-bound", "0", "--data", "no.libfm"},
		{"run", "--backend", "udp", "--codec-bound", "0", "--", "false"},
	} {
		_, stderr, code := inProcess(t, args...)
		if want := "--codec-bound 0: it must be from 1 to 14"; code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d, want 2 and %q\n%s", args, code, want, stderr)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Input files are never overwritten, and outputs that cannot be written are reported before the
// work.
func TestOutputThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	data, checkpoint := writeFile(t, "rows.libfm", clicks(200, 1)), filepath.Join(trained(t, "lr"), "weights.libra")
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, out string
		code      int
		want      string
		args      []string
	}{
		{"data", data, exitUsage, "this file is read, and would be lost", []string{"hotset", "build", "--data", data}},
		{"weights", checkpoint, exitUsage, "this file is read, and would be lost", []string{"export", "--format", "csv", "--weights", checkpoint}},
		{"rows", data, exitUsage, "this file is read, and would be lost", []string{"predict", "--weights", checkpoint, "--data", data}},
		{"folder", dir, exitFailure, "is a folder: give the name of a file", []string{"hotset", "build", "--data", data}},
		{"folder", dir, exitFailure, "is a folder: give the name of a file", []string{"export", "--format", "csv", "--weights", checkpoint}},
		{"no folder", filepath.Join(dir, "no", "file.csv"), exitFailure, "make that folder, or choose a different one", []string{"export", "--weights", checkpoint}},
		{"no folder", filepath.Join(dir, "no", "file"), exitFailure, "make that folder, or choose a different one", []string{"predict", "--weights", checkpoint, "--data", data}},
		{"pipe", pipe, exitFailure, "is a device or a pipe: give the name of a file", []string{"hotset", "build", "--data", data}},
		{"pipe", pipe, exitFailure, "is a device or a pipe: give the name of a file", []string{"export", "--format", "csv", "--weights", checkpoint}},
		{"pipe", pipe, exitFailure, "is a device or a pipe: give the name of a file", []string{"predict", "--weights", checkpoint, "--data", data}},
	} {
		var before []byte
		if c.out != pipe { // reading one waits for a writer
			before, _ = os.ReadFile(c.out)
		}
		_, stderr, code := inProcess(t, append(c.args, "--out", c.out)...)
		if info, err := os.Stat(pipe); err != nil || info.Mode().IsRegular() {
			t.Fatalf("%v: the pipe became a file", c.args)
		}
		var after []byte
		if c.out != pipe {
			after, _ = os.ReadFile(c.out)
		}
		if code != c.code || !strings.Contains(stderr, "--out") || !strings.Contains(stderr, c.want) || !bytes.Equal(before, after) {
			t.Errorf("%v to %s: exit code %d, %d bytes after %d\n%s", c.args, c.name, code, len(after), len(before), stderr)
		}
	}
}

// A failure of standard output is reported once, also if all of the output is in a buffer until the
// end.
func TestStandardOutputThatIsFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	checkpoint := filepath.Join(trained(t, "lr"), "weights.libra")
	many, few := writeFile(t, "many.libfm", clicks(2000, 1)), writeFile(t, "few.libfm", clicks(20, 1))
	for _, args := range [][]string{{"predict", "--data", many}, {"predict", "--data", few}, {"evaluate", "--data", few}} {
		cmd := libra(t.Context(), append(args, "--weights", checkpoint)...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &stderr
		if err := cmd.Run(); err == nil || strings.Count(stderr.String(), "no space left") != 1 {
			t.Errorf("%v: %v\n%s", args, err, &stderr)
		}
	}
}

// Most users do not know the folder of temporary files.
func TestTemporaryFolderThatIsMissing(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	_, stderr, code := outputWith(t, []string{"TMPDIR=" + missing}, "demo", "--backend", "udp", "--rows", "100")
	if want := "temporary files go to " + missing + ": create that folder, or set TMPDIR"; code != exitFailure || !strings.Contains(stderr, want) {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if remedy := remedyOfTemporary(&os.PathError{Op: "open", Path: filepath.Join(missing, "rows.libfm"), Err: os.ErrNotExist}); remedy != "" {
		t.Errorf("a file of the user in that folder: %q", remedy)
	}
	if _, stderr, code := inProcess(t, "hotset", "build", "--data", os.TempDir(), "--out", "x"); code != exitFailure || strings.Contains(stderr, "TMPDIR") {
		t.Errorf("the folder in place of a file: exit code %d\n%s", code, stderr)
	}
}

// Impossible numbers are usage errors.
func TestNumbersThatCannotBe(t *testing.T) {
	data := writeFile(t, "rows.libfm", clicks(200, 1))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--top -1: it must be above zero", []string{"hotset", "show", data, "--top", "-1"}},
		{"--hot-rows 2684355: a job has at most 2684354 rows of 25 scalars", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--hot-rows", "2684355"}},
		{"--tree: one switch has no children", []string{"demo", "--tree"}},
		{"--tree: a parent adds sums of exact or fixed arithmetic", []string{"demo", "--tree", "--switches", "2", "--arithmetic", "lut"}},
		{"--hot-rows 16777216: a job has at most 16777215 rows of 1 scalars", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--model", "lr", "--switches", "2", "--hot-rows", "16777216"}},
		{"--switches 17: it must be 1 to 16", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--switches", "17"}},
		{"--switches 0: it must be 1 to 16", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--switches", "0"}},
		{"--hot-rows 16777216: a job has at most 16777215 rows of 1 scalars", []string{"demo", "--data", data, "--model", "lr", "--hot-rows", "16777216"}},
		{"--hot-rows 65537: a P4 switch takes 65536 scalars of a job, which are 65536 rows of 1", []string{"demo", "--plane", "p4", "--data", data, "--model", "lr", "--hot-rows", "65537"}},
		{"--hot-rows 7282: a P4 switch takes 65536 scalars of a job, which are 7281 rows of 9", []string{"demo", "--plane", "p4", "--data", data, "--factors", "8", "--hot-rows", "7282"}},
		{"--hot-rows auto: it goes by the costs of an aggregator in XDP, so give a number", []string{"demo", "--plane", "p4", "--hot-rows", "auto"}},
		{"--hot-rate 2: it must be a share of the rows, from 0 to 1", []string{"demo", "--hot-rate", "2"}},
		{"--hot-rows many: it must be a number of rows, or auto", []string{"demo", "--hot-rows", "many"}},
		{"--hot-rows 7456541: a job has at most 7456540 rows of 9 scalars", []string{"demo", "--hot-rows", "7456541"}},
		{"--hot-rows 4194305: a job has at most 4194304 rows of 16 scalars", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--dim", "16", "--hot-rows", "4194305"}},
		{"--dim 66: it must be from 1 to 65", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--dim", "66"}},
		{"--dim 0: it must be above zero", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--dim", "0"}},
		{"--dim is in place of --model and --factors", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--dim", "16", "--model", "fm"}},
		{"--keys k: the rows are those of --data: leave one", []string{"hotset", "build", "--data", data, "--keys", "k", "--out", data + ".libra"}},
		{"--data, or --keys, and --out are required", []string{"hotset", "build", "--keys", data}},
		{"also of --keys: leave them out, or it", []string{"hotset", "build", "--keys", data, "--out", data + ".libra", "--model", "lr"}},
		{"--out " + data + ": this file is read", []string{"hotset", "build", "--keys", data, "--out", data}},
		{"--factors 4: model lr has none", []string{"hotset", "build", "--data", data, "--out", data + ".libra", "--model", "lr", "--factors", "4"}},
	} {
		if _, stderr, code := inProcess(t, c.args...); code != exitUsage || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit code %d\n%s", c.args, code, stderr)
		}
	}
}

// Files without data, or with too little of it, end each command that reads data with exit code 1,
// before anything is trained or written, and with a remedy.
func TestBadDataFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const format, csv, pairs = "a label and the features that are not zero, as in 1 3:1 7:0.5", ":1:1: label \"click,age\": this may be CSV", "is not an index:value pair"
	files := map[string]struct {
		text string
		want []string
	}{
		"empty.libfm":    {"", []string{"holds no rows", "as in 1 3:1 7:0.5"}},
		"blank.libfm":    {"\n  \n\n", []string{"holds no rows"}},
		"header.csv":     {"click,age\n1,0.5\n0,1\n", []string{csv, format}},
		"rows.csv":       {"1,0.5,0\n0,0,2\n", []string{":1:1: label \"1,0.5,0\": this may be CSV", format}},
		"header.tsv":     {"click\tage\n1\t0.5\n", []string{":1:1: label \"click\"", format}},
		"dense.txt":      {"1 0.5 0 0 2\n0 1 0 3 0\n", []string{":1:3: \"0.5\" " + pairs, format}},
		"rows.json":      {"{\"click\": 1}\n", []string{":1:1: label \"{\\\"click\\\":\"", format}},
		"table.parquet":  {"PAR1\x15\x04\x15\x20", []string{":1:1: label \"PAR1", format}},
		"mixed.libffm":   {"1 0:3:1 1:4:1\n0 3:1\n", []string{":2:3: \"3:1\" has 1 colons", "all pairs of a file are index:value, or all are field:index:value"}},
		"unlabelled.txt": {"3:1 4:1\n", []string{":1:1: label \"3:1\"", format}},
		"table.bin":      {"\x80\x04\x95,\x00\x01\n", []string{":1:1: label", "this is no text", format}},
		"cut.libfm.gz":   {"\x1f\x8b\x08\x00\x00\x00\x00\x00", []string{"cut.libfm.gz", "unexpected EOF"}},
	}
	good := writeFile(t, "good.libfm", clicks(200, 1))
	checkpoint := filepath.Join(trained(t, "lr"), "weights.libra")
	out := filepath.Join(dir, "out")
	for name, file := range files {
		path := writeFile(t, name, file.text)
		for _, args := range [][]string{
			{"demo", "--backend", "udp", "--data", path, "--workers", "1"},
			{"demo", "--backend", "udp", "--data", good, "--test", path, "--workers", "1"},
			{"hotset", "build", "--data", path, "--out", out},
			{"evaluate", "--weights", checkpoint, "--data", path},
			{"predict", "--weights", checkpoint, "--data", path, "--out", out},
		} {
			t.Run(name+" "+strings.Join(args[:2], " ")+fmt.Sprint(len(args)), func(t *testing.T) {
				stdout, stderr, code := output(t, args...)
				if code != exitFailure || stdout != "" {
					t.Errorf("exit code %d, %q", code, stdout)
				}
				for _, want := range append([]string{name}, file.want...) {
					if !strings.Contains(stderr, want) {
						t.Errorf("no %q in: %s", want, stderr)
					}
				}
				if _, err := os.Stat(out); err == nil {
					t.Error("something was written")
				}
			})
		}
	}
}

// Weights of another model, of another dimension or of other features are refused where they cannot
// be right.
func TestWeightsOfAnotherModel(t *testing.T) {
	t.Parallel()
	dir := trained(t, "fm")
	test, checkpoint := filepath.Join(dir, "test.libfm"), filepath.Join(dir, "weights.libra")
	text, err := os.ReadFile(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	cut := writeFile(t, "cut.libra", string(text[:len(text)/2]))
	for name, c := range map[string]struct{ weights, want string }{
		"half a checkpoint": {cut, "cut.libra"},
		"rows of two sizes": {writeFile(t, "sizes.csv", "feature,weight,factor_1\nbias,0,0\n3,1\n"), "wrong number of fields"},
		"a hot set":         {writeFile(t, "hot.libra", "LIBRAHOT...."), "it is a hot set, which has no weights"},
		"data":              {test, "it may be data, which --data takes"},
		"a folder":          {dir, "not a regular file"},
	} {
		for _, command := range []string{"predict", "evaluate"} {
			stdout, stderr, code := output(t, command, "--weights", c.weights, "--data", test)
			if code != exitFailure || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("%s, %s: exit code %d, no %q in: %s%s", name, command, code, c.want, stdout, stderr)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/libra-ina/libra/internal/test/realdata"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every mistake must end the program with a message that names it, and with an exit code that
// distinguishes usage errors from failures.
func TestBadInput(t *testing.T) {
	rows := func(text string) string { return writeFile(t, "rows.libfm", text) }
	good := rows("1 1:1 2:1\n-1 3:1\n")
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"unknown flag":          {[]string{"demo", "--wrokers", "3"}, exitUsage, []string{"unknown flag: --wrokers", "libra demo --help"}},
		"unknown command":       {[]string{"dmeo"}, exitUsage, []string{`unknown command "dmeo"`, "did you mean demo?"}},
		"unknown subcommand":    {[]string{"hotset", "biuld"}, exitUsage, []string{`unknown command "biuld" for "libra hotset"`, "did you mean build?"}},
		"no folder to write to": {[]string{"hotset", "build", "--data", good, "--out", "/no/such/hot.libra"}, exitFailure, []string{"--out", "/no/such"}},
		"no such topic":         {[]string{"help", "dmeo"}, exitUsage, []string{`"dmeo" is no command of "libra"`}},
		"no such shell":         {[]string{"completion", "sh"}, exitUsage, []string{`"sh" is none of bash, fish, powershell, zsh`}},
		"not a number":          {[]string{"worker", "--id", "70000"}, exitUsage, []string{"--id 70000: a whole number from 0 to 65535 is required"}},
		"not a time":            {[]string{"demo", "--harvest", "20"}, exitUsage, []string{"--harvest 20: a time such as 500ms"}},
		"no rate":               {[]string{"demo", "--learning-rate", "NaN"}, exitUsage, []string{"--learning-rate NaN: it must be a finite number above zero"}},
		"no finite rate":        {[]string{"glm", "--learning-rate", "inf"}, exitUsage, []string{"--learning-rate +Inf: it must be a finite number above zero"}},
		"a large share":         {[]string{"hotset", "build", "--rate", "2"}, exitUsage, []string{"--rate 2: it is a share"}},
		"factors":               {[]string{"hotset", "build", "--factors", "-1"}, exitUsage, []string{"--factors -1"}},
		"a model's name":        {[]string{"hotset", "build", "--model", "mlp"}, exitUsage, []string{"--model mlp", "fm, lr"}},
		"a plane":               {[]string{"switch", "--plane", "rmt", "--config", good}, exitUsage, []string{"--plane rmt", "xdp, model, p4"}},
		"frame sizes":           {[]string{"bench", "engine", "--sizes", "190,10"}, exitUsage, []string{"--sizes: 10 is not from 64 to 9014"}},
		"batches":               {[]string{"bench", "push", "--batches", "0"}, exitUsage, []string{"--batches: 0"}},
		"a baseline of pushes":  {[]string{"bench", "push", "--baseline", "nccl"}, exitUsage, []string{`--baseline nccl: "nccl" is none of zeromq-hash`}},
		"hot parameters":        {[]string{"bench", "aggregator", "--sweep", "7"}, exitUsage, []string{"--sweep: 7 is not from"}},
		"a short life":          {[]string{"chaos", "--steps", "99"}, exitUsage, []string{"--steps: 99 is not from 100"}},
		"no lives":              {[]string{"chaos", "--lives", "0"}, exitUsage, []string{"--lives: 0 is not from 1"}},
		"no time for lives":     {[]string{"chaos", "--minutes", "0"}, exitUsage, []string{"--minutes: 0 is not above 0"}},
		"a kind of trouble":     {[]string{"chaos", "--only", "flood"}, exitUsage, []string{"--only", "flood", "worker-kill"}},
		"a short soak":          {[]string{"bench", "soak", "--duration", "1ms"}, exitUsage, []string{"--duration: 1ms is not from 1s"}},
		"harvests":              {[]string{"bench", "tenants", "--harvest", "1ns"}, exitUsage, []string{"--harvest: 1ns for 3s"}},
		"a lonely ring":         {[]string{"bench", "ring", "--workers", "1"}, exitUsage, []string{"--workers: 1 is not from 2 to 64"}},
		"a wide all-reduce":     {[]string{"bench", "allreduce", "--width", "221"}, exitUsage, []string{"--width: 221 is not from 1 to 220"}},
		"bits of a feature":     {[]string{"glm", "--bits", "9"}, exitUsage, []string{"--bits 9: it must be from 1 to 8", "libra glm --help"}},
		"no bits":               {[]string{"glm", "--bits", "0"}, exitUsage, []string{"--bits 0: it must be"}},
		"no micro-batch":        {[]string{"glm", "--batch", "60"}, exitUsage, []string{"--batch 60 is no multiple of micro-batch 8: give 56"}},
		"a wide micro-batch":    {[]string{"glm", "--batch", "221", "--micro-batch", "221"}, exitUsage, []string{"--micro-batch 221: it must be from 1 to 220"}},
		"objective":             {[]string{"glm", "--objective", "lasso"}, exitUsage, []string{"--objective lasso", "logistic, hinge, square"}},
		"many workers of a glm": {[]string{"glm", "--workers", "65"}, exitUsage, []string{"--workers 65: it must be from 1 to 64"}},
		"a worker of no file":   {[]string{"glm", "--id", "3"}, exitUsage, []string{"--id 3", "give --config too"}},
		"a file of no worker":   {[]string{"glm", "--config", good}, exitUsage, []string{"--id is required with --config"}},
		"workers of a file":     {[]string{"glm", "--config", good, "--id", "1", "--workers", "2"}, exitUsage, []string{"--workers: with --config it is the configuration"}},
		"faults of a glm":       {[]string{"glm", "--loss", "1"}, exitUsage, []string{"--loss: probability 1 is not in"}},
		"rows of a file":        {[]string{"glm", "--data", good, "--rows", "5"}, exitUsage, []string{"--rows 5", "without --data"}},
		"weights without name":  {[]string{"glm", "--out", "w.txt"}, exitUsage, []string{"--out w.txt", "give --format"}},
		"a format of nothing":   {[]string{"glm", "--format", "csv"}, exitUsage, []string{"--format csv", "give --out too"}},
		"weights over rows":     {[]string{"glm", "--data", good, "--out", good, "--format", "csv"}, exitUsage, []string{"would be lost"}},
		"sampling rates":        {[]string{"hotset", "study", "--rates", "2"}, exitUsage, []string{"--rates: 2 is not"}},
		"a study of nothing":    {[]string{"lut", "study", "--measure", ""}, exitUsage, []string{"--measure", "numbers, throughput, negotiation"}},
		"no processes":          {[]string{"stats"}, exitUsage, []string{"--config, --agent or an ADDRESS is required"}},
		"no election":           {[]string{"switch", "--config", "none.yaml", "--p4-election", "0"}, exitUsage, []string{"--p4-election 0: it must be above zero"}},
		"no epochs":             {[]string{"demo", "--epochs", "0"}, exitUsage, []string{"--epochs 0: it must be above zero"}},
		"no harvests":           {[]string{"demo", "--harvest", "0s"}, exitUsage, []string{"--harvest 0s"}},
		"no rounds":             {[]string{"bench", "push", "--rounds", "0"}, exitUsage, []string{"--rounds 0"}},
		"negative duration":     {[]string{"bench", "engine", "--duration", "-1s"}, exitUsage, []string{"--duration -1s"}},
		"unknown test":          {[]string{"bench", "engine", "--measure", "ping"}, exitUsage, []string{`"ping"`, "transmit"}},
		"no study":              {[]string{"hotset", "study", "--rounds", "0"}, exitUsage, []string{"--rounds 0"}},
		"plots in a file":       {[]string{"lut", "study", "--measure", "numbers", "--out", good}, exitFailure, []string{"--out", "rows.libfm"}},
		"argument":              {[]string{"demo", "fast"}, exitUsage, []string{`unexpected argument "fast"`}},
		"no workers":            {[]string{"demo", "--workers", "0"}, exitUsage, []string{"--workers 0"}},
		"model":                 {[]string{"demo", "--backend", "udp", "--model", "mlp", "--data", good}, exitUsage, []string{"--model mlp", "fm, lr"}},
		"backend":               {[]string{"demo", "--backend", "rdma"}, exitUsage, []string{"--backend rdma", "afxdp, udp"}},
		"loss":                  {[]string{"demo", "--backend", "udp", "--loss", "1.5", "--data", good}, exitUsage, []string{"--loss", "1.5"}},
		"missing file":          {[]string{"demo", "--backend", "udp", "--data", "/no/such/file"}, exitFailure, []string{"/no/such/file", "no such file"}},
		"empty file":            {[]string{"demo", "--backend", "udp", "--data", rows("")}, exitFailure, []string{"rows.libfm", "no rows"}},
		"bad label":             {[]string{"demo", "--backend", "udp", "--data", rows("1 1:1\n7 1:1\n")}, exitFailure, []string{"rows.libfm:2:1", "label"}},
		"empty test file":       {[]string{"demo", "--backend", "udp", "--workers", "1", "--data", good, "--test", rows("")}, exitFailure, []string{"rows.libfm", "no rows"}},
		"one label":             {[]string{"demo", "--backend", "udp", "--workers", "1", "--data", good, "--test", rows("1 1:1\n")}, exitFailure, []string{"rows.libfm", "same label", "--test"}},
		"fewer rows":            {[]string{"demo", "--backend", "udp", "--data", good}, exitFailure, []string{"2 training rows for 4 workers", "--workers at most 2"}},
		"no folder":             {[]string{"demo", "--backend", "udp", "--data", good, "--out", good}, exitFailure, []string{"--out", "rows.libfm"}},
		"baseline":              {[]string{"demo", "--backend", "udp", "--data", good, "--baseline", "two"}, exitUsage, []string{`"two"`, "one-process, server-only"}},
		"bad value":             {[]string{"demo", "--backend", "udp", "--data", rows("1 1:1\n-1 2:x\n")}, exitFailure, []string{"rows.libfm:2:6"}},
		"no config":             {[]string{"worker", "--id", "1"}, exitUsage, []string{"--config is required"}},
		"no id":                 {[]string{"worker", "--config", "c.yaml"}, exitUsage, []string{"--id is required"}},
		"config":                {[]string{"ps", "--config", "/no/such.yaml"}, exitFailure, []string{"/no/such.yaml"}},
		"config field":          {[]string{"switch", "--config", writeFile(t, "c.yaml", "bakcend: udp\n")}, exitFailure, []string{"c.yaml", "bakcend", "line 1"}},
		"no hot set":            {[]string{"hotset", "show", "/no/such.libra"}, exitFailure, []string{"/no/such.libra"}},
		"not a hot set":         {[]string{"hotset", "show", good}, exitFailure, []string{"rows.libfm"}},
		"hot set arguments":     {[]string{"hotset", "show"}, exitUsage, []string{"one hot-set file"}},
		"no plan":               {[]string{"plan"}, exitUsage, []string{"--config is required"}},
		"too many parts":        {[]string{"plan", "--config", good, "--parts", "65"}, exitUsage, []string{"--parts 65: it must be 1 to 64"}},
		"a seed of nothing":     {[]string{"plan", "--config", good, "--seed", "3"}, exitUsage, []string{"--seed 3: only the objective paper draws"}},
		"an objective":          {[]string{"plan", "--config", good, "--objective", "time"}, exitUsage, []string{"--objective time", "links, paper"}},
		"no pushes":             {[]string{"plan", "--config", good, "--pushes", "0"}, exitUsage, []string{"--pushes 0: it must be above zero"}},
		"no placements":         {[]string{"bench", "schedule", "--placements", "0"}, exitUsage, []string{"--placements 0"}},
		"workers of a fabric":   {[]string{"bench", "schedule", "--workers", "10,50"}, exitUsage, []string{"--workers: 50 is not from 1 to 49"}},
		"no deviation":          {[]string{"bench", "schedule", "--deviations", "NaN"}, exitUsage, []string{"--deviations: NaN is not from 0 to 10"}},
		"a model of nothing":    {[]string{"bench", "schedule", "--models", "0"}, exitUsage, []string{"--models: 0 is not from 1 to 4096"}},
		"build without data":    {[]string{"hotset", "build"}, exitUsage, []string{"--data, or --keys, and --out are required"}},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := inProcess(t, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("standard error does not contain %q:\n%s", want, stderr)
				}
			}
			if stdout != "" {
				t.Errorf("standard output %q", stdout)
			}
		})
	}
}

func TestHotsetBuildAndShow(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "hot.libra")
	data := realdata.Path(t, "frappe-train.libfm.gz")
	if _, stderr, code := output(t, "hotset", "build", "--data", data, "--out", out, "--hot-rows", "100", "--factors", "4"); code != 0 {
		t.Fatal(stderr)
	}
	stdout, stderr, code := output(t, "hotset", "show", out, "--top", "3", "--json")
	if code != 0 {
		t.Fatal(stderr)
	}
	var got struct {
		Rows, Dimension, Slots int
		Share                  float64
		Fingerprint            string
		Top                    []struct{ Rank, Updates uint64 }
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Rows != 100 || got.Dimension != 5 || got.Slots != 500 || got.Share <= 0.5 || got.Share >= 1 || len(got.Top) != 3 || len(got.Fingerprint) != 64 {
		t.Errorf("got %+v", got)
	}
	if got.Top[0].Updates < got.Top[2].Updates {
		t.Errorf("not in rank order: %+v", got.Top)
	}
}

func TestVersion(t *testing.T) {
	stdout, _, code := inProcess(t, "version", "--json")
	var v struct{ Version, Platform string }
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != 0 || v.Version != version {
		t.Errorf("%q, code %d, %v", stdout, code, err)
	}
}

func TestVersionIsTheTag(t *testing.T) {
	for module, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-rc1": "1.2.3-rc1", "(devel)": version, "": version,
		"v0.1.1-0.20261122160506-41c3a8fabcde": version, "v1.2.3+dirty": version,
	} {
		if got := releaseOf(module); got != want {
			t.Errorf("%q: %s, want %s", module, got, want)
		}
	}
}

// Both ways to request the version print it; groups of commands print their help.
func TestVersionFlag(t *testing.T) {
	text, _, _ := inProcess(t, "version")
	flag, stderr, code := inProcess(t, "--version")
	if name, _, _ := strings.Cut(text, " ("); code != 0 || strings.TrimSpace(flag) != name {
		t.Errorf("%q and %q, code %d, %s", flag, text, code, stderr)
	}
	if out, stderr, code := inProcess(t, "hotset"); code != 0 || !strings.Contains(out, "build") || stderr != "" {
		t.Errorf("libra hotset: code %d\n%s%s", code, out, stderr)
	}
}

// TestReferenceIsCurrent compares docs/cli.md, with its flags, defaults, choices and exit
// codes, with the program, and the codes with its help.
func TestReferenceIsCurrent(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	got, stderr, code := inProcess(t, "reference", "markdown")
	if diff := cmp.Diff(string(page), got); diff != "" || code != 0 {
		t.Errorf("docs/cli.md is not what 'make generate' makes: code %d, %s\n%s", code, stderr, diff)
	}
	help, _, _ := inProcess(t, "--help")
	for _, e := range exitCodes {
		meaning, _, _ := strings.Cut(e.meaning, ":")
		if !strings.Contains(help, fmt.Sprintf("%d %s", e.code, strings.Fields(meaning)[0])) {
			t.Errorf("help does not explain exit code %d, %s", e.code, meaning)
		}
	}
	for path, c := range commands() {
		if c.HasParent() && !isGroup(c) && c.Name() != "help" && !strings.Contains(got, "\n## "+path+"\n") {
			t.Errorf("no section for %s", path)
		}
	}
}

// TestManualPages checks that each command has a page with its flags.
func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	if _, stderr, code := inProcess(t, "reference", "man", "--out", dir); code != 0 {
		t.Fatal(stderr)
	}
	for path, c := range commands() {
		if c.Name() == "help" {
			continue
		}
		file := strings.ReplaceAll(path, " ", "-") + ".1"
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Error(err)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !bytes.Contains(bytes.ReplaceAll(text, []byte(`\-`), []byte("-")), []byte("--"+f.Name)) {
				t.Errorf("%s does not explain --%s", file, f.Name)
			}
		})
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if stdout, _, code := inProcess(t, "completion", shell); code != 0 || !strings.Contains(stdout, "libra") {
			t.Errorf("%s: code %d, %d bytes", shell, code, len(stdout))
		}
	}
	// Values of flags are completed, also after a comma; folders and numbers are not completed as
	// words.
	for _, c := range []struct{ typed, want string }{
		{"demo --model ", "fm lr :4"}, {"switch --plane ", "xdp model p4 :4"}, {"bench engine --measure echo,t", "echo,transmit :4"},
		{"demo --out ", ":16"}, {"demo --epochs ", ":4"}, {"demo --data ", ":0"}, {"hotset show ", ":0"}, {"demo ", ":4"}, {"completion z", "zsh :4"},
	} {
		stdout, _, code := inProcess(t, append([]string{"__complete"}, strings.Split(c.typed, " ")...)...)
		if got := strings.Join(strings.Fields(stdout), " "); code != 0 || !strings.HasSuffix(got, c.want) {
			t.Errorf("libra %s: %q, want %q", c.typed, got, c.want)
		}
	}
}

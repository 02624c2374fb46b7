// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/test/realdata"
)

// frappeRows writes the first rows of the training data into a file.
func frappeRows(t *testing.T, rows int) string {
	t.Helper()
	f, err := os.Open(realdata.Path(t, "frappe-train.libfm.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewScanner(z); rows > 0 && lines.Scan(); rows-- {
		fmt.Fprintln(&text, lines.Text())
	}
	return writeFile(t, "rows.libfm", text.String())
}

func TestTrainingOnBmv2(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("simple_switch_grpc"); err != nil {
		t.Skip("simple_switch_grpc is not on the PATH: no training on bmv2 in this test (docs/p4.md says how to get it)")
	}
	needRoot(t)
	r := runDemo(t, "--plane", "p4", "--data", frappeRows(t, 1000), "--sync", "--epochs", "1", "--workers", "2")
	if r.WeightsSHA256 != r.ReferenceSHA256 || len(r.WeightsSHA256) != 64 {
		t.Errorf("weights %s, reference %s", r.WeightsSHA256, r.ReferenceSHA256)
	}
	if r.Plane != "p4" || r.HotPairs == 0 || r.FramesSaved <= 0 {
		t.Errorf("the switch did not aggregate: %+v", r)
	}
}

// The first job of lut arithmetic waits for its tables.
func TestTrainingOnBmv2WithLUT(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("simple_switch_grpc"); err != nil {
		t.Skip("simple_switch_grpc is not on the PATH: no training on bmv2 in this test (docs/p4.md says how to get it)")
	}
	needRoot(t)
	r := runDemo(t, "--plane", "p4", "--data", frappeRows(t, 1000), "--sync", "--epochs", "1", "--workers", "2", "--arithmetic", "lut", "--baseline", "one-process")
	if r.Plane != "p4" || r.Arithmetic != "lut" || r.HotPairs == 0 || r.FramesSaved <= 0 {
		t.Errorf("the switch did not aggregate: %+v", r)
	}
	if r.OneProcess == nil || math.Abs(*r.AUC-*r.OneProcess.AUC) > 0.01 {
		t.Errorf("AUC %v, of one process %+v", *r.AUC, r.OneProcess)
	}
}

// A killed demo leaves no switch behind, and the next run removes its directory.
func TestKilledDemoLeavesNoP4Switch(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("simple_switch_grpc"); err != nil {
		t.Skip("simple_switch_grpc is not on the PATH: no training on bmv2 in this test (docs/p4.md says how to get it)")
	}
	needRoot(t)
	temporary := t.TempDir() // other runs on this machine have other directories
	env := []string{"TMPDIR=" + temporary}
	data := frappeRows(t, 1000)
	cmd, _ := trainCluster(t, env, "demo", "-v", "--plane", "p4", "--data", data, "--epochs", "1000")
	left := func() (directories []string) {
		directories, err := filepath.Glob(filepath.Join(temporary, "libra-demo-*"))
		if err != nil {
			t.Fatal(err)
		}
		return directories
	}
	killed := left()
	if len(killed) != 1 || !strings.Contains(strings.Join(commandsWith(t, killed[0]), "\n"), "simple_switch_grpc") {
		_ = cmd.Process.Kill()
		t.Fatalf("the run has the directories %v, and no switch in them", killed)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		running := commandsWith(t, killed[0])
		if len(running) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the killed run goes on: %q", running)
		}
	}
	if r := runDemoWith(t, env, "--rows", "1000", "--epochs", "1"); r.HotPairs == 0 {
		t.Errorf("a run after a killed one: %+v", r)
	}
	if rest := left(); len(rest) != 0 {
		t.Errorf("left are %v", rest)
	}
}

// commandsWith returns the processes that have a text in their command lines.
func commandsWith(t *testing.T, text string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		// A process may end during the check.
		if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), text) {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// Without bmv2 the demo names the missing program.
func TestDemoNeedsAP4Switch(t *testing.T) {
	t.Parallel()
	needRoot(t)
	_, stderr, code := outputWith(t, []string{"PATH=" + t.TempDir()}, "demo", "--plane", "p4", "--rows", "1000")
	if code != 1 || !strings.Contains(stderr, `"simple_switch_grpc": executable file not found in $PATH`) || !strings.Contains(stderr, "docs/p4.md") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

// Flags can select the data plane.
func TestSwitchFlagsOfAP4Switch(t *testing.T) {
	t.Parallel()
	config := edited(t, handMade(t), "backend: udp", "backend: afxdp", "switch: {", "switch: {interfaces: [eth0], stripes: 10, ",
		"server: {", "server: {interface: eth0, ", "{id: 1, ", "{id: 1, interface: eth0, ", "{id: 4, ", "{id: 4, interface: eth0, ")
	absent := "unix:" + filepath.Join(t.TempDir(), "absent")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"address":      {[]string{"--plane", "p4", "--p4-ports", "1"}, "--p4-runtime"},
		"ports":        {[]string{"--plane", "p4", "--p4-runtime", absent}, "--p4-ports"},
		"a port":       {[]string{"--plane", "p4", "--p4-runtime", absent, "--p4-ports", "4294967297"}, "switch.p4: port 4294967295 is not in 0..509"},
		"a port twice": {[]string{"--plane", "p4", "--p4-runtime", absent, "--p4-ports", "1,2,1"}, "switch.p4.ports: port 1 is named twice: name each port once (--p4-ports)"},
		"a program":    {[]string{"--plane", "p4", "--p4-runtime", absent, "--p4-ports", "1", "--p4-info", "no/info", "--p4-config", "no/json"}, "P4Info: open no/info"},
		"half":         {[]string{"--plane", "p4", "--p4-runtime", absent, "--p4-ports", "1", "--p4-info", "no/info"}, "switch.p4.p4info, config: they belong together"},
		"no switch":    {[]string{"--plane", "p4", "--p4-runtime", absent, "--p4-ports", "1,2", "--p4-device", "3", "--p4-election", "5", "--p4-replace"}, "the switch does not answer at " + absent},
		"no plane":     {[]string{"--p4-runtime", absent}, "switch.p4: only with plane p4, and this one is xdp"},
	} {
		_, stderr, code := output(t, append([]string{"switch", "--config", config}, test.args...)...)
		if code != exitFailure || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: code %d, want %q: %s", name, code, test.want, stderr)
		}
	}
}

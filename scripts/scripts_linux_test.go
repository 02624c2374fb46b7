// SPDX-License-Identifier: Apache-2.0

// Package scripts_test runs the scripts as a person would.
package scripts_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestShellcheck(t *testing.T) {
	t.Parallel()
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Skip("shellcheck is not installed; scripts/setup.sh installs it")
	}
	scripts, err := filepath.Glob("*.sh")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	if out, err := exec.Command(shellcheck, scripts...).CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// run runs a script and returns its exit status and what it printed.
func run(t *testing.T, script string, args ...string) (int, string) {
	t.Helper()
	out, err := exec.Command(script, args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return exit.ExitCode(), string(out)
	}
	return 0, string(out)
}

func testbed(t *testing.T, args ...string) (int, string) {
	t.Helper()
	return run(t, "./testbed.sh", args...)
}

func TestKernelTestUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"-h", 0, "usage: scripts/kernel-test.sh"},
		{"-t soon", 2, "'soon' is not a positive number"},
		{"now", 2, "unexpected argument 'now'"},
		{"-n ne2000", 2, "no network card 'ne2000'"},
		{"-a riscv64", 2, "no architecture 'riscv64'"},
		{"-x", 2, "illegal option"},
	} {
		code, out := run(t, "./kernel-test.sh", strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(out, test.want) {
			t.Errorf("kernel-test.sh %s: status %d, want %d with %q; printed:\n%s", test.args, code, test.code, test.want, out)
		}
	}
}

func TestKernelMatrixUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"-h", 0, "usage: scripts/kernel-matrix.sh"},
		{"no-such-line", 2, "no line of the matrix matches 'no-such-line'"},
		{"arm64 amd64", 2, "unexpected argument 'amd64'"},
		{"-t abc", 2, "'abc' is not a positive number of seconds"},
		{"-x", 2, "illegal option"},
	} {
		code, out := run(t, "./kernel-matrix.sh", strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(out, test.want) {
			t.Errorf("kernel-matrix.sh %s: status %d, want %d with %q; printed:\n%s", test.args, code, test.code, test.want, out)
		}
	}
}

func TestTestbedUsage(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "no command"},
		{"sideways", 2, "unknown command 'sideways'"},
		{"up -n many", 2, "number of hosts is 'many', want a number from 1 to 250"},
		{"up -n 251", 2, "number of hosts is 251"},
		{"up -q 0", 2, "number of queues is 0"},
		{"up now", 2, "unexpected argument 'now'"},
		{"exec host0", 2, "exec needs a node and a command"},
		{"help", 0, "Usage:"},
	} {
		code, out := testbed(t, strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(out, test.want) {
			t.Errorf("testbed.sh %s: status %d, want %d with %q; printed:\n%s", test.args, code, test.code, test.want, out)
		}
	}
}

func TestTestbedUpAndDown(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"ip", "ethtool"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed; scripts/setup.sh installs it", tool)
		}
	}
	if _, out := testbed(t, "status"); out != "down\n" {
		t.Skipf("another bed is up:\n%s", out)
	}
	t.Cleanup(func() {
		for range 2 { // down is idempotent
			if code, out := testbed(t, "down"); code != 0 {
				t.Errorf("down: status %d:\n%s", code, out)
			}
		}
		if _, out := testbed(t, "status"); out != "down\n" {
			t.Errorf("status after down:\n%s", out)
		}
	})
	// The second bed replaces the first.
	for _, args := range [][]string{{"up"}, {"up", "-n", "3", "-q", "2", "-m", "1400", "-t"}} {
		if code, out := testbed(t, args...); code != 0 {
			t.Fatalf("%v: status %d:\n%s", args, code, out)
		}
	}
	_, out := testbed(t, "status")
	for _, want := range []string{"switch:", "10.77.0.1/24", "host2:", "10.77.0.4/24", "02:4c:42:00:00:04 mtu 1400"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	for args, want := range map[string]string{
		"exec host2 cat /sys/class/net/host2/threaded":  "1",
		"exec switch cat /sys/class/net/port2/threaded": "1",
		"exec host0 ls /sys/class/net/host0/queues":     "rx-0\nrx-1\ntx-0\ntx-1",
	} {
		if code, out := testbed(t, strings.Fields(args)...); code != 0 || strings.TrimSpace(out) != want {
			t.Errorf("%s: status %d, printed %q, want %q", args, code, out, want)
		}
	}
	if code, out := testbed(t, "exec", "host3", "true"); code != 1 || !strings.Contains(out, "no node 'host3'") {
		t.Errorf("a node that is not there: status %d:\n%s", code, out)
	}
	if code, _ := testbed(t, "exec", "host0", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exec returned status %d, want the command's 7", code)
	}
}

// A selection of no target is no success.
func TestFuzzNeedsATarget(t *testing.T) {
	bin := t.TempDir()
	fake := "#!/bin/sh\ncase $1 in env) echo /nowhere ;; list) echo a/package ;; test) echo FuzzThat ;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if code, out := run(t, "./fuzz.sh", "1s", "This"); code != 2 || !strings.Contains(out, "no fuzz target matches 'This'") {
		t.Errorf("status %d, prints %s", code, out)
	}
	if code, out := run(t, "./fuzz.sh", "1s", "That"); code != 0 || !strings.Contains(out, "a/package FuzzThat") {
		t.Errorf("status %d, prints %s", code, out)
	}
}

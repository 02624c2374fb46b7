// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster/demo"
)

// runMain makes the test binary run as the libra command, so that the tests run the real program,
// and the demo's processes are the program that was built for the test, including the race
// detector.
const runMain = "LIBRA_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" {
		if os.Getenv(alterWeights) != "" && len(os.Args) > 1 && os.Args[1] == "ps" {
			root := newRoot()
			root.SetOut(altered{os.Stdout})
			os.Exit(exitCode(os.Stderr, root.Execute(), false))
		}
		os.Exit(run())
	}
	// Most tests wait for processes: more of them at once than there are processors. The flag of
	// go test, which is parsed later, comes first.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// alterWeights makes 'libra ps' of a test say that it has other weights.
const alterWeights = "LIBRA_TEST_ALTER_WEIGHTS"

// altered changes the weights in what a server prints.
type altered struct{ io.Writer }

func (a altered) Write(line []byte) (int, error) {
	_, err := a.Writer.Write(bytes.ReplaceAll(line, []byte(`"weights_sha256":"`), []byte(`"weights_sha256":"x`)))
	return len(line), err
}

// libra returns a command that runs the program.
func libra(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), runMain+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// output runs the program and returns its output and exit code. JSON output must conform to the
// command's schema.
func output(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return outputWith(t, nil, args...)
}

// outputWith is output with more variables in the program's environment. Tests that change their
// own environment cannot run in parallel.
func outputWith(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := libra(t.Context(), args...)
	cmd.Env = append(cmd.Env, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code = cmd.ProcessState.ExitCode()
	checkJSON(t, args, out.String(), code)
	return out.String(), errs.String(), code
}

// inProcess is output in the test's process, which is cheaper.
func inProcess(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errs)
	code = exitCode(&errs, root.ExecuteContext(t.Context()), t.Context().Err() != nil)
	checkJSON(t, args, out.String(), code)
	return out.String(), errs.String(), code
}

// checkJSON checks a successful command's output, if it is JSON.
func checkJSON(t *testing.T, args []string, stdout string, code int) {
	t.Helper()
	if code != 0 || !slices.Contains(args, "--json") {
		return
	}
	c, _, err := newRoot().Find(args)
	if err != nil {
		t.Fatal(err)
	}
	if c.Deprecated != "" {
		return // the schema has the new name
	}
	conforms(t, c.CommandPath(), stdout)
}

// runDemo runs 'libra demo --json' and decodes the last line.
func runDemo(t *testing.T, args ...string) demo.Result {
	t.Helper()
	return runDemoWith(t, nil, args...)
}

// runDemoWith is runDemo with more variables in the program's environment.
func runDemoWith(t *testing.T, env []string, args ...string) demo.Result {
	t.Helper()
	stdout, stderr, code := outputWith(t, env, append([]string{"demo", "--json"}, args...)...)
	if code != 0 {
		t.Fatalf("libra demo %v: exit code %d\n%s", args, code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	var r demo.Result
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatalf("last line %q: %v", lines[len(lines)-1], err)
	}
	return r
}

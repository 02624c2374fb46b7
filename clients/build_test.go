// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package clients_test builds the C library and the Python package of clients/, and runs programs
// that use them: against an agent that misbehaves, and against agent.Agent with a whole job behind
// it.
package clients_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// limit is the time limit of a test's process, which might otherwise hang.
const limit = 3 * time.Minute

func TestMain(m *testing.M) {
	if path := os.Getenv(agentSocket); path != "" {
		agentMain(path)
	}
	var err error
	if built, err = os.MkdirTemp("", "libra-clients-*"); err == nil {
		err = os.Chmod(built, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(built)
		os.Exit(code)
	}))
}

// required is set by `make test`, which installs what these tests need: then none is skipped.
const required = "LIBRA_CLIENTS_REQUIRED"

// leaveOut skips a test because a program is missing, or fails it if required is set.
func leaveOut(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(required) != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// variant is how C programs are compiled.
type variant struct{ name, flags string }

var (
	plain   = variant{"plain", "-O2"}
	address = variant{"address", "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"}
	thread  = variant{"thread", "-O1 -g -fsanitize=thread -Wno-tsan"}
)

// built is a folder that all users can read.
var built string

// compiled compiles the library and the programs of c/test and c/example.c of each variant once.
var compiled = map[variant]func() error{plain: compile(plain), address: compile(address), thread: compile(thread)}

func compile(v variant) func() error {
	return sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		out, err := exec.CommandContext(ctx, "make", "-j2", "-C", "c", "programs",
			"O="+filepath.Join(built, v.name), "CFLAGS=-Werror "+v.flags).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, out)
		}
		return err
	})
}

// build builds the library and the programs, and returns their folder.
func build(t testing.TB, v variant) string {
	t.Helper()
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			leaveOut(t, tool+" is not on the PATH: the C library is not tested")
		}
	}
	if err := errors.Join(sources(), compiled[v]()); err != nil {
		t.Fatalf("the C programs, %s: %v", v.name, err)
	}
	return filepath.Join(built, v.name)
}

// program returns the command that runs a program of a build.
func program(t testing.TB, v variant, name string, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{filepath.Join(build(t, v), name)}, args...)
	// Randomised addresses may be those that ThreadSanitizer needs.
	if v == thread && exec.Command("setarch", "-R", "true").Run() == nil {
		args = append([]string{"setarch", "-R"}, args...)
	}
	return command(t, args[0], args[1:]...)
}

// command returns a command that is killed after the limit.
func command(t testing.TB, name string, args ...string) *exec.Cmd {
	return within(t, limit, name, args...)
}

// sources reads all files in C, C++ and Python, so that go test does not reuse results from before
// they changed.
var sources = sync.OnceValue(func() error {
	var errs []error
	for _, dir := range []string{"c", "python", "pslite"} {
		errs = append(errs, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() && (e.Name() == "build" || e.Name() == "__pycache__") {
				return fs.SkipDir
			}
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		}))
	}
	return errors.Join(errs...)
})

// within returns a command that is killed after a time.
func within(t testing.TB, most time.Duration, name string, args ...string) *exec.Cmd {
	t.Helper()
	if err := sources(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	return cmd
}

// run runs a command to its end, and returns its output.
func run(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	var text strings.Builder
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, text.String())
	}
	return string(out)
}

// SPDX-License-Identifier: Apache-2.0

// Package bedtest has helpers for tests on test beds: a bed that ends with its test, skipping
// without privileges, test binaries as other processes, and contexts that count their waiters.
package bedtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// New makes a bed that is closed at the end of the test. It skips the test without privileges.
func New(t testing.TB, cfg testbed.Config) *testbed.Bed {
	t.Helper()
	bed, err := testbed.New(t.Context(), cfg)
	Check(t, err)
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	return bed
}

// Check fails a test on an error, or skips it if privileges are missing.
func Check(t testing.TB, err error) {
	t.Helper()
	SkipDenied(t, err)
	if err != nil {
		t.Fatal(err)
	}
}

// SkipDenied skips a test if the error means that privileges are missing.
func SkipDenied(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, fs.ErrPermission) {
		t.Skip(err)
	}
}

// RunAs runs the test binary as another process if its first argument is a role: it calls run with
// the other arguments and does not return. TestMain calls it.
func RunAs(role string, run func(args []string) error) {
	if len(os.Args) < 2 || os.Args[1] != role {
		return
	}
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Processes returns the command lines of the processes with a mark among their arguments.
func Processes(t testing.TB, mark string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		line, err := os.ReadFile(f) // fails if the process has ended
		if args := strings.Split(string(line), "\x00"); err == nil && slices.Contains(args, mark) {
			found = append(found, strings.Join(args, " "))
		}
	}
	return found
}

// Ended waits until no process has a mark among its arguments: a killed process may take a while to
// end.
func Ended(t testing.TB, mark string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		left := Processes(t, mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes %v are left", left)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rowsFile writes the rows of a data file.
func rowsFile(t *testing.T, n int, row func(i int) string) string {
	t.Helper()
	var text strings.Builder
	for i := range n {
		fmt.Fprintln(&text, row(i))
	}
	path := filepath.Join(t.TempDir(), "rows.libfm")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Processes end because the one that fails has gone, and are often gone first: the demo still names
// the cause, and shows what the others said.
func TestDemoNamesTheCause(t *testing.T) {
	t.Parallel()
	rows := rowsFile(t, 200, func(i int) string { // every second worker has the large features
		if i%4 < 2 {
			return fmt.Sprintf("%d %d:1 7:1e7", 1-i%2, 3+i%2)
		}
		return fmt.Sprintf("%d %d:1 9:1", 1-i%2, 3+i%2)
	})
	for i := range 10 {
		_, stderr, code := output(t, "demo", "--backend", "udp", "--data", rows, "--model", "lr", "--workers", "4", "--sync", "--baseline", "none")
		_, failure, _ := strings.Cut(stderr, "libra: ")
		cause, _, _ := strings.Cut(failure, "\nand ")
		if code != exitFailure || !strings.HasPrefix(cause, "worker ") || !strings.Contains(cause, "out of range") || strings.Contains(cause, "left before") {
			t.Fatalf("run %d: code %d, the cause is not first: %s", i, code, stderr)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

// Package realdata finds the real training data that some tests use. The data is beside
// the repository, in ../shared/data, and no part of it.
package realdata

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Path returns the path of a data file and skips the test where the data is
// not installed.
func Path(tb testing.TB, name string) string {
	tb.Helper()
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		tb.Fatal("realdata: the build carries no file names (-trimpath); cannot locate the repository")
	}
	root := filepath.Join(filepath.Dir(self), "..", "..", "..")
	dir := filepath.Join(root, "..", "shared", "data")
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		tb.Skipf("no training data in %s", dir)
	}
	return filepath.Join(dir, name)
}

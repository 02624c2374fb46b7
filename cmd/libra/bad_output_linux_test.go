// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A folder in which no file can be written is found before the work, not after minutes of it, and
// the check leaves nothing behind.
func TestFolderThatTakesNoFile(t *testing.T) {
	full, err := os.MkdirTemp("/dev/shm", "libra-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(full) })
	if err := os.Chmod(full, 0o500); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // permissions do not apply to root
		if err := syscall.Mount("none", full, "tmpfs", syscall.MS_RDONLY, ""); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { _ = syscall.Unmount(full, 0) })
	}
	data, checkpoint := writeFile(t, "rows.libfm", clicks(200, 1)), filepath.Join(trained(t, "lr"), "weights.libra")
	file := filepath.Join(full, "file")
	for _, args := range [][]string{
		{"hotset", "build", "--data", data, "--out", file},
		{"export", "--format", "csv", "--weights", checkpoint, "--out", file},
		{"predict", "--weights", checkpoint, "--data", data, "--out", file},
		{"lut", "study", "--pairs", "1000000000", "--out", full}, // hours
		{"demo", "--backend", "udp", "--rows", "100000000", "--out", full},
	} {
		_, stderr, code := inProcess(t, args...)
		if code != exitFailure || !strings.Contains(stderr, "--out: "+args[len(args)-1]+" cannot be written: ") {
			t.Errorf("%v: exit code %d\n%s", args, code, stderr)
		}
	}
}

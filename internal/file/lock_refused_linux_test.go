// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/test/refuse"
)

// A file that cannot be locked or examined is not reported as locked.
func TestLockMeetsErrors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("refusing system calls needs root")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // garbage collection closes files
	path := filepath.Join(t.TempDir(), "file")
	for name, number := range map[string]uintptr{"flock": unix.SYS_FLOCK, "fstat": unix.SYS_FSTAT, "stat": unix.SYS_NEWFSTATAT} {
		before := refuse.CountDescriptors(t)
		err := refuse.Run(func() error {
			_, err := Lock(path, ".lock")
			return err
		}, refuse.Call{Number: number, Err: unix.EDOM})
		if !errors.Is(err, unix.EDOM) {
			t.Errorf("%s: %v, want EDOM", name, err)
		}
		if now := refuse.CountDescriptors(t); now != before {
			t.Errorf("%s: %d descriptors are open, %d before", name, now, before)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/internal/file"
)

// roomLater is a disk on which the first files cannot be created.
type roomLater struct {
	osDisk
	why   error
	fails int // calls that still fail
}

func (d *roomLater) Create(path string, mode fs.FileMode) (file.Writer, error) {
	if d.fails > 0 {
		d.fails--
		return nil, fmt.Errorf("create %s: %w", path, d.why)
	}
	return d.osDisk.Create(path, mode)
}

// The last checkpoint is tried again while the disk is full, or its quota is used up, until there
// is room. After other errors, and after a time limit, the server ends without it.
func TestLastCheckpointWaitsForRoom(t *testing.T) {
	for name, c := range map[string]struct {
		why   error
		fails int
		took  time.Duration
		saved bool
	}{
		"room at once":           {syscall.ENOSPC, 0, 0, true},
		"a full disk":            {syscall.ENOSPC, 3, 3 * saveAgain, true},
		"a quota":                {syscall.EDQUOT, 2, 2 * saveAgain, true},
		"never":                  {syscall.ENOSPC, 1000, waitForRoom - saveAgain, false},
		"a disk that is no good": {syscall.EIO, 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, true)
			var all lines
			s.progress.agreed = func() map[string]string { return map[string]string{} }
			s.env.Log, s.env.Machine.Disk = all.logger(), &roomLater{why: c.why, fails: c.fails}
			s.version = 1
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				err := s.saveAtEnd()
				if took := time.Since(begun); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if c.saved != (err == nil) || !c.saved && !(errors.Is(err, c.why) && errors.Is(err, ErrNotSaved)) {
					t.Errorf("it ends with %v", err)
				}
			})
			if _, err := os.Stat(s.env.Config.Server.Checkpoint); c.saved != (err == nil) {
				t.Errorf("the checkpoint: %v", err)
			}
			if said := strings.Contains(all.String(), "make room on its disk"); said != (c.took > 0) {
				t.Errorf("the log: %s", all.String())
			}
		})
	}
}

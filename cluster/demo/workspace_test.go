// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestWorkspaces begins runs at the same time. None takes the directory of another, which that has
// made and not locked yet, for an abandoned one; those of killed runs go.
func TestWorkspaces(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	abandoned, err := os.MkdirTemp("", workspacePattern)
	if err != nil {
		t.Fatal(err)
	}
	var runs sync.WaitGroup
	for range 4 {
		runs.Go(func() {
			for range 200 {
				w, err := newWorkspace()
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(w.dir, "file"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err := w.closeWorkspace(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	runs.Wait()
	if _, err := os.Stat(abandoned); !os.IsNotExist(err) {
		t.Errorf("what a killed run left is still there: %v", err)
	}
}

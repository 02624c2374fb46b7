// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// workspacePattern is the name pattern of the directories of runs.
const workspacePattern = "libra-demo-*"

// workspace is the directory of a run's files. The run holds a lock on it, which the kernel
// releases even when the run is killed.
type workspace struct {
	dir  string
	lock *os.File
}

// newWorkspace creates a directory, and removes those of runs that were killed.
func newWorkspace() (*workspace, error) {
	if err := removeAbandoned(); err != nil {
		return nil, err
	}
	for {
		dir, err := os.MkdirTemp("", workspacePattern)
		if err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
		lock, err := lockDir(dir)
		if err == nil {
			if _, err = os.Stat(dir); err == nil {
				return &workspace{dir, lock}, nil
			}
			lock.Close()
		}
		// Until it is locked, another run that starts considers it abandoned.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("demo: lock %s: %w", dir, err), os.RemoveAll(dir))
		}
	}
}

// lockDir locks a directory, or fails at once if another process has locked it.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func removeAbandoned() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), workspacePattern))
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	for _, dir := range dirs {
		lock, err := lockDir(dir)
		if err != nil {
			continue // its run is alive, or belongs to another user
		}
		err = os.RemoveAll(dir)
		lock.Close()
		if err != nil {
			return fmt.Errorf("demo: remove what a killed run left: %w", err)
		}
	}
	return nil
}

func (w *workspace) closeWorkspace() error {
	defer w.lock.Close()
	return os.RemoveAll(w.dir)
}

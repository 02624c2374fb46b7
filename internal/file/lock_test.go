// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestLockHasOneHolder(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	// The file of a killed process does not lock.
	if err := os.WriteFile(path+".lock", []byte("123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		unlock, err := Lock(path, ".lock")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{path, link} {
			_, err = Lock(name, ".lock")
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
				t.Errorf("a second lock of %s: %v", name, err)
			}
		}
		if err := unlock(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path + ".lock"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the lock's file is still there: %v", err)
		}
	}
	if _, err := Lock(filepath.Join(dir, "none", "file"), ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// Anything that is not a lock's own file stays: a link to another file, a dangling one, a pipe, a
// folder.
func TestLockTakesNoOtherFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.WriteFile(at("other"), []byte("kept"), 0o600), os.Symlink("other", at("link.lock")), os.Symlink("none", at("lost.lock")),
		syscall.Mkfifo(at("pipe.lock"), 0o600), os.Mkdir(at("folder.lock"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	for name, what := range map[string]string{"link": "a symbolic link", "lost": "a symbolic link", "pipe": "p---------", "folder": "d---------"} {
		if _, err := Lock(at(name), ".lock"); !errors.Is(err, ErrNotRegular) || err.Error() != "lock "+at(name)+".lock: not a regular file ("+what+"): remove it" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(at(name) + ".lock"); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
	if text, err := os.ReadFile(at("other")); string(text) != "kept" || err != nil {
		t.Errorf("the other file has %q, %v", text, err)
	}
	if _, err := os.Lstat(at("none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that the link leads to: %v", err)
	}
}

// The file is created and removed with the lock, and yet there is one holder at a time.
func TestLockWhileItsFileComesAndGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var (
		group   sync.WaitGroup
		holders sync.Mutex
	)
	for range 4 {
		group.Go(func() {
			for taken := 0; taken < 200; {
				unlock, err := Lock(path, ".lock")
				if errors.Is(err, ErrLocked) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if !holders.TryLock() {
					t.Error("two holders")
					return
				}
				taken++
				holders.Unlock()
				if err := unlock(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

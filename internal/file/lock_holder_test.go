// SPDX-License-Identifier: Apache-2.0

//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A lock's file may be empty for a moment, or because the disk is full: then the holder has no
// name.
func TestLockOfANamelessHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	unlock, err := Lock(path, ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path+".lock", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path, ".lock"); !errors.Is(err, ErrLocked) || strings.Contains(err.Error(), "its id") {
		t.Errorf("a second holder: %v", err)
	}
	if err := unlock(); err != nil {
		t.Error(err)
	}
}

// isAt detects that a file's name refers to another file or to none; of a closed file it is not
// known.
func TestIsAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first := open()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := isAt(first, path); !errors.Is(err, errRemoved) {
		t.Errorf("removed: %v", err)
	}
	second := open()
	for f, want := range map[*os.File]error{first: errRemoved, second: nil} {
		if err := isAt(f, path); !errors.Is(err, want) {
			t.Errorf("replaced: %v, want %v", err, want)
		}
	}
	second.Close()
	if err := isAt(second, path); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed file: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package file

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

const someone = 12345

func owner(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	uid, _, _ := ownerOf(info)
	return uid
}

// write writes a file and gives it.
func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Give(path); err != nil {
		t.Fatal(err)
	}
}

func bySudo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to others")
	}
	t.Setenv("SUDO_UID", "12345")
	t.Setenv("SUDO_GID", "12345")
}

func TestWhatIsMadeIsTheUsers(t *testing.T) {
	bySudo(t)
	root := t.TempDir()
	dir := filepath.Join(root, "a", "b")
	if err := MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "file"))
	for _, path := range []string{"a", "a/b", "a/b/file"} {
		if uid := owner(t, filepath.Join(root, path)); uid != someone {
			t.Errorf("%s is left to user %d", path, uid)
		}
	}
	// Existing files are not given.
	if err := MkdirAll(root, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "file"))
	for _, path := range []string{".", "file"} {
		if uid := owner(t, filepath.Join(root, path)); uid != 0 {
			t.Errorf("%s, which is root's, was given to user %d", path, uid)
		}
	}
}

// A user who may only run the program as root cannot get a file of root's by it.
func TestOtherFilesStayRoots(t *testing.T) {
	bySudo(t)
	secret := filepath.Join(t.TempDir(), "secret")
	dir := filepath.Join(t.TempDir(), "users")
	if err := MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(old, path string) error{
		"symbolic link": os.Symlink, "hard link": os.Link,
		"FIFO": func(_, path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		path := filepath.Join(dir, name)
		if err := make(secret, path); err != nil {
			t.Fatal(err)
		}
		_ = Give(path) // may return the reason
		if a, b := owner(t, secret), owner(t, path); a != 0 || b != 0 {
			t.Errorf("%s: given to users %d, %d", name, a, b)
		}
	}
}

func TestWithoutSudoNothingIsGiven(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "file"))
	if uid := owner(t, filepath.Join(dir, "file")); uid != os.Geteuid() {
		t.Errorf("given to user %d", uid)
	}
}

// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// fullDisk has room for names, but for no block of contents.
type fullDisk struct{ OS }

// fullFile stores a few bytes with its name, as some file systems do.
type fullFile struct {
	Writer
	n int
}

func (fullDisk) Create(path string, mode fs.FileMode) (Writer, error) {
	f, err := OS{}.Create(path, mode)
	return &fullFile{Writer: f}, err
}

func (f *fullFile) Write(b []byte) (int, error) {
	if f.n += len(b); f.n > 100 {
		return 0, errDisk
	}
	return f.Writer.Write(b)
}

// A full disk is noticed early, and nothing is left on it.
func TestPrepareOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := PrepareOn(fullDisk{}, filepath.Join(dir, "x"), suffix); !errors.Is(err, errDisk) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("%v, %v", left, err)
	}
}

// Chains of links, of which the last leads to a file that does not exist yet, are followed as far
// as Linux does.
func TestManyLinks(t *testing.T) {
	dir := t.TempDir()
	for i := range maxLinks {
		if err := os.Symlink(fmt.Sprint(i+1), filepath.Join(dir, fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	want := filepath.Join(dir, fmt.Sprint(maxLinks))
	if got := Resolve(filepath.Join(dir, "0")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

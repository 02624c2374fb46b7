// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

var errDisk = errors.New("the disk is broken")

// wantError checks that an error contains a text.
func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
}

// TestErrorsNameThePlace checks the numbers in errors of a store whose rows, columns and counts all
// differ.
func TestErrorsNameThePlace(t *testing.T) {
	s := newStore(t, Config{Dim: 3, Exp: DefaultExp})
	keys, hot := []uint64{70, 80}, []uint64{40, 50}
	wantError(t, s.Push(keys, make([]float32, 5)), "ps: 5 gradients for 2 rows of 3")
	wantError(t, s.Push(keys, []float32{0, 0, 0, 0, 0, float32(math.NaN())}), "ps: gradient 5 (key 80, column 2): ")
	wantError(t, s.AddSum(70, 4, 1), "ps: column 4 of a row of 3")
	for _, key := range []uint64{50, 80} {
		if err := s.AddSum(key, 2, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, s.AddSum(80, 2, 1), "ps: key 80, column 2: ")
	wantError(t, s.Push(keys, []float32{1, 1, 1, 1, 1, 1}), "ps: gradient 5 (key 80, column 2): ")
	for _, c := range []struct {
		harvest Harvest
		says    string
	}{
		{Harvest{Number: 9, Sums: []int64{1, 1, 1, 1, 1, 1}}, "ps: harvest 9, key 50, column 2: "},
		{Harvest{Number: 9, Ranks: []uint32{7}, Sums: []int64{1}}, "ps: harvest 9 contains a sum of rank 7, the hot set contains 2 rows of dimension 3"},
		{Harvest{Number: 9, Ranks: []uint32{7}, Sums: []int64{1, 2}}, "ps: harvest 9 has 1 ranks for 2 sums"},
	} {
		_, err := s.ApplyHarvest(c.harvest, hot)
		wantError(t, err, c.says)
	}
	_, err := ParseMethod("adam")
	wantError(t, err, `ps: unknown optimiser "adam"`)
}

// TestCheckpointErrorsNameTheFault damages files in ways that only the message distinguishes.
func TestCheckpointErrorsNameTheFault(t *testing.T) {
	cfg := Config{Dim: 2, Exp: DefaultExp}
	file := encode(t, sample(t, cfg), nil)
	read := func(file []byte, cfg Config) error {
		_, _, err := ReadCheckpoint(bytes.NewReader(file), cfg)
		return err
	}
	for _, n := range []int{9, 30, checkpointHeadLen + 4, len(file) - 1} {
		wantError(t, read(file[:n], cfg), fmt.Sprintf("it ends after %d bytes", n))
	}
	other := cfg
	other.Dim = 3
	wantError(t, read(file, other), "its row dimension is 2, the job's is 3")
	wantError(t, read(file, Config{}), "ps: row dimension 0")

	zeros := bytes.Clone(file)
	clear(zeros[checkpointHeadLen:][:4])
	wantError(t, read(zeros, cfg), ", stored is 00000000")

	twice := bytes.Clone(file)
	rows := twice[checkpointHeadLen+4:]
	copy(rows[16:24], rows[:8]) // rows of 16 bytes begin with their key
	wantError(t, read(seal(twice), cfg), "key 9 comes twice")

	for _, n := range []int{0, 4, 20, checkpointHeadLen + 4, len(file)} {
		in := io.MultiReader(bytes.NewReader(file[:n]), iotest.ErrReader(errDisk))
		_, _, err := ReadCheckpoint(in, cfg)
		if n < len(file) && !errors.Is(err, errDisk) || err == nil {
			t.Errorf("a disk that breaks at byte %d: %v", n, err)
		}
	}

	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := Restore(path, cfg)
	if !errors.Is(err, ErrNotCheckpoint) || !strings.HasPrefix(err.Error(), path+": ") {
		t.Errorf("another file: %v", err)
	}
}

// TestReaderReturnsZerosAfterAnError continues to read after the end.
func TestReaderReturnsZerosAfterAnError(t *testing.T) {
	c := &checkpointReader{in: bufio.NewReader(strings.NewReader("abcd"))}
	if first, second := c.readUint32(), c.readUint32(); first != 0x64636261 || second != 0 || !errors.Is(c.err, ErrCorrupt) {
		t.Errorf("%#x, %#x, %v", first, second, c.err)
	}
}

// TestRestoreClosesItsFile looks for the file among the process's open ones.
func TestRestoreClosesItsFile(t *testing.T) {
	const open = "/proc/self/fd"
	if _, err := os.Stat(open); err != nil {
		t.Skip("the system does not tell which files are open")
	}
	cfg := Config{Dim: 2, Exp: DefaultExp}
	path := filepath.Join(t.TempDir(), "x")
	if err := sample(t, cfg).Checkpoint(path, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(path, cfg); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(t, open) {
		if to, err := os.Readlink(filepath.Join(open, name)); err == nil && to == path {
			t.Errorf("%s is still open", path)
		}
	}
}

// TestDiskErrors checks errors of the operating system.
func TestDiskErrors(t *testing.T) {
	dir := t.TempDir()
	wantError(t, PrepareCheckpoint(filepath.Join(dir, "none", "x")), "ps: a checkpoint cannot be written: ")
	path := filepath.Join(dir, "x")
	if err := os.MkdirAll(path+".tmp/full", 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, PrepareCheckpoint(path), "ps: a checkpoint cannot be written: remove what a killed process left")
}

// TestCheckpointBehindALinkInALinkedFolder has a link that is relative to its folder, not to the
// path there.
func TestCheckpointBehindALinkInALinkedFolder(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "disk", "weights")
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "disk", "links"), 0o700), os.WriteFile(target, nil, 0o600),
		os.Symlink("../weights", filepath.Join(dir, "disk", "links", "x")), os.Symlink("disk/links", filepath.Join(dir, "way")))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dim: 2, Exp: DefaultExp}
	if err := sample(t, cfg).Checkpoint(filepath.Join(dir, "way", "x"), nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(target, cfg); err != nil {
		t.Error(err)
	}
}

// TestWritingEndsWithTheFirstError counts the owner's turns of a snapshot when the disk is full.
func TestWritingEndsWithTheFirstError(t *testing.T) {
	s := newStore(t, Config{Dim: 64, Exp: DefaultExp})
	for key := range uint64(2000) { // rows of 264 bytes: many turns
		if err := s.AddSum(key, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	s.Commit()
	for attached, want := range map[int]int{0: 2, 1 << 18: 1} { // the last turn ends the snapshot
		turns := 0
		err := s.Snapshot(make([]byte, attached)).Write(&brokenWriter{20}, func(f func()) error {
			turns++
			f()
			return nil
		})
		if !errors.Is(err, os.ErrClosed) || turns != want {
			t.Errorf("%d bytes attached: %d turns, %v; want %d", attached, turns, err, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func encode(tb testing.TB, h *HotSet) []byte {
	tb.Helper()
	var b bytes.Buffer
	n, err := h.WriteTo(&b)
	if err != nil {
		tb.Fatal(err)
	}
	if n != int64(b.Len()) {
		tb.Fatalf("WriteTo says %d bytes, wrote %d", n, b.Len())
	}
	return b.Bytes()
}

// reseal corrects the checksum after a change.
func reseal(b []byte) []byte {
	body := b[:len(b)-sha256.Size]
	d := sha256.Sum256(body)
	return append(bytes.Clone(body), d[:]...)
}

type contents struct {
	Dim    int
	Keys   []uint64
	Counts []uint64
	Meta   Meta
}

func contentsOf(h *HotSet) contents {
	c := contents{Dim: h.Dim(), Meta: h.Meta()}
	for r := range uint32(h.Len()) {
		c.Keys = append(c.Keys, h.Key(r))
		c.Counts = append(c.Counts, h.Count(r))
	}
	return c
}

func TestHotSetFileRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hot")
	rapid.Check(t, func(rt *rapid.T) {
		keys := keysGen(2000).Draw(rt, "keys")
		counts := rapid.SliceOfN(rapid.Uint64(), len(keys), len(keys)).Draw(rt, "counts")
		meta := Meta{
			Rate: rapid.Float64Range(0, 1).Draw(rt, "rate"), Seed: rapid.Uint64().Draw(rt, "seed"),
			Rows: 1, Updates: 2, Covered: 3, CountErr: 4,
		}
		h, err := NewHotSet(rapid.IntRange(1, maxDim).Draw(rt, "dim"), keys, counts, meta)
		if err != nil {
			rt.Fatal(err)
		}
		if err := SaveHotSet(path, h); err != nil { // replaces the last one
			rt.Fatal(err)
		}
		got, err := LoadHotSet(path)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(contentsOf(h), contentsOf(got)); diff != "" {
			rt.Fatalf("(-saved +loaded)\n%s", diff)
		}
		if h.Fingerprint() != got.Fingerprint() {
			rt.Fatal("fingerprint changed")
		}
	})
}

// TestHotSetFileOfManyKeys reads a file in several parts, of which the last is a small one.
func TestHotSetFileOfManyKeys(t *testing.T) {
	keys := make([]uint64, 1500)
	for i := range keys {
		keys[i] = uint64(7 * i)
	}
	h := mustHotSet(t, 2, keys...)
	file := bytes.NewReader(append(encode(t, h), "and what follows it"...))
	got, err := ReadHotSet(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(contentsOf(h), contentsOf(got)); diff != "" {
		t.Errorf("(-written +read)\n%s", diff)
	}
	if rest, err := io.ReadAll(file); err != nil || string(rest) != "and what follows it" {
		t.Errorf("it left %q, %v", rest, err)
	}
}

func TestReadHotSetErrors(t *testing.T) {
	good := encode(t, mustHotSet(t, 3, 100, 200, 300))
	change := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	header := func(keys uint64) []byte {
		b := bytes.Clone(good)
		binary.BigEndian.PutUint64(b[16:], keys)
		return b
	}
	twice := bytes.Clone(good)
	copy(twice[hotSetHeadLen:hotSetHeadLen+8], twice[hotSetHeadLen+16:])
	for name, c := range map[string]struct {
		data []byte
		want error
		text string
	}{
		"empty":            {nil, ErrCorrupt, "it ends after"},
		"magic cut":        {good[:5], ErrCorrupt, "it ends after"},
		"header cut":       {good[:40], ErrCorrupt, "it ends after"},
		"keys cut":         {good[:hotSetHeadLen+9], ErrCorrupt, "it ends after"},
		"counts cut":       {good[:hotSetHeadLen+24], ErrCorrupt, "it ends after"},
		"checksum cut":     {good[:len(good)-1], ErrCorrupt, "it ends after"},
		"other file":       {[]byte("hello, this is some text that is not a hot set, but long enough to be one"), ErrNotHotSet, "it begins with"},
		"short other file": {[]byte("hello"), ErrNotHotSet, "it begins with"},
		"version":          {reseal(change(11, 2)), ErrVersion, "version 1"},
		"dimension zero":   {reseal(change(15, 0)), ErrHotSet, "keys of dimension"},
		"too many keys":    {header(maxHotKeys + 1), ErrHotSet, "keys of dimension"},
		"more than there":  {header(maxHotKeys), ErrCorrupt, "it ends after"},
		"meta damaged":     {change(30, 0xff), ErrCorrupt, "its checksum is"},
		"key damaged":      {change(hotSetHeadLen+7, 1), ErrCorrupt, "its checksum is"},
		"count damaged":    {change(hotSetHeadLen+24+7, 1), ErrCorrupt, "its checksum is"},
		"checksum damaged": {change(len(good)-1, good[len(good)-1]^1), ErrCorrupt, "its checksum is"},
		"duplicate key":    {reseal(twice), ErrHotSet, "has the ranks"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadHotSet(bytes.NewReader(c.data))
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if c.text == "it ends after" {
				c.text = fmt.Sprintf("it ends after %d bytes", len(c.data))
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %q", err, c.text)
			}
		})
	}
	t.Run("reader fails", func(t *testing.T) {
		broken := errors.New("disk on fire")
		r := io.MultiReader(bytes.NewReader(good[:80]), iotest.ErrReader(broken))
		if _, err := ReadHotSet(r); !errors.Is(err, broken) {
			t.Fatalf("got %v, want %v", err, broken)
		}
	})
	t.Run("reads no further", func(t *testing.T) {
		r := bytes.NewReader(append(bytes.Clone(good), "next"...))
		if _, err := ReadHotSet(r); err != nil {
			t.Fatal(err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "next" {
			t.Fatalf("left %q in the stream", rest)
		}
	})
}

// failingWriter fails after n bytes.
type failingWriter struct{ n int }

var errFull = errors.New("disk full")

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.n -= len(b); w.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriteToReportsErrors(t *testing.T) {
	h := mustHotSet(t, 1, make50()...)
	size := len(encode(t, h))
	for _, n := range []int{0, size - sha256.Size, size - 1} {
		if _, err := h.WriteTo(&failingWriter{n}); !errors.Is(err, errFull) {
			t.Errorf("writer full after %d bytes: got %v", n, err)
		}
	}
	if _, err := h.WriteTo(&failingWriter{size}); err != nil {
		t.Error(err)
	}
}

// failingOnce fails at one write. There is room for the next ones: another process has made some.
type failingOnce struct{ writes, at int }

func (w *failingOnce) Write(b []byte) (int, error) {
	if w.writes++; w.writes == w.at {
		return 0, errFull
	}
	return len(b), nil
}

// A hole in a hot set is an error, whether or not what follows it is written.
func TestWriteToReportsHoles(t *testing.T) {
	h, all := mustHotSet(t, 1, make50()...), &failingOnce{}
	if _, err := h.WriteTo(all); err != nil {
		t.Fatal(err)
	}
	for at := 1; at <= all.writes; at++ {
		if _, err := h.WriteTo(&failingOnce{at: at}); !errors.Is(err, errFull) {
			t.Errorf("write %d of %d fails: %v", at, all.writes, err)
		}
	}
}

func TestLoadHotSetErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := LoadHotSet(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	path := filepath.Join(dir, "long")
	if err := os.WriteFile(path, append(encode(t, mustHotSet(t, 1, 7)), 0), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHotSet(path); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "bytes follow") || !strings.HasPrefix(err.Error(), path+": ") {
		t.Errorf("trailing byte: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadHotSet(path); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "after 0 bytes") || !strings.HasPrefix(err.Error(), path+": ") {
		t.Errorf("empty file: %v", err)
	}
}

func TestSaveHotSetLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	// A directory of that name makes the last step, the rename, fail.
	path := filepath.Join(dir, "hot")
	if err := os.MkdirAll(filepath.Join(path, "child"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := SaveHotSet(path, mustHotSet(t, 1, 7)); err == nil {
		t.Fatal("replaced a directory")
	}
	if err := SaveHotSet(filepath.Join(dir, "absent", "hot"), mustHotSet(t, 1, 7)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("absent directory: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// Other users' processes read the file, so it must not keep the temporary
// file's mode.
func TestSaveHotSetMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hot")
	if err := SaveHotSet(path, mustHotSet(t, 1, 7)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
}

func FuzzReadHotSet(f *testing.F) {
	good := encode(f, mustHotSet(f, 3, 100, 200, 300))
	f.Add([]byte{})
	f.Add(good)
	f.Add(encode(f, mustHotSet(f, 1)))
	f.Add(good[:len(good)-7])
	f.Add(append(bytes.Clone(good), 1, 2, 3))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The fuzzer cannot compute checksums, so the data are tried unchanged and with a correct
		// one.
		for _, b := range [][]byte{data, reseal(append(bytes.Clone(data), make([]byte, sha256.Size)...))} {
			h, err := ReadHotSet(bytes.NewReader(b))
			if err != nil {
				continue
			}
			if again := encode(t, h); !bytes.HasPrefix(b, again) {
				t.Fatalf("accepted %x, encodes as %x", b, again)
			}
			for r := range uint32(h.Len()) {
				if got, ok := h.Rank(h.Key(r)); !ok || got != r {
					t.Fatalf("Rank(Key(%d)) = %d, %v", r, got, ok)
				}
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// TestErrorTexts checks that errors have the fault, its place, and whether anything was sent.
func TestErrorTexts(t *testing.T) {
	for err, want := range map[error]string{
		&NotFiniteError{Index: 3, Key: 70, Value: float32(math.Inf(-1))}: "packer: gradient 3 (key 70) is -Inf; nothing of the batch was sent: put a finite number there, or leave the row out",
		&RangeError{Index: 4, Key: 71, Value: 2048}:                      "packer: gradient 4 (key 71) is 2048, out of the job's range; nothing of the batch was sent: scale the gradients down, or give the job a larger exponent",
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
	}
	for layout, want := range map[Layout]string{LaneAligned: "lane-aligned", Dense: "dense", 7: "Layout(7)"} {
		if layout.String() != want {
			t.Errorf("%q, want %q", layout, want)
		}
	}
	h := mustHotSet(t, 1, 7)
	if text := h.Fingerprint().String(); len(text) != 64 || strings.Trim(text, "0123456789abcdef") != "" {
		t.Errorf("a fingerprint prints as %q", text)
	}
}

// TestRefusalTexts checks that errors have the wrong number and the range.
func TestRefusalTexts(t *testing.T) {
	const dim = 1 << 15
	rows := make([]uint64, MaxSlots/dim+1)
	for i := range rows {
		rows[i] = uint64(i)
	}
	for want, c := range map[string]Config{
		"row dimension -1 is not positive":                                       {Dim: -1},
		"row dimension 3, but the hot set has 2":                                 {HotSet: mustHotSet(t, 2, 1), Dim: 3},
		"2049 hot rows of dimension 32768 exceed 67108864 slots":                 {HotSet: mustHotSet(t, dim, rows...)},
		"unknown layout 2":                                                       {Dim: 1, Layout: 2},
		fmt.Sprintf("26 stripes a frame, possible are 1 to %d", wire.MaxStripes): {Dim: 1, Stripes: 26},
	} {
		if _, err := New(c); err == nil || err.Error() != "packer: bad configuration: "+want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for what, c := range map[string]Config{
		"as many rows as slots": {HotSet: mustHotSet(t, dim, rows[:MaxSlots/dim]...)},
		"the most stripes":      {Dim: 1, Stripes: wire.MaxStripes},
	} {
		if _, err := New(c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	p, err := New(Config{Dim: 3})
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct{ keys, grads uint64 }{
		"packer: gradients do not match keys: 5 keys of dimension 3, 14 gradients":                                {5, 14},
		"packer: gradients do not match keys: a batch of 4294967298 gradients; push at most 4294967295 at a time": {1431655766, 4294967298},
	} {
		if err := p.checkShape(c.keys, c.grads); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := p.checkShape(math.MaxUint32/3, math.MaxUint32); err != nil {
		t.Errorf("the largest batch: %v", err)
	}
}

// TestSaveHotSetHere saves into the working directory, by a bare name, and replaces an existing
// file.
func TestSaveHotSetHere(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, key := range []uint64{7, 8} {
		if err := SaveHotSet("hot", mustHotSet(t, 1, key)); err != nil {
			t.Fatal(err)
		}
		h, err := LoadHotSet("hot")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := h.Rank(key); !ok || h.Len() != 1 {
			t.Errorf("key %d is not in the file, which has %d", key, h.Len())
		}
	}
	if names, err := filepath.Glob(".*"); err != nil || len(names) != 0 {
		t.Errorf("left behind: %q, %v", names, err)
	}
	// A reader that opened the file before still reads the old one.
	f, err := os.Open("hot")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	old, err := os.ReadFile("hot")
	if err != nil {
		t.Fatal(err)
	}
	if err := SaveHotSet("hot", mustHotSet(t, 1, 9)); err != nil {
		t.Fatal(err)
	}
	var read bytes.Buffer
	if _, err := read.ReadFrom(f); err != nil || !bytes.Equal(read.Bytes(), old) {
		t.Errorf("the file was written over: %d bytes, %v", read.Len(), err)
	}
}

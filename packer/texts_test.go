package packer

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestErrorTexts: what was wrong, where, and whether anything was sent.
func TestErrorTexts(t *testing.T) {
	for err, want := range map[error]string{
		&NotFiniteError{Index: 3, Key: 70, Value: float32(math.Inf(-1))}: "packer: gradient 3 (key 70) is -Inf; nothing of the batch was sent",
		&RangeError{Index: 4, Key: 71, Value: 2048}:                      "packer: gradient 4 (key 71) is 2048, out of the job's range; nothing of the batch was sent",
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

// TestSaveHotSetHere saves into the working directory, by a bare name, and
// replaces what is there.
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

func TestSamplerSaysHowItSamples(t *testing.T) {
	s, err := NewSampler(0.25, 9)
	if err != nil || s.Rate() != 0.25 || s.seed != 9 {
		t.Errorf("rate %v, seed %v, %v", s.Rate(), s.seed, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// documented is the store whose checkpoint docs/checkpoint.md shows.
func documented(t *testing.T) (s *Store, attachment []byte) {
	t.Helper()
	s = newStore(t, Config{Dim: 2, Exp: -46, Optimizer: Optimizer{Method: Adagrad, LearningRate: 0.5}, Init: Init{Scale: 0.125, Seed: 7}})
	if err := s.Push([]uint64{1000, 1<<64 - 1}, []float32{0.5, -0.25, 1, 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ApplyHarvest(Harvest{Instance: 0x1122334455667788, Number: 3, Sums: []int64{1 << 44}}, []uint64{1000}); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	return s, []byte("{}")
}

// TestCheckpointIsAsDocumented compares the table of docs/checkpoint.md, field by field, with a
// checkpoint: the fields are contiguous, and the example has the written bytes.
func TestCheckpointIsAsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/checkpoint.md")
	if err != nil {
		t.Fatal(err)
	}
	s, attachment := documented(t)
	file := encode(t, s, attachment)
	next := 0
	for _, row := range regexp.MustCompile("(?m)^\\| (\\d+) +\\| (\\d+) .*\\| `([0-9a-f ]+)` \\|$").FindAllStringSubmatch(string(text), -1) {
		offset, _ := strconv.Atoi(row[1])
		length, _ := strconv.Atoi(row[2])
		want, err := hex.DecodeString(strings.ReplaceAll(row[3], " ", ""))
		if err != nil || offset != next || len(want) != length {
			t.Fatalf("%s: the field before ends at %d; the example has %d bytes, %v", row[0], next, len(want), err)
		}
		next += length
		if next > len(file) || !bytes.Equal(file[offset:next], want) {
			t.Fatalf("%s: the checkpoint has % x", row[0], file[offset:min(next, len(file))])
		}
	}
	if next != len(file) {
		t.Errorf("the table describes %d of %d bytes, the next are % x", next, len(file), file[next:])
	}
}

func TestRows(t *testing.T) {
	s := sample(t, Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}})
	var keys []uint64
	want := make([]float32, 2)
	for key, weights := range s.Rows() {
		keys = append(keys, key)
		if s.Read([]uint64{key}, want); !slices.Equal(weights, want) {
			t.Errorf("row %d: %v, Read has %v", key, weights, want)
		}
	}
	if diff := cmp.Diff([]uint64{4, 9, 77, 1 << 63}, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	for key := range s.Rows() {
		if key != 4 {
			t.Errorf("the iteration goes on after its end, with %d", key)
		}
		break
	}
}

// The configuration in a checkpoint restores it.
func TestCheckpointConfig(t *testing.T) {
	for _, cfg := range []Config{
		{Dim: 3, Exp: -40, Optimizer: Optimizer{Method: Adagrad}, Init: Init{Seed: 5, Scale: 0.5}},
		{Dim: 1, Exp: DefaultExp, Optimizer: Optimizer{Method: SGD}, Init: Init{Seed: 1, Scale: DefaultScale}},
	} {
		s := sample(t, cfg)
		path := filepath.Join(t.TempDir(), "weights")
		if err := s.Checkpoint(path, nil); err != nil {
			t.Fatal(err)
		}
		got, err := CheckpointConfig(path)
		if diff := cmp.Diff(cfg, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if r, _, err := Restore(path, got); err != nil || r.Hash() != s.Hash() {
			t.Errorf("not restored with its own configuration: %v", err)
		}
		file := encode(t, s, nil)
		damaged := bytes.Clone(file)
		damaged[12] ^= 1
		for name, c := range map[string]struct {
			file []byte
			want error
		}{
			"another file": {[]byte("1 3:1 7:1\n"), ErrNotCheckpoint},
			"truncated":    {file[:40], ErrCorrupt},
			"damaged":      {damaged, ErrCorrupt},
		} {
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := CheckpointConfig(path); !errors.Is(err, c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if _, err := CheckpointConfig(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

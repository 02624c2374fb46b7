// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A snapshot is the store when it began, whatever is pushed and committed while it is copied.
func TestSnapshotIsOfOneMoment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(t)
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		feed := func() {
			for _, p := range parts(t, cfg.Dim) {
				if err := s.Push(p.keys, p.grads); err != nil {
					t.Fatal(err)
				}
			}
		}
		feed()
		s.Commit()
		feed()
		want := encode(t, s, []byte("now"))
		turns := 0
		var got bytes.Buffer
		p := s.Snapshot([]byte("now"))
		turn := func(f func()) error {
			if turns++; turns < 20 { // the rows are copied in many turns
				for range rapid.IntRange(0, 2).Draw(t, "commits") {
					s.Commit()
					feed()
				}
			}
			f()
			return nil
		}
		if err := p.writeRows(&got, 1, turn); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%x, want %x", got.Bytes(), want)
		}
		if s.snapshot != nil {
			t.Fatal("the snapshot has not ended")
		}
		// And the store has lost nothing.
		s.Commit()
		r, _, err := ReadCheckpoint(bytes.NewReader(encode(t, s, nil)), cfg)
		if err != nil || r.Hash() != s.Hash() {
			t.Fatalf("afterwards: %v", err)
		}
	})
}

// Every turn copies a limited part, and a large store takes several.
func TestSnapshotIsCopiedInTurns(t *testing.T) {
	cfg := Config{Dim: 50, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}}
	s := newStore(t, cfg)
	grads := make([]float32, 50)
	const rows = 3000 // of 408 bytes
	for key := range uint64(rows) {
		grads[0] = float32(key)
		if err := s.Push([]uint64{key}, grads); err != nil {
			t.Fatal(err)
		}
	}
	s.Commit()
	want := encode(t, s, nil)
	var got bytes.Buffer
	p := s.Snapshot(nil)
	copied, turns := 0, 0
	err := p.Write(&got, func(f func()) error {
		before := p.next
		f()
		if n := p.next - before; n > 0 {
			turns++
			copied += n
			if bytes := n * (8 + 8*50); bytes >= turnBytes+408 {
				t.Errorf("a turn copies %d bytes", bytes)
			}
		}
		return nil
	})
	if err != nil || copied != rows || turns < rows*408/turnBytes || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%v: %d rows in %d turns", err, copied, turns)
	}
}

// While no snapshot is in progress, a commit copies nothing; while one is, it copies unwritten
// rows, once.
func TestCommitKeepsRowsOnce(t *testing.T) {
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp})
	push := func(keys ...uint64) {
		t.Helper()
		if err := s.Push(keys, make([]float32, len(keys))); err != nil {
			t.Fatal(err)
		}
		s.Commit()
	}
	push(1, 2, 3)
	p := s.Snapshot(nil)
	push(2)
	push(2, 4)
	if diff := cmp.Diff(map[int]int{1: 0}, p.at); diff != "" || len(p.kept) != 1 {
		t.Errorf("%d floats kept: %s", len(p.kept), diff)
	}
	p.next = 1
	push(1, 3)
	if diff := cmp.Diff(map[int]int{1: 0, 2: 1}, p.at); diff != "" {
		t.Error(diff)
	}
}

func TestNewerSnapshotReplaces(t *testing.T) {
	s := sample(t, Config{Dim: 1, Exp: DefaultExp})
	old := s.Snapshot(nil)
	p := s.Snapshot([]byte("newer"))
	if err := old.Write(io.Discard, alone); !errors.Is(err, ErrReplaced) {
		t.Errorf("the older: %v", err)
	}
	if s.snapshot != p {
		t.Error("the older one's end ended the newer")
	}
	var file bytes.Buffer
	if err := p.Write(&file, alone); err != nil || s.snapshot != nil {
		t.Errorf("the newer: %v", err)
	}
	if _, attachment, err := ReadCheckpoint(&file, s.Config()); err != nil || string(attachment) != "newer" {
		t.Errorf("%q, %v", attachment, err)
	}
}

// When the store's owner has ended, the writing ends, with an error and without a file.
func TestSnapshotWithoutOwner(t *testing.T) {
	s := sample(t, Config{Dim: 1, Exp: DefaultExp})
	errGone := errors.New("the owner is gone")
	for turns := range 2 {
		dir := t.TempDir()
		path := filepath.Join(dir, "x")
		if err := os.WriteFile(path, []byte("the old one"), 0o644); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := s.Snapshot(nil).Save(path, func(f func()) error {
			if n++; n > turns {
				return errGone
			}
			f()
			return nil
		})
		got, readErr := os.ReadFile(path)
		if !errors.Is(err, errGone) || readErr != nil || string(got) != "the old one" || len(names(t, dir)) != 1 {
			t.Errorf("after %d turns: %v; %q, %v, %v", turns, err, got, readErr, names(t, dir))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func names(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestCheckpointFile(t *testing.T) {
	cfg := Config{Dim: 3, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad}, Init: Init{Seed: 5}}
	dir := t.TempDir()
	path := filepath.Join(dir, "job0.ckpt")
	if err := os.WriteFile(path, []byte("the previous one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // more than the umask leaves
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	s := sample(t, cfg)
	if err := s.Checkpoint(link, []byte("filter")); err != nil {
		t.Fatal(err)
	}
	r, attachment, err := Restore(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if string(attachment) != "filter" || lastHarvest(r) != 12 || r.Hash() != s.Hash() {
		t.Errorf("attachment %q, harvest %d", attachment, lastHarvest(r))
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if alone, err := ReadAttachment(bytes.NewReader(whole)); string(alone) != "filter" || err != nil {
		t.Errorf("the attachment alone: %q, %v", alone, err)
	}
	whole[9]++
	if _, err := ReadAttachment(bytes.NewReader(whole)); !errors.Is(err, ErrVersion) {
		t.Errorf("the attachment of another version: %v", err)
	}
	if !bytes.Equal(encode(t, s, nil), encode(t, r, nil)) {
		t.Error("a restored store makes another file")
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o666 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("files %v", got)
	}
	fresh := filepath.Join(dir, "fresh")
	if err := s.Checkpoint(fresh, nil); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode()&^0o644 != 0 || info.Mode()&0o600 != 0o600 {
		t.Errorf("a new file has mode %v, %v", info.Mode(), err)
	}
}

func TestFailedCheckpointLeavesTheOldOne(t *testing.T) {
	s := sample(t, Config{Dim: 1, Exp: DefaultExp})
	dir := t.TempDir()
	if err := s.Checkpoint(filepath.Join(dir, "absent", "x"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent directory: %v", err)
	}
	// A directory cannot be replaced by a file: the rename fails.
	path := filepath.Join(dir, "x")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint(path, nil); err == nil || !strings.Contains(err.Error(), "writing checkpoint") {
		t.Errorf("a directory: %v", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("files %v", got)
	}
	if _, _, err := Restore(filepath.Join(dir, "none"), Config{Dim: 1, Exp: DefaultExp}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}

func TestPrepareCheckpoint(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, name := range []string{"x", "x.tmp", "y.tmp", "x.other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half a chec"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := PrepareCheckpoint(path); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(names(t, dir), " "); got != "x x.other y.tmp" {
			t.Errorf("left: %s", got)
		}
	}
	if err := os.MkdirAll(path+".tmp/full", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := PrepareCheckpoint(path); err == nil || !strings.Contains(err.Error(), path+".tmp") {
		t.Errorf("a folder: %v", err)
	}
	missing := filepath.Join(dir, "none", "x")
	if err := PrepareCheckpoint(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("no folder: %v", err)
	}
}

// A link may lead, through others, to a file that does not exist yet: the checkpoint is written
// there.
func TestCheckpointBehindALinkToNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"first": filepath.Join(dir, "second"), "second": "disk/../disk/weights", "loop": "pool", "pool": "loop"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{Dim: 2, Exp: -20}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		path := filepath.Join(dir, "first")
		if err := errors.Join(PrepareCheckpoint(path), s.Checkpoint(path, nil)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Restore(filepath.Join(dir, "disk", "weights"), cfg); err != nil {
			t.Error(err)
		}
		if got := names(t, filepath.Join(dir, "disk")); len(got) != 1 {
			t.Errorf("files %v", got)
		}
	}
	if err := s.Checkpoint(filepath.Join(dir, "loop"), nil); err == nil {
		t.Error("links in a circle lead to a file")
	}
	for name, to := range links {
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != to {
			t.Errorf("link %s leads to %q, %v", name, got, err)
		}
	}
}

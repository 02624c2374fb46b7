// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
)

// smallHotSet is one of rows of two scalars.
func smallHotSet(t *testing.T) *packer.HotSet {
	t.Helper()
	hot, err := packer.NewHotSet(2, []uint64{11, 12, 13}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	return hot
}

// The held-out rows of a synthetic log are those after the ones for training.
func TestHeldOutRowsAreBeyondTheOthers(t *testing.T) {
	of := func(s cluster.Synthetic) *cluster.Config { return &cluster.Config{Data: cluster.Data{Synthetic: &s}} }
	held, err := LoadTest(of(cluster.Synthetic{First: 100, Rows: 50, Test: 70, Seed: 3, Hot: 1000, HotShare: 0.6}))
	if err != nil {
		t.Fatal(err)
	}
	src, err := OpenSource(of(cluster.Synthetic{First: 150, Rows: 70, Seed: 3, Hot: 1000, HotShare: 0.6}), data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	want, err := data.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	if held.Len() != 70 || !slices.Equal(held.Keys(), want.Keys()) || !slices.Equal(held.Labels(), want.Labels()) {
		t.Errorf("%d rows of %d features, want %d of %d", held.Len(), len(held.Keys()), want.Len(), len(want.Keys()))
	}
}

// Rows with one label alone have no AUC, but an error of regression.
func TestOneLabelIsEnoughForRegression(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(file, []byte("1 3:1\n1 4:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cluster.Config{Model: cluster.Model{Task: "regression"}, Data: cluster.Data{Test: file}}
	if d, err := LoadTest(c); err != nil || d.Len() != 2 {
		t.Errorf("%v, %v", d, err)
	}
}

// What is read is closed.
func TestFilesAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it closes what is forgotten
	c := newCluster(t, 1)
	c.Data.Test = filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(c.Data.Test, []byte("0 3:1\n1 4:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, true)
	s.progress.agreed = func() map[string]string { return map[string]string{} }
	if err := s.commitSync(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.saveCheckpoint(func(f func()) error { return s.loop.Do(t.Context(), f) }); err != nil {
		t.Fatal(err)
	}
	path := s.env.Config.Server.Checkpoint
	for name, read := range map[string]func() error{
		"held-out rows":    func() error { _, err := LoadTest(c); return err },
		"a checkpoint":     func() error { _, _, err := s.readCheckpoint(path, s.store.Config()); return err },
		"one that is kept": s.keepPrevious,
	} {
		if err := read(); err != nil {
			t.Fatal(name, err)
		}
		_, before := held(t)
		for range 10 {
			if err := read(); err != nil {
				t.Fatal(name, err)
			}
		}
		if _, after := held(t); after[path] != before[path] || after[c.Data.Test] != before[c.Data.Test] {
			t.Errorf("%s: open are %v, before %v", name, after, before)
		}
	}
}

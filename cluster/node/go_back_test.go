// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
)

// A server that is to begin with step 0 gives its checkpoint up if that may be the first one, and
// no later one; nor for another step.
func TestFirstCheckpointIsGivenUp(t *testing.T) {
	const every = 5
	for _, c := range []struct {
		at, begin uint64
		gives     bool
	}{{1, 0, true}, {every, 0, true}, {every + 1, 0, false}, {every, 1, false}, {every + 1, 1, false}} {
		s := newServer(t, true)
		cfg := *s.env.Config
		cfg.Servers, cfg.Server.CheckpointSteps = make([]cluster.Server, 2), every
		s.env.Config, s.env.Step = &cfg, &c.begin
		s.hot = smallHotSet(t)
		path := cfg.Server.Checkpoint
		if err := os.WriteFile(path, []byte("the checkpoint"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.progress.commitSteps(c.at)
		err := s.goBack(s.store.Config())
		_, stat := os.Stat(path)
		if gone := errors.Is(stat, fs.ErrNotExist); gone != c.gives {
			t.Errorf("a checkpoint of step %d for step %d is given up: %v", c.at, c.begin, gone)
		}
		if c.gives && (err != nil || s.progress.firstStep(1) != 0) || !c.gives && (err == nil || !strings.HasSuffix(err.Error(), ", and there is none before it")) {
			t.Errorf("a checkpoint of step %d for step %d: %v, then step %d", c.at, c.begin, err, s.progress.firstStep(1))
		}
	}
}

// notedDisk notes what is done to its files, has some that cannot be opened or removed, and counts
// those that are open.
type notedDisk struct {
	osDisk
	refuse string // the file
	did    []string
	open   int
}

type openFile struct {
	io.ReadCloser
	disk *notedDisk
}

func (f openFile) Close() error {
	f.disk.open--
	return f.ReadCloser.Close()
}

func (d *notedDisk) Open(path string) (io.ReadCloser, error) {
	if path == d.refuse {
		return nil, fs.ErrPermission
	}
	f, err := d.osDisk.Open(path)
	if err != nil {
		return nil, err
	}
	d.open++
	return openFile{f, d}, nil
}

func (d *notedDisk) Remove(path string) error {
	d.did = append(d.did, "remove "+filepath.Base(path))
	if path == d.refuse {
		return fs.ErrPermission
	}
	return d.osDisk.Remove(path)
}

func (d *notedDisk) SyncDir(path string) error {
	d.did = append(d.did, "sync")
	return d.osDisk.SyncDir(path)
}

// newNoted returns a server of several with such a disk, whose last checkpoint is of step 8, and
// that before it has the given attachment, or is no checkpoint if that is empty.
func newNoted(t *testing.T, before string) (*server, *notedDisk) {
	t.Helper()
	s, disk := newServer(t, true), &notedDisk{}
	c := *s.env.Config
	c.Servers, c.Server.CheckpointSteps = make([]cluster.Server, 2), 4
	s.env.Config, s.env.Machine.Disk, s.hot = &c, disk, smallHotSet(t)
	s.progress.agreed = func() map[string]string { return map[string]string{} }
	s.progress.commitSteps(8)
	attachment, err := s.progress.encodeAttachment()
	if err == nil {
		err = s.store.Checkpoint(c.Server.Checkpoint, attachment)
	}
	if err == nil && before == "" {
		err = os.WriteFile(c.Server.Checkpoint+previousSuffix, []byte("no checkpoint"), 0o600)
	} else if err == nil {
		err = s.store.Checkpoint(c.Server.Checkpoint+previousSuffix, []byte(before))
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, disk
}

// The steps with which a server can be started are those of the checkpoints that it can read.
func TestStepsToStartWith(t *testing.T) {
	for before, want := range map[string][]uint64{`{"agreed":{},"step":4}`: {8, 4}, "no progress": {8}, "": {8}} {
		s, disk := newNoted(t, before)
		if got := s.startSteps(); !slices.Equal(got, want) || disk.open != 0 {
			t.Errorf("before it %q: steps %v, want %v; %d files are open", before, got, want, disk.open)
		}
		disk.refuse = s.env.Config.Server.Checkpoint + previousSuffix
		if got := s.startSteps(); !slices.Equal(got, []uint64{8}) {
			t.Errorf("before it one that cannot be opened: steps %v", got)
		}
	}
}

// A server that cannot put the earlier checkpoint in the place of the last, or cannot give the
// first one up, does not begin. It closes the files that it has read.
func TestServerCannotGoBack(t *testing.T) {
	s, disk := newNoted(t, `{"agreed":{},"step":4}`)
	path, step := s.env.Config.Server.Checkpoint, uint64(4)
	s.env.Step = &step
	full := &fullDisk{file: path + temporary}
	s.env.Machine.Disk = full
	if err := s.goBack(s.store.Config()); !errors.Is(err, errFull) || s.progress.step != 8 {
		t.Errorf("without room: %v, then step %d", err, s.progress.step)
	}
	s.env.Machine.Disk = disk
	if err := s.copyCheckpoint(path+previousSuffix, path); err != nil || disk.open != 0 {
		t.Errorf("%v, and %d files are open", err, disk.open)
	}
	disk.refuse = path
	if err := s.copyCheckpoint(path, path+previousSuffix); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a checkpoint that cannot be read: %v", err)
	}
	if err := s.beginAnew(s.store.Config()); !errors.Is(err, fs.ErrPermission) || !strings.HasPrefix(err.Error(), "--step 0: giving up the checkpoint: ") {
		t.Errorf("a checkpoint that cannot be removed: %v", err)
	}
	disk.refuse, disk.did = "", nil
	if err := s.beginAnew(s.store.Config()); err != nil || !slices.Equal(disk.did, []string{"remove " + filepath.Base(path), "sync"}) {
		t.Errorf("%v, after %q", err, disk.did)
	}
}

// One server, which has one checkpoint alone, takes no step to begin with, whether it has a file or
// not.
func TestOneServerTakesNoStep(t *testing.T) {
	step := uint64(3)
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	defer cancel()
	c := newCluster(t, 1)
	for _, path := range []string{c.Server.Checkpoint, ""} {
		theirs := *c
		theirs.Server.Checkpoint = path
		_, err := RunServer(ctx, Env{Config: &theirs, Step: &step, Log: testLog(t)})
		if err == nil || err.Error() != "--step 3: only several servers of a job with job.sync keep checkpoints of the same steps: leave it out" {
			t.Errorf("checkpoint %q: %v", path, err)
		}
	}
}

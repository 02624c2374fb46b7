// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/libra-ina/libra/internal/file"
)

// disk is the disk of one machine. Writes survive the end of a process, but a loss of power only if
// they were synced: a file's contents by its Sync, its name by that of its folder.
type disk struct {
	rng    *rand.Rand
	names  map[string]*diskFile
	synced map[string]*diskFile // the names that survive a loss of power
	locks  map[string]*process

	// whole are the contents that the checkpoint's name has had, of which the last is durable; they
	// are compared after a loss of power.
	whole   [][]byte
	durable int
}

type diskFile struct {
	data, synced []byte
	mode         fs.FileMode
}

func newDisk(rng *rand.Rand) *disk {
	return &disk{rng: rng, names: map[string]*diskFile{}, synced: map[string]*diskFile{}, locks: map[string]*process{}, durable: -1}
}

// losePower keeps everything that was synced, and some of the rest.
func (d *disk) losePower() {
	// A name that was not synced may or may not be on the disk, but a folder is written in order.
	kept := d.synced
	if d.rng.IntN(2) == 0 {
		kept = d.names
	}
	d.names, d.synced = map[string]*diskFile{}, map[string]*diskFile{}
	for name, f := range kept {
		f.data = torn(d.rng, f)
		f.synced = f.data
		d.names[name], d.synced[name] = f, f
	}
	clear(d.locks)
}

// torn returns a file after a loss of power: unsynced blocks may be zero, and the end may be
// missing.
func torn(rng *rand.Rand, f *diskFile) []byte {
	const block = 512
	if bytes.Equal(f.data, f.synced) {
		return f.data
	}
	left := append([]byte(nil), f.data[:rng.IntN(len(f.data)+1)]...)
	for at := 0; at < len(left); at += block {
		if rng.IntN(3) == 0 {
			clear(left[at:min(at+block, len(left))])
		}
	}
	return left
}

// machineDisk is a process's access to its machine's disk.
type machineDisk struct {
	*disk
	of *process
}

// step fails if the process has ended.
func (d machineDisk) step() error {
	if d.of.dead.Load() {
		return errGone
	}
	return nil
}

func (d machineDisk) Resolve(path string) string { return path }

func (d machineDisk) Create(path string, mode fs.FileMode) (file.Writer, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	if d.names[path] != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrExist}
	}
	f := &diskFile{mode: mode}
	d.names[path] = f
	return &handle{d, f, 0}, nil
}

func (d machineDisk) Rename(from, to string) error {
	f := d.names[from]
	if err := d.step(); err != nil || f == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	switch before := d.names[to]; {
	case before == nil:
		f.mode = chosen // by the operator, who sees the file
	case before.mode != f.mode:
		d.of.c.s.fail("%s replaces %s, of mode %v, by a file of mode %v", d.of.name, to, before.mode, f.mode)
	}
	d.names[to] = f
	delete(d.names, from)
	d.whole = append(d.whole, bytes.Clone(f.data))
	d.of.c.accounts.written(f.data)
	return nil
}

func (d machineDisk) Remove(path string) error {
	if err := d.step(); err != nil {
		return err
	}
	if d.names[path] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	delete(d.names, path)
	return nil
}

func (d machineDisk) SyncDir(string) error {
	if err := d.step(); err != nil {
		return err
	}
	d.synced = map[string]*diskFile{}
	for name, f := range d.names {
		d.synced[name] = f
	}
	d.durable = len(d.whole) - 1
	return nil
}

func (d machineDisk) Mode(path string) (fs.FileMode, error) {
	info, err := d.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode().Perm(), nil
}

func (d machineDisk) Stat(name string) (fs.FileInfo, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	if name == filepath.Dir(checkpointPath) {
		return fileInfo{nil, name}, nil
	}
	f := d.names[name]
	if f == nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
	}
	return fileInfo{f, name}, nil
}

func (d machineDisk) Open(path string) (io.ReadCloser, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	f := d.names[path]
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	d.of.c.opens(path, f.data)
	return io.NopCloser(bytes.NewReader(f.data)), nil
}

func (d machineDisk) Lock(path, suffix string) (unlock func() error, err error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	if other := d.locks[path+suffix]; other != nil && !other.dead.Load() {
		return nil, file.ErrLocked
	}
	d.locks[path+suffix] = d.of
	return func() error {
		if d.locks[path+suffix] == d.of {
			delete(d.locks, path+suffix)
		}
		return nil
	}, nil
}

// handle is an open new file.
type handle struct {
	d     machineDisk
	f     *diskFile
	write int // number of the write
}

func (h *handle) Write(b []byte) (int, error) {
	if err := h.d.step(); err != nil {
		return 0, err
	}
	h.d.of.c.dawdle(h.d.of)
	if err := h.d.step(); err != nil {
		return 0, err
	}
	h.f.data = append(h.f.data, b...)
	return len(b), nil
}

func (h *handle) Sync() error {
	h.d.of.c.dawdle(h.d.of)
	if err := h.d.step(); err != nil {
		return err
	}
	h.f.synced = bytes.Clone(h.f.data)
	return nil
}

func (h *handle) Chmod(mode fs.FileMode) error {
	h.f.mode = mode
	return h.d.step()
}

func (h *handle) Close() error { return h.d.step() }

// chosen is the mode that a checkpoint must keep.
const chosen = 0o640

type fileInfo struct {
	f    *diskFile
	name string
}

func (i fileInfo) Name() string { return filepath.Base(i.name) }
func (i fileInfo) Size() int64 {
	if i.f == nil {
		return 0
	}
	return int64(len(i.f.data))
}
func (i fileInfo) Mode() fs.FileMode {
	if i.f == nil {
		return fs.ModeDir | 0o755
	}
	return i.f.mode
}
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return i.f == nil }
func (i fileInfo) Sys() any           { return nil }

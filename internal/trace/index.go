// SPDX-License-Identifier: Apache-2.0

// Package trace has what the workers of a training push, in NumPy files: it records ([Recorder]),
// reads ([Read]) and draws ([Draw]) such traces. docs/python.md describes the files.
package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/libra-ina/libra/internal/file"
)

// IndexName is the name of a trace's index in its folder.
const IndexName = "trace.json"

// format and version say what an index is of.
const (
	format  = "libra trace"
	version = 1
)

// The limits of a trace. 'libra run' has no more workers, and no longer rows.
const (
	MaxRanks = 64
	maxDim   = 1 << 16
	maxRows  = 1 << 40
)

const again = "record the trace again with 'libra run --record'"

// Index describes a trace.
type Index struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Complete is false while the trace is recorded, and stays so when that is cut short.
	Complete bool   `json:"complete"`
	Job      string `json:"job"`  // name of the job, whose rows are one table
	Dim      int    `json:"dim"`  // floats of a row
	Sync     bool   `json:"sync"` // the workers took steps together
	// Parameters is the number of floats of the whole model; 0: not known.
	Parameters uint64 `json:"parameters"`
	Ranks      int    `json:"ranks"`
	// Parts are the clients that pushed, by rank.
	Parts []Part `json:"parts"`
}

// Part is what one client pushed: the files Name.keys.npy, Name.gradients.npy and Name.pushes.npy.
type Part struct {
	Name   string `json:"name"`
	Rank   int    `json:"rank"`
	Client string `json:"client"` // as it called itself
	Pushes int    `json:"pushes"`
	Rows   int    `json:"rows"`
	Steps  int    `json:"steps"` // steps that it ended
	// Checksums are CRC-32C of the elements of the three files.
	Checksums [3]uint32 `json:"crc32c"`
}

// Meta is what a trace is of.
type Meta struct {
	Job        string
	Dim, Ranks int
	Sync       bool
}

// Begin creates the folder of a trace, or uses an existing empty one, and writes an index in which
// the trace is marked as incomplete.
func Begin(dir string, m Meta) error {
	if err := file.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("trace: %s is not empty, it has %s: give a folder that does not exist, or an empty one", dir,
			entries[0].Name())
	}
	return writeIndex(dir, m.index())
}

func (m Meta) index() *Index {
	return &Index{Format: format, Version: version, Job: m.Job, Dim: m.Dim, Sync: m.Sync, Ranks: m.Ranks, Parts: []Part{}}
}

func writeIndex(dir string, x *Index) error {
	text, err := json.MarshalIndent(x, "", "  ")
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	path := filepath.Join(dir, IndexName)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return file.Give(path)
}

// Finish makes a trace complete when all that recorded it have ended. rankOf returns the rank of a
// client, of whose process and its ancestors it gets the numbers; of processes that are no rank's,
// as those of other programs are, nothing is kept.
func Finish(dir string, m Meta, rankOf func(processes []int) (rank int, known bool)) error {
	notes, err := filepath.Glob(filepath.Join(dir, "*"+noteSuffix))
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	var found []note
	for _, path := range notes {
		var n note
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &n)
		}
		if err != nil {
			return fmt.Errorf("trace: %s: %w", path, err)
		}
		if n.Failed != "" {
			return fmt.Errorf("trace: %s is not complete: %s", dir, n.Failed)
		}
		found = append(found, n)
	}
	slices.SortFunc(found, func(a, b note) int { return a.Order - b.Order })
	x := m.index()
	x.Complete = true
	parts := make([]int, m.Ranks)
	for _, n := range found {
		rank, known := rankOf(n.Processes)
		if known {
			n.Rank = rank
		}
		was := n.Name
		n.Name = fmt.Sprintf("rank-%d", rank)
		if parts[rank] > 0 {
			n.Name += fmt.Sprintf("-%d", parts[rank]+1)
		}
		for _, suffix := range suffixes {
			from, to := filepath.Join(dir, was+suffix), filepath.Join(dir, n.Name+suffix)
			if !known {
				err = os.Remove(from)
			} else if err = os.Rename(from, to); err == nil {
				err = file.Give(to)
			}
			if err != nil {
				return fmt.Errorf("trace: %w", err)
			}
		}
		if known {
			parts[rank]++
			x.Parts = append(x.Parts, n.Part)
		}
		if err := os.Remove(filepath.Join(dir, was+noteSuffix)); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	slices.SortStableFunc(x.Parts, func(a, b Part) int { return a.Rank - b.Rank })
	for rank, n := range parts {
		if n == 0 {
			return fmt.Errorf("trace: %s is not complete: rank %d pushed nothing to job %s", dir, rank, m.Job)
		}
	}
	return writeIndex(dir, x)
}

// readIndex reads and checks an index.
func readIndex(dir string) (*Index, error) {
	path := filepath.Join(dir, IndexName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is no trace, since there is no %s in it: give a folder that 'libra run --record' wrote", dir,
			IndexName)
	}
	if err != nil {
		return nil, err
	}
	var x Index
	if err := json.Unmarshal(text, &x); err != nil {
		return nil, fmt.Errorf("%s is no index of a trace (%w): %s", path, err, again)
	}
	switch {
	case x.Format != format:
		return nil, fmt.Errorf("%s: its format is %q, and %q is wanted: give a folder that 'libra run --record' wrote", path,
			x.Format, format)
	case x.Version != version:
		return nil, fmt.Errorf("%s: it has version %d, and this program reads %d: %s", path, x.Version, version, again)
	case !x.Complete:
		return nil, fmt.Errorf("%s: the trace was cut short, the program that recorded it did not end well: %s", path, again)
	case x.Dim < 1, x.Dim > maxDim, x.Ranks < 1, x.Ranks > MaxRanks, len(x.Parts) == 0:
		return nil, fmt.Errorf("%s: rows of %d floats from %d clients of %d ranks are no trace: %s", path, x.Dim, len(x.Parts),
			x.Ranks, again)
	}
	for _, p := range x.Parts {
		if p.Rank < 0 || p.Rank >= x.Ranks || p.Pushes < 0 || p.Pushes > maxRows || p.Rows < 0 || p.Rows > maxRows ||
			p.Name != filepath.Base(p.Name) {
			return nil, fmt.Errorf("%s: part %q of rank %d with %d pushes of %d rows is none: %s", path, p.Name, p.Rank, p.Pushes,
				p.Rows, again)
		}
	}
	return &x, nil
}

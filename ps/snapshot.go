// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/libra-ina/libra/internal/file"
)

// ErrReplaced means that another snapshot of the store began before this one
// was written.
var ErrReplaced = errors.New("ps: a newer snapshot has replaced this one")

// Snapshot is a store's state as of its last commit. It is written while the store
// stays in use: the owner copies some rows at a time, and saves rows that a commit
// changes before they are copied.
//
// [Store.Snapshot] begins one; [Snapshot.Save] or [Snapshot.Write] ends it.
type Snapshot struct {
	store      *Store
	harvest    harvestID
	attachment []byte
	rows       int // rows that the store had
	next       int // the first row that is not yet copied
	// kept holds the old weights and squares of changed rows; at maps a row to its offset.
	at   map[int]int
	kept []float32
}

// turnBytes bounds the bytes copied at a time, to take some tens of microseconds.
const turnBytes = 1 << 16

// Snapshot fixes the state as of the last commit. The attachment is the caller's data
// that belongs to these weights. A store has one snapshot at a time: an earlier one that
// is not yet written fails with [ErrReplaced].
func (s *Store) Snapshot(attachment []byte) *Snapshot {
	s.snapshot = &Snapshot{
		store: s, harvest: s.committed, attachment: attachment,
		rows: s.kept(), at: map[int]int{},
	}
	return s.snapshot
}

// keepRows saves rows that a commit is about to change.
func (p *Snapshot) keepRows(touched []int) {
	for _, r := range touched {
		if _, kept := p.at[r]; kept || r < p.next || r >= p.rows {
			continue
		}
		_, _, weights, squares := p.store.rows.rowArrays(r)
		p.at[r] = len(p.kept)
		p.kept = append(append(p.kept, weights...), squares...)
	}
}

// copyRows appends the next rows, as of the snapshot, to b until it has grown by bound bytes,
// and returns false with the last row. The store's owner calls it.
func (p *Snapshot) copyRows(b []byte, bound int) (out []byte, more bool) {
	rows := &p.store.rows
	for limit := len(b) + bound; p.next < p.rows && len(b) < limit; p.next++ {
		key, _, weights, squares := rows.rowArrays(p.next)
		if at, kept := p.at[p.next]; kept {
			weights = p.kept[at:][:rows.dim]
			if rows.method == Adagrad {
				squares = p.kept[at+rows.dim:][:rows.dim]
			}
		}
		b = binary.LittleEndian.AppendUint64(b, key)
		b = appendFloats(b, weights)
		b = appendFloats(b, squares)
	}
	return b, p.next < p.rows
}

func appendFloats(b []byte, floats []float32) []byte {
	for _, f := range floats {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// Save writes the snapshot to a file and ends it. The file is replaced atomically:
// after a crash of the process or of the machine, it is either the complete old or the
// complete new one. A replaced file keeps its permissions.
//
// Save may run concurrently with the store's owner. It accesses the store only in
// functions that it passes to turn, which must run each of them on the owner and return
// when it is done; each takes some tens of microseconds. An error of turn ends Save.
func (p *Snapshot) Save(path string, turn func(func()) error) error {
	err := file.Replace(path, temporary, func(w io.Writer) error { return p.Write(w, turn) })
	if err != nil {
		return fmt.Errorf("ps: writing checkpoint: %w", err)
	}
	return nil
}

// temporary is the name suffix of an unfinished checkpoint.
const temporary = ".tmp"

// PrepareCheckpoint removes an unfinished checkpoint of a killed process, and fails if no
// new one can be written there. Call it before the first checkpoint of a process, and
// only if no other process writes this checkpoint.
func PrepareCheckpoint(path string) error {
	if err := file.Prepare(path, temporary); err != nil {
		return fmt.Errorf("ps: a checkpoint cannot be written: %w", err)
	}
	return nil
}

// endKeeping stops commits from saving rows.
func (p *Snapshot) endKeeping() {
	if p.store.snapshot == p {
		p.store.snapshot = nil
	}
}

func (p *Snapshot) Write(w io.Writer, turn func(func()) error) error {
	return p.writeRows(w, turnBytes, turn)
}

// writeRows copies about bound bytes of rows per turn.
func (p *Snapshot) writeRows(w io.Writer, bound int, turn func(func()) error) (err error) {
	defer func() {
		if failed := turn(p.endKeeping); err == nil {
			err = failed
		}
	}()
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(w, turnBytes)
	put := func(b []byte) error {
		sum.Write(b)
		_, err := out.Write(b)
		return err
	}
	b := p.encodeHead()
	// A bufio.Writer keeps its first error.
	_ = put(b)
	_ = put(binary.LittleEndian.AppendUint32(b[:0], sum.Sum32()))
	if err := put(p.attachment); err != nil {
		return err
	}
	for more := true; more; {
		replaced := false
		err := turn(func() {
			if replaced = p.store.snapshot != p; !replaced {
				b, more = p.copyRows(b[:0], bound)
			}
		})
		if err != nil {
			return err
		}
		if replaced {
			return ErrReplaced
		}
		if err := put(b); err != nil {
			return err
		}
	}
	_ = put(binary.LittleEndian.AppendUint32(b[:0], sum.Sum32()))
	return out.Flush()
}

// encodeHead returns the header up to its checksum.
func (p *Snapshot) encodeHead() []byte {
	cfg := &p.store.cfg
	le := binary.LittleEndian
	b := append(make([]byte, 0, turnBytes), checkpointMagic...)
	b = le.AppendUint32(b, checkpointVersion)
	b = le.AppendUint32(b, uint32(cfg.Dim))
	b = le.AppendUint32(b, uint32(int32(cfg.Exp)))
	b = le.AppendUint32(b, uint32(cfg.Optimizer.Method))
	b = le.AppendUint32(b, math.Float32bits(cfg.Init.Scale))
	b = le.AppendUint64(b, cfg.Init.Seed)
	b = le.AppendUint64(b, p.harvest.instance)
	b = le.AppendUint64(b, p.harvest.number)
	b = le.AppendUint64(b, uint64(p.rows))
	return le.AppendUint64(b, uint64(len(p.attachment)))
}

// Checkpoint writes the state as of the last commit to a file at once: see
// [Store.Snapshot] and [Snapshot.Save].
func (s *Store) Checkpoint(path string, attachment []byte) error {
	return s.Snapshot(attachment).Save(path, alone)
}

// WriteCheckpoint is [Store.Checkpoint] to w.
func (s *Store) WriteCheckpoint(w io.Writer, attachment []byte) error {
	return s.Snapshot(attachment).Write(w, alone)
}

// alone is the turn of a caller that owns the store.
func alone(f func()) error {
	f()
	return nil
}

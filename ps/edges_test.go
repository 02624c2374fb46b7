// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// A commit counts all rows of its step, including those that arrived after a request for the sums.
func TestCommitCountsRowsAfterTheSums(t *testing.T) {
	s, err := New(Config{Dim: 1, Optimizer: none})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []uint64{3, 8} {
		if err := s.Push([]uint64{key}, []float32{1}); err != nil {
			t.Fatal(err)
		}
		if key == 3 {
			stepSums(t, s)
		}
	}
	if n := s.Commit(); n != 2 {
		t.Errorf("%d rows are committed, want 2", n)
	}
}

// A checkpoint takes no more memory than its file's length, whatever its attachment's length field,
// even if its checksums are right.
func TestForgedAttachmentTakesNoMemory(t *testing.T) {
	cfg := Config{Dim: 1}
	file := encode(t, sample(t, cfg), []byte("attachment"))
	binary.LittleEndian.PutUint64(file[checkpointHeadLen-8:], 1<<38)
	if _, _, err := ReadCheckpoint(bytes.NewReader(seal(file)), cfg); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// The stores of several servers are merged as of their last commits: a harvest of an open step is
// left out.
func TestMergeLeavesOpenHarvestsOut(t *testing.T) {
	s, err := New(Config{Dim: 1})
	if err != nil {
		t.Fatal(err)
	}
	for number := range uint64(2) {
		if _, err := s.ApplyHarvest(Harvest{Instance: 7, Number: number + 1, Sums: []int64{1}}, []uint64{5}); err != nil {
			t.Fatal(err)
		}
		if number == 0 {
			s.Commit()
		}
	}
	all, err := Merge(s)
	if err != nil {
		t.Fatal(err)
	}
	if instance, number := all.LastHarvest(); instance != 7 || number != 1 {
		t.Errorf("harvest %d of instance %d, want 1 of 7", number, instance)
	}
}

// Only the store's own numbering is accepted, also not 0.
func TestOtherNumberingsAreRefused(t *testing.T) {
	s, err := New(Config{Dim: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Push([]uint64{5}, []float32{1}); err != nil {
		t.Fatal(err)
	}
	s.numbering = 9
	for _, numbering := range []uint32{0, 8, 10} {
		var refusal wire.Refusal
		err := s.AccumulateAt(wire.Rows{Dim: 1, Numbering: numbering})
		if !errors.As(err, &refusal) || refusal.Code != wire.CodeNumbering {
			t.Errorf("numbering %d: %v", numbering, err)
		}
	}
}

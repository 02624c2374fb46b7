// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMixIsSplitmix compares with the first output of splitmix64 for seed 0.
func TestMixIsSplitmix(t *testing.T) {
	if got := mix(0x9e3779b97f4a7c15); got != 0xe220a8397b1dcdaf {
		t.Errorf("%#x", got)
	}
}

// TestCapacityIsReserved checks the memory of a store before its first row.
func TestCapacityIsReserved(t *testing.T) {
	for dim, size := range map[int]int{1: 65536, 3: 16384, 2000: 64} { // 512 KiB of sums, or 64 rows
		for capacity, chunks := range map[int]int{0: 0, 1: 1, size: 1, size + 1: 2} {
			s := newStore(t, Config{Dim: dim, Exp: DefaultExp, Capacity: capacity})
			if got := len(s.rows.chunks); got != chunks {
				t.Errorf("dimension %d, capacity %d: %d chunks, want %d", dim, capacity, got, chunks)
			}
		}
	}
	for capacity, segments := range map[int]int{0: 2, 3072: 2, 3073: 4, 6144: 4, 6145: 8} {
		if table := newTable(capacity); len(table.dir) != segments || 1<<(64-table.shift) != segments {
			t.Errorf("capacity %d: %d segments, shift %d; want %d", capacity, len(table.dir), table.shift, segments)
		}
	}
}

// TestHomeFindsMostKeys fills a table until just before it grows: 94 of 100 keys are in one of the
// two entries that findBatch checks, 82 in the first.
func TestHomeFindsMostKeys(t *testing.T) {
	const n = 6000
	table := newTable(n)
	keys, rows := make([]uint64, n), make([]int, n)
	for i := range keys {
		keys[i] = uint64(i)
		table.placeKey(keys[i], i)
	}
	table.findBatch(rows, keys)
	found := 0
	for i, r := range rows {
		if r == i {
			found++
		}
	}
	if found < n*88/100 {
		t.Errorf("%d of %d keys are found at once", found, n)
	}
}

// TestRefusalAfterACommit undoes a frame when the open step holds fewer rows than the store.
func TestRefusalAfterACommit(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp, MaxRows: 4})
	if err := s.Push([]uint64{1, 2, 3}, make([]float32, 6)); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	if err := s.AddSum(2, 1, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	before := pending(s)
	for name, keys := range map[string][]uint64{"overflow": {3, 4, 2}, "full": {3, 4, 5}} {
		if err := s.Push(keys, []float32{1, 2, 3, 4, 5, 6}); err == nil {
			t.Errorf("%s: no error", name)
		}
		if diff := cmp.Diff(before, pending(s)); diff != "" || s.Len() != 3 {
			t.Errorf("%s: %d rows: %s", name, s.Len(), diff)
		}
	}
	if err := s.Push([]uint64{3, 4}, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	before[3], before[4] = units(1, 2), units(3, 4)
	if diff := cmp.Diff(before, pending(s)); diff != "" {
		t.Error(diff)
	}
}

// TestHarvestBeginsWithAnyRow uses scratch space that a push has filled, and no more of it than the
// harvest has rows.
func TestHarvestBeginsWithAnyRow(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp})
	if err := s.Push([]uint64{1, 2, 3}, []float32{1, 2, 3, 4, 5, 6}); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	for number, h := range []Harvest{{Ranks: []uint32{3}, Sums: []int64{5}}, {Sums: []int64{0, 0, 0, 6}}} {
		h.Number = uint64(number + 1)
		if applied, err := s.ApplyHarvest(h, []uint64{8, 9}); !applied || err != nil {
			t.Fatalf("%v, %v", applied, err)
		}
	}
	if diff := cmp.Diff(map[uint64][]int64{9: {0, 11}}, pending(s)); diff != "" {
		t.Error(diff)
	}
	for sums, rows := range map[int]int{3: 2, 4: 2, 5: 3} {
		if _, err := s.ApplyHarvest(Harvest{Instance: uint64(sums), Sums: make([]int64, sums)}, nil); err != nil || len(s.batchKeys) != rows {
			t.Errorf("%d sums: scratch space for %d rows, %v; want %d", sums, len(s.batchKeys), err, rows)
		}
	}
}

// TestAdagradByHand takes a step whose every number is exact: the squares are
// 9 + 16 = 25, the root and epsilon 5 + 1, and the weight moves by 3 × 4 / 6.
func TestAdagradByHand(t *testing.T) {
	s := newStore(t, Config{Dim: 1, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad, LearningRate: 3, Epsilon: 1, InitialAccumulator: 9}})
	if err := s.Push([]uint64{1}, []float32{4}); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	if w := read(s, 1); w[0] != -2 {
		t.Errorf("weight %g, want -2", w[0])
	}
}

// TestHashIsOfTheWeights computes the hash from its description. The row with the least key does
// not change, and the others are not in the order of their keys.
func TestHashIsOfTheWeights(t *testing.T) {
	s := newStore(t, Config{Dim: 3, Exp: DefaultExp})
	keys := []uint64{1 << 63, 9, 4, 4}
	if err := s.Push(keys, []float32{1, 2, 3, 4, 5, 6, 7, 7, 7, -7, -7, -7}); err != nil {
		t.Fatal(err)
	}
	s.Commit()
	var content []byte
	for _, key := range []uint64{9, 1 << 63} {
		content = binary.BigEndian.AppendUint64(content, key)
		for _, w := range read(s, key) {
			content = binary.BigEndian.AppendUint32(content, math.Float32bits(w))
		}
	}
	if s.Hash() != sha256.Sum256(content) {
		t.Error("the hash is that of something else")
	}
}

// TestPendingEndsEarly leaves the iteration at its first row.
func TestPendingEndsEarly(t *testing.T) {
	s := sample(t, Config{Dim: 1, Exp: DefaultExp})
	rows := 0
	for range s.Pending() {
		rows++
		break
	}
	if rows != 1 {
		t.Errorf("%d rows", rows)
	}
}

// TestReadClearsColumnZero reads a row without updates into a slice that was used.
func TestReadClearsColumnZero(t *testing.T) {
	dst := []float32{9, 9}
	newStore(t, Config{Dim: 2, Exp: DefaultExp}).Read([]uint64{1}, dst)
	if dst[0] != 0 || dst[1] == 9 {
		t.Errorf("%g", dst)
	}
}

// TestReadOfManyRows reads existing and missing rows, more than are read at once, and enough for
// some not to be where their probe sequences begin.
func TestReadOfManyRows(t *testing.T) {
	for _, d := range []int{1, 3} {
		s := newStore(t, Config{Dim: d, Exp: DefaultExp, Init: Init{Scale: 1, Seed: 1}, Optimizer: Optimizer{LearningRate: 1}})
		keys := make([]uint64, 6000)
		for i := range keys {
			keys[i] = uint64(i)
		}
		grads := make([]float32, d*len(keys)/2)
		for i := range grads {
			grads[i] = float32(i + 1)
		}
		if err := s.Push(keys[:len(keys)/2], grads); err != nil {
			t.Fatal(err)
		}
		s.Commit()
		rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		got, want := make([]float32, d*len(keys)), make([]float32, d)
		s.Read(keys, got)
		for i, key := range keys {
			s.cfg.Init.fillRow(key, want)
			for c := range want {
				if at := int(key)*d + c; at < len(grads) {
					want[c] -= grads[at]
				}
			}
			if row := got[i*d:][:d]; !slices.Equal(row, want) {
				t.Fatalf("key %d has %v, not %v", key, row, want)
			}
		}
	}
}

// TestTurnsEndAtTheirBound copies rows of 16 bytes after existing bytes.
func TestTurnsEndAtTheirBound(t *testing.T) {
	for bound, want := range map[int]int{1: 1, 16: 1, 17: 2, 32: 2} {
		p := sample(t, Config{Dim: 2, Exp: DefaultExp}).Snapshot(nil)
		b, more := p.copyRows(make([]byte, 40), bound)
		if p.next != want || len(b) != 40+16*want || !more {
			t.Errorf("a bound of %d bytes: %d rows, %d bytes, more %v; want %d rows", bound, p.next, len(b), more, want)
		}
	}
}

// TestLongAttachment reads it in several parts.
func TestLongAttachment(t *testing.T) {
	cfg := Config{Dim: 1, Exp: DefaultExp}
	attachment := slices.Repeat([]byte("attachment "), 20_000)
	_, got, err := ReadCheckpoint(bytes.NewReader(encode(t, sample(t, cfg), attachment)), cfg)
	if err != nil || !bytes.Equal(got, attachment) {
		t.Errorf("%d bytes of %d, %v", len(got), len(attachment), err)
	}
}

// TestHeaderHasItsLength counts the bytes before the first checksum.
func TestHeaderHasItsLength(t *testing.T) {
	n := len(newStore(t, Config{Dim: 1}).Snapshot(nil).encodeHead())
	if n != 68 || checkpointHeadLen != 68 {
		t.Errorf("%d bytes, the constant is %d", n, checkpointHeadLen)
	}
}

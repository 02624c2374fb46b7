// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Errors of NewHotSet and of the file reader.
var (
	// ErrHotSet means that a hot set has too many keys, a repeated key, a dimension
	// out of range, or a wrong number of counts.
	ErrHotSet = errors.New("packer: bad hot set")
)

const (
	// maxHotKeys is the largest number of keys of a hot set.
	maxHotKeys = maxIndexed
	// maxDim is the largest row dimension of a hot set: the dim field of a
	// COLD frame is a uint16.
	maxDim = 1<<16 - 1
)

// HotSet is the ranked list of hot row keys of a job; rank 0 is the most
// frequently updated. The row of rank r owns the scalar ranks r*Dim to
// r*Dim+Dim-1. It is immutable and safe for concurrent use.
type HotSet struct {
	dim    int
	keys   []uint64
	counts []uint64
	meta   Meta
	index  index
}

// Meta describes how a hot set was found. It is not part of the fingerprint.
type Meta struct {
	Rate     float64 // share of the training rows that were sampled; 0 if unknown
	Seed     uint64  // seed of the row sampler
	Rows     uint64  // rows that were sampled
	Updates  uint64  // updates that were counted, T_n of Principle 1
	Covered  uint64  // updates of the hot keys among them, T_k
	CountErr uint64  // a count is too high by at most this; 0 if counts are exact
}

// Share returns T_k/T_n, the hot keys' share of the counted updates, or 0 if nothing
// was counted.
func (m Meta) Share() float64 {
	if m.Updates == 0 {
		return 0
	}
	return float64(m.Covered) / float64(m.Updates)
}

// NewHotSet makes a hot set of distinct row keys in rank order, with dim gradients
// in a row. Counts holds the number of updates of each row, or is nil if unknown.
// Both are copied. The error is [ErrHotSet].
func NewHotSet(dim int, keys, counts []uint64, meta Meta) (*HotSet, error) {
	switch {
	case dim < 1 || dim > maxDim:
		return nil, fmt.Errorf("%w: row dimension %d is not in [1, %d]", ErrHotSet, dim, maxDim)
	case len(keys) > maxHotKeys:
		return nil, fmt.Errorf("%w: %d keys; the limit is %d", ErrHotSet, len(keys), maxHotKeys)
	case counts != nil && len(counts) != len(keys):
		return nil, fmt.Errorf("%w: %d counts for %d keys", ErrHotSet, len(counts), len(keys))
	}
	h := &HotSet{dim: dim, counts: make([]uint64, len(keys)), meta: meta}
	copy(h.counts, counts)
	padded := make([]uint64, 1+len(keys))
	h.keys = padded[1:]
	copy(h.keys, keys)
	x, first, second := newIndex(padded)
	if second != 0 {
		return nil, fmt.Errorf("%w: key %d has the ranks %d and %d", ErrHotSet, padded[first], first-1, second-1)
	}
	h.index = x
	return h, nil
}

// MaxHotRows returns the largest number of hot rows of a dimension that a job may have.
func MaxHotRows(dim int) int { return min(MaxSlots/dim, maxHotKeys) }

// Len returns the number of hot rows.
func (h *HotSet) Len() int { return len(h.keys) }

// Dim returns the number of gradients in a row.
func (h *HotSet) Dim() int { return h.dim }

// Slots returns the number of scalar ranks, Len × Dim.
func (h *HotSet) Slots() int { return len(h.keys) * h.dim }

// pages returns the number of pages that the scalar ranks take in frames.
func (h *HotSet) pages() int { return (h.Slots() + PageSlots - 1) / PageSlots }

// Meta returns how the set was found.
func (h *HotSet) Meta() Meta { return h.meta }

// Key returns the key of a row rank, which must be less than Len.
func (h *HotSet) Key(rowRank uint32) uint64 { return h.keys[rowRank] }

// Count returns the number of updates of the row of a rank, or 0 if unknown.
func (h *HotSet) Count(rowRank uint32) uint64 { return h.counts[rowRank] }

// Cold is the value that [HotSet.Ranks] stores for a cold key.
const Cold = math.MaxUint32

// Rank returns the row rank of a key, and false if the key is cold.
func (h *HotSet) Rank(key uint64) (rowRank uint32, ok bool) {
	at := h.index.findKey(key)
	return at - 1, at != 0
}

// Ranks stores the row rank of each key, or [Cold] for a cold key, in dst, which is as long as
// keys. For many keys it is faster than Rank.
func (h *HotSet) Ranks(dst []uint32, keys []uint64) {
	h.index.findAll(dst, keys)
	for i := range dst {
		dst[i]-- // findAll stores rank + 1, or 0 for a cold key
	}
}

// Fingerprint identifies a mapping from keys to ranks.
type Fingerprint [sha256.Size]byte

func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Fingerprint returns the SHA-256 of dimension, length and keys in rank order.
// Parties may exchange ranks only if their fingerprints are equal.
func (h *HotSet) Fingerprint() Fingerprint {
	d := sha256.New()
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(h.dim))
	b = binary.BigEndian.AppendUint64(b, uint64(len(h.keys)))
	d.Write(b)
	for keys := range slices.Chunk(h.keys, 1024) {
		b = b[:0]
		for _, key := range keys {
			b = binary.BigEndian.AppendUint64(b, key)
		}
		d.Write(b)
	}
	return Fingerprint(d.Sum(nil))
}

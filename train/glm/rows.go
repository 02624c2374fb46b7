// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
)

// Rows are a worker's columns of the data, quantised, and the labels of all rows.
type Rows struct {
	bits       int
	keys       []uint64  // of the columns, ascending
	magnitudes []float32 // the largest of each column

	columns  []uint32 // positions in keys; all rows, one after the other
	features []int16  // q of each
	offsets  []int    // row i has columns[offsets[i]:offsets[i+1]]
	labels   []float32
	digest   [sha256.Size]byte // of all columns of all rows
}

// Load reads one pass of the whole data, and keeps the columns of one of several workers, counted
// from
// 0. A column that comes twice in a row counts as the sum of its values.
func Load(ctx context.Context, src data.Source, workers packer.Split, worker, bits int) (*Rows, error) {
	if err := src.Rewind(); err != nil {
		return nil, err
	}
	l := loader{rows: &Rows{bits: bits, offsets: []int{0}}, ids: map[uint64]uint32{}, digest: sha256.New()}
	var s data.Sample
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		err := src.Next(&s)
		if errors.Is(err, io.EOF) {
			return l.finish(), nil
		}
		if err != nil {
			return nil, err
		}
		l.sum(&s)
		l.own = l.own[:0]
		for i, key := range s.Keys {
			if workers.Of(key) == worker {
				l.own = append(l.own, feature{key, s.Values[i]})
			}
		}
		if err := l.add(s.Label); err != nil {
			return nil, err
		}
	}
}

type feature struct {
	key   uint64
	value float32
}

type loader struct {
	rows   *Rows
	ids    map[uint64]uint32
	values []float32 // of rows.columns
	own    []feature // of the row
	digest hash.Hash
	buf    []byte
}

// sum adds a row to the digest.
func (l *loader) sum(s *data.Sample) {
	b := binary.LittleEndian.AppendUint32(l.buf[:0], math.Float32bits(s.Label))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.Keys)))
	for i, key := range s.Keys {
		b = binary.LittleEndian.AppendUint64(b, key)
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(s.Values[i]))
	}
	_, _ = l.digest.Write(b) // never fails
	l.buf = b
}

// add appends the row of own.
func (l *loader) add(label float32) error {
	r := l.rows
	slices.SortStableFunc(l.own, func(a, b feature) int { return cmp.Compare(a.key, b.key) })
	for i := 0; i < len(l.own); {
		key, sum := l.own[i].key, 0.0
		for ; i < len(l.own) && l.own[i].key == key; i++ {
			sum += float64(l.own[i].value)
		}
		value := float32(sum)
		if math.IsInf(float64(value), 0) {
			return fmt.Errorf("row %d: feature %d comes more than once, and its values add up to %g, which is no float32: leave one value",
				len(r.labels)+1, key, sum)
		}
		id, known := l.ids[key]
		if !known {
			id = uint32(len(r.keys))
			l.ids[key] = id
			r.keys = append(r.keys, key)
			r.magnitudes = append(r.magnitudes, 0)
		}
		r.magnitudes[id] = max(r.magnitudes[id], float32(math.Abs(float64(value))))
		r.columns = append(r.columns, id)
		l.values = append(l.values, value)
	}
	r.offsets = append(r.offsets, len(r.columns))
	r.labels = append(r.labels, label)
	return nil
}

// finish quantises the features and renumbers the columns so that their keys ascend.
func (l *loader) finish() *Rows {
	r := l.rows
	r.features = make([]int16, len(l.values))
	for i, x := range l.values {
		r.features[i] = quantise(x, r.magnitudes[r.columns[i]], r.bits)
	}
	order := make([]uint32, len(r.keys))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortFunc(order, func(a, b uint32) int { return cmp.Compare(r.keys[a], r.keys[b]) })
	position := make([]uint32, len(order))
	keys, magnitudes := make([]uint64, len(order)), make([]float32, len(order))
	for to, from := range order {
		position[from] = uint32(to)
		keys[to], magnitudes[to] = r.keys[from], r.magnitudes[from]
	}
	r.keys, r.magnitudes = keys, magnitudes
	for i, id := range r.columns {
		r.columns[i] = position[id]
	}
	l.digest.Sum(r.digest[:0])
	return r
}

// quantise returns a feature as an integer of some bits and a sign, given the largest magnitude of
// its column.
func quantise(x, magnitude float32, bits int) int16 {
	if x == 0 {
		return 0
	}
	// The quotient of two float32 is never rounded to the middle of two integers.
	q := math.RoundToEven(math.Ldexp(float64(x), bits) / float64(magnitude))
	limit := float64(int(1)<<bits - 1)
	return int16(max(-limit, min(limit, q)))
}

// Len returns the number of rows.
func (r *Rows) Len() int { return len(r.labels) }

// Columns returns the number of the worker's columns that occur.
func (r *Rows) Columns() int { return len(r.keys) }

// Digest names the data, with all columns: workers with different ones do not belong together.
func (r *Rows) Digest() string { return hex.EncodeToString(r.digest[:8]) }

// row returns the columns of a row that are not empty, and their features.
func (r *Rows) row(i uint32) (columns []uint32, features []int16) {
	begin, end := r.offsets[i], r.offsets[i+1]
	return r.columns[begin:end], r.features[begin:end]
}

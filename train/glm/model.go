// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"github.com/libra-ina/libra/train/weights"
)

// Model is a trained model.
type Model struct {
	columns []column // ascending
}

// column is the weight of a column, for values that are divided by the largest magnitude.
type column struct {
	key       uint64
	weight    int64
	magnitude float32
}

// Len returns the number of columns.
func (m *Model) Len() int { return len(m.columns) }

// SHA256 is that of all columns in the order of their keys: key, weight and the bits of the largest
// magnitude, little-endian.
func (m *Model) SHA256() string {
	h := sha256.New()
	var b []byte
	for _, c := range m.columns {
		b = binary.LittleEndian.AppendUint64(b[:0], c.key)
		b = binary.LittleEndian.AppendUint64(b, uint64(c.weight))
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(c.magnitude))
		_, _ = h.Write(b) // never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Weights returns the weights for values as they are in the data, as a linear model without an
// intercept.
func (m *Model) Weights(o Objective) (*weights.Weights, error) {
	keys, linear := make([]uint64, 0, len(m.columns)), make([]float32, 0, len(m.columns))
	for _, c := range m.columns {
		w := 0.0
		if c.magnitude > 0 {
			w = math.Ldexp(float64(c.weight), -weightUnit) / float64(c.magnitude)
		}
		if math.Abs(w) > math.MaxFloat32 {
			return nil, &RangeError{Column: c.key, Problem: fmt.Sprintf(
				"%g is no float32, because the values are %g at most: multiply them", w, c.magnitude)}
		}
		keys, linear = append(keys, c.key), append(linear, float32(w))
	}
	w := weights.Linear(keys, linear)
	task := o.Task()
	w.Task = &task
	return w, nil
}

// columnWords is the number of values with which a column travels.
const columnWords = 5

// Collect brings all workers' columns to worker 0, which gets the whole model; others get nil. All
// workers call it. It makes operations in which all but one worker contribute zeros: first with the
// number of columns of each, then with the columns, worker after worker.
func (done *Trained) Collect(ctx context.Context) (*Model, error) {
	t := done.trainer
	counts := make([]int, t.Workers)
	err := t.exchange(ctx, t.Workers,
		func(i int) int32 {
			if i == t.Index {
				return int32(len(t.weights))
			}
			return 0
		},
		func(i int, sum int32) { counts[i] = int(sum) })
	if err != nil {
		return nil, err
	}
	total, first := 0, 0
	for i, n := range counts {
		if i == t.Index {
			first = total * columnWords
		}
		total += n
	}
	var all []int32
	if t.Index == 0 {
		all = make([]int32, total*columnWords)
	}
	err = t.exchange(ctx, total*columnWords,
		func(i int) int32 {
			if i -= first; i >= 0 && i < len(t.weights)*columnWords {
				return t.word(i/columnWords, i%columnWords)
			}
			return 0
		},
		func(i int, sum int32) {
			if all != nil {
				all[i] = sum
			}
		})
	if err != nil || t.Index > 0 {
		return nil, err
	}
	return modelOf(all), nil
}

// word returns one of the values with which a column travels.
func (t *trainer) word(c, part int) int32 {
	switch key, w := t.Rows.keys[c], t.weights[c]; part {
	case 0:
		return int32(key)
	case 1:
		return int32(key >> 32)
	case 2:
		return int32(w)
	case 3:
		return int32(w >> 32)
	default:
		return int32(math.Float32bits(t.Rows.magnitudes[c]))
	}
}

// modelOf returns the model of columns that have travelled.
func modelOf(words []int32) *Model {
	m := &Model{}
	for w := range slices.Chunk(words, columnWords) {
		m.columns = append(m.columns, column{
			key:       uint64(uint32(w[0])) | uint64(uint32(w[1]))<<32,
			weight:    int64(uint32(w[2])) | int64(w[3])<<32,
			magnitude: math.Float32frombits(uint32(w[4])),
		})
	}
	slices.SortFunc(m.columns, func(a, b column) int { return cmp.Compare(a.key, b.key) })
	return m
}

// exchange adds n values of all workers. contribute returns one of this worker's, and take gets a
// sum.
func (t *trainer) exchange(ctx context.Context, n int, contribute func(i int) int32,
	take func(i int, sum int32)) error {
	each := func(k int, f func(lane, i int)) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for lane := range min(t.Width, n-k*t.Width) {
			f(lane, k*t.Width+lane)
		}
		return nil
	}
	return t.pipeline((n+t.Width-1)/t.Width,
		func(k int) error { return each(k, func(lane, i int) { t.partial[lane] = contribute(i) }) },
		func(k int) error { return each(k, func(lane, i int) { take(i, t.sums[lane]) }) })
}

// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// wide adds up, without rounding, what an int64 of units cannot hold in the open step of a store
// without an optimiser: gradients that are no multiples of the unit or out of its range, and what
// would make a sum of units leave the range. A row is in it only if the row is also in the step, so
// that Config.MaxRows bounds its rows; its other gradients are added there. Its memory is kept
// until wideIdle steps have not needed it.
type wide struct {
	dim    int
	format fixedpoint.Format
	first  uint32 // the format's window
	window uint32

	index *table // nil until it is needed
	rows  int
	sums  []fixedpoint.Wide // dim for each row
	idle  int               // steps since the last that had rows
	batch []wideGradient    // of the current batch
	err   *SumError         // of the last sums
}

const wideIdle = 64

// wideGradient is a gradient of a batch that no unit holds, at a position of the batch.
type wideGradient struct {
	at   int
	bits uint32
}

func newWide(dim int, f fixedpoint.Format) *wide {
	w := &wide{dim: dim, format: f}
	w.first, w.window = f.Window()
	return w
}

// unitsOfRows is unitsOf of a body.
func (w *wide) unitsOfRows(rows wire.Rows, units []int64) error {
	first, window, format := w.first, w.window, w.format
	for i := range units {
		var err error
		if bits := rows.Bits(i); bits&math.MaxInt32-first < window { // nearly all
			units[i], _ = format.FromBits(bits)
		} else if units[i], err = w.unitsOf(i, bits); err != nil {
			return refusal(err, i)
		}
	}
	return nil
}

// unitsOf returns the units of a gradient, the float32 with the given bits: 0 for one that they do
// not hold exactly, which it adds to the batch. The error is fixedpoint.ErrNotFinite.
func (w *wide) unitsOf(at int, bits uint32) (int64, error) {
	if size := bits & math.MaxInt32; size-w.first >= w.window && size != 0 {
		if size >= 0xff<<23 {
			return 0, fixedpoint.ErrNotFinite
		}
		if !w.format.Holds(bits) {
			w.batch = append(w.batch, wideGradient{at, bits})
			return 0, nil
		}
	}
	return w.format.FromBits(bits)
}

// addBatch adds the gradients of a batch that no unit holds to the rows of keys.
func (w *wide) addBatch(keys []uint64) {
	for _, g := range w.batch {
		w.placeRow(keys[g.at/w.dim])[g.at%w.dim].AddBits(g.bits)
	}
}

// addUnits adds units to a sum, in place of the row's int64.
func (w *wide) addUnits(key uint64, col int, n int64) { w.placeRow(key)[col].AddUnits(n, w.format) }

// placeRow returns the sums of a key, which are zero if it is new.
func (w *wide) placeRow(key uint64) []fixedpoint.Wide {
	if w.index == nil {
		t := newTable(0)
		w.index = &t
	}
	row, inserted := w.index.placeKey(key, w.rows)
	if inserted {
		if w.rows++; w.rows*w.dim > len(w.sums) {
			w.sums = append(w.sums, make([]fixedpoint.Wide, max(64*w.dim, len(w.sums)))...)
		}
	}
	return w.sums[row*w.dim:][:w.dim]
}

// findRow returns the sums of a key, or nil.
func (w *wide) findRow(key uint64) []fixedpoint.Wide {
	row := w.index.findRow(key)
	if row < 0 {
		return nil
	}
	return w.sums[row*w.dim:][:w.dim]
}

// appendRow is Store.appendRow of a row of which units are only a part.
func (w *wide) appendRow(keys []uint64, sums []float32, key uint64, units []int64,
	row []fixedpoint.Wide) ([]uint64, []float32) {
	zero := true
	for col, sum := range row { // copies, so that the sums may be asked for again
		sum.AddUnits(units[col], w.format)
		x := sum.Float32()
		if math.IsInf(float64(x), 0) && w.err == nil {
			w.err = &SumError{Key: key, Column: col}
		}
		zero = zero && sum.IsZero()
		sums = append(sums, x)
	}
	if zero {
		return keys, sums[:len(sums)-w.dim]
	}
	return append(keys, key), sums
}

// takeError returns the error of the last sums, which may be nil, as may w.
func (w *wide) takeError() error {
	if w == nil || w.err == nil {
		return nil
	}
	err := w.err
	w.err = nil
	return err
}

// forgetStep drops the sums.
func (w *wide) forgetStep() {
	if w.rows == 0 {
		if w.idle++; w.idle >= wideIdle {
			w.index, w.sums = nil, nil
		}
		return
	}
	w.idle = 0
	w.index.forgetKeys(w.rows)
	clear(w.sums[:w.rows*w.dim])
	w.rows = 0
}

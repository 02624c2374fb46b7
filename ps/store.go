// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// Store holds the rows of one job. It is not safe for concurrent use: one
// goroutine owns it.
//
// Accumulating, reading and committing allocate only when the store grows.
type Store struct {
	cfg    Config
	format fixedpoint.Format
	unit   float32 // 2^Exp

	numbering uint32 // identifies this store's row numbers

	index    table
	rows     rows
	touched  []int    // numbers of the rows of the open step
	unsummed unsummed // rows of the step that are not in the table yet
	wide     *wide    // of a store without an optimiser: what its units do not hold; else nil
	roomy    int      // rows at the last call of MakeRoom
	hotRows  []int    // last known rows of the hot set, by rank, plus 1; 0: none. See knowHot
	hotOf    *uint64  // the hot set of hotRows
	moved    bool     // rows have since been removed

	fenced     bool                // only harvests of the instances of generation are taken
	generation []uint64            // one for each share of the job
	numbers    map[uint64]uint64   // of the last harvest applied of each instance
	always     map[uint64]struct{} // keys of rows that are taken although the store is full; see TakeAlways
	harvest    harvestID           // the last harvest applied
	committed  harvestID           // the last harvest that is part of the weights
	snapshot   *Snapshot           // snapshot in progress, or nil

	// The current batch, kept for its memory.
	batchKeys  []uint64
	batchUnits []int64
	batchRows  []int
	sorting    []keyedRow // of AppendSums
	loaded     int64      // keeps the compiler from removing loads
}

// New returns an empty store, or an error that names the invalid field of cfg.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.normal()
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg:    cfg,
		format: fixedpoint.Format{Exp: cfg.Exp},
		unit:   float32(math.Ldexp(1, cfg.Exp)),
		index:  newTable(cfg.Capacity),
		rows:   newRows(cfg.Dim, cfg.Optimizer.Method),

		numbering: rand.Uint32(),
		numbers:   map[uint64]uint64{},
	}
	if cfg.Optimizer.Method == None {
		s.wide = newWide(cfg.Dim, s.format)
	}
	s.unsummed.closed = s.wide == nil
	s.rows.reserveRows(cfg.Capacity)
	return s, nil
}

// Config returns the store's configuration with defaults filled in.
func (s *Store) Config() Config { return s.cfg }

// Len returns the number of rows in memory: those ever updated, or, without an optimiser,
// those of the open step.
func (s *Store) Len() int {
	s.sumNoted()
	return s.rows.n
}

// kept returns the number of rows that outlive the step.
func (s *Store) kept() int {
	if s.cfg.Optimizer.Method == None {
		return 0
	}
	return s.rows.n
}

// LastHarvest returns the instance and the number of the last applied harvest;
// zeros before the first.
func (s *Store) LastHarvest() (instance, number uint64) {
	return s.harvest.instance, s.harvest.number
}

// Read copies the weights of the rows of keys, as of the last commit, into dst, which must
// hold at least len(keys) × Dim floats. A row without updates has its initial weights and
// is not inserted, so reading takes no memory.
func (s *Store) Read(keys []uint64, dst []float32) {
	if s.kept() == 0 {
		for i, key := range keys {
			s.cfg.Init.fillRow(key, dst[i*s.cfg.Dim:][:s.cfg.Dim])
		}
		return
	}
	for len(keys) > 0 {
		n := min(readBatch, len(keys))
		s.readKeys(keys[:n], dst[:n*s.cfg.Dim])
		keys, dst = keys[n:], dst[n*s.cfg.Dim:]
	}
}

// readBatch bounds the rows that readKeys loads before it copies them, to keep them in the cache.
const readBatch = 128

// readKeys is Read of at most readBatch keys. Like addUnits, it prefetches the rows in a short loop
// before it copies them; for one column, that loop already copies.
func (s *Store) readKeys(keys []uint64, dst []float32) {
	d := s.cfg.Dim
	s.scratchRows(len(keys))
	rows := s.batchRows
	s.index.findBatch(rows, keys)
	var loaded uint32
	for i, r := range rows {
		if r < 0 {
			if r = s.index.findRow(keys[i]); r < 0 {
				s.cfg.Init.fillRow(keys[i], dst[i*d:][:d])
				continue
			}
			rows[i] = r
		}
		c, j := s.rows.chunkAt(r)
		first, last := c.weights[j*d], c.weights[(j+1)*d-1]
		dst[i*d] = first
		loaded |= math.Float32bits(last)
	}
	s.loaded = int64(loaded)
	if d == 1 {
		return
	}
	for i, r := range rows {
		if r >= 0 {
			c, j := s.rows.chunkAt(r)
			copy(dst[i*d:][:d], c.weights[j*d:])
		}
	}
}

// fillRow writes the initial weights of a row.
func (i Init) fillRow(key uint64, dst []float32) {
	dst[0] = 0
	// A splitmix64 stream for each row: the state advances by gamma, and
	// column c gets output c.
	const gamma = 0x9e3779b97f4a7c15
	state := mix(mix(i.Seed+gamma) ^ key)
	for c := 1; c < len(dst); c++ {
		state += gamma
		// 24 bits fit a float32, so that only the product is rounded.
		u := int32(mix(state)>>40) - 1<<23
		dst[c] = float32(u) * (1.0 / (1 << 23)) * i.Scale
	}
}

// Accumulate adds the gradients of a COLD body to the open step, all of them or, with an
// error, none. The errors are of type [wire.Refusal]: CodeDimension, CodeNotFinite,
// CodeOverflow, where Index is the position of the float in the body, and CodeRowsFull,
// where it is that of the row. Without an optimiser no gradient and no sum overflows.
func (s *Store) Accumulate(rows wire.Rows) error {
	d := s.cfg.Dim
	if rows.Dim != d {
		return wire.Refusal{Code: wire.CodeDimension, Value: uint32(d)}
	}
	keys, units := s.scratchRows(rows.Count)
	for i := range keys {
		keys[i] = rows.Key(i)
	}
	if err := s.units(rows); err != nil {
		return err
	}
	switch bad, err := s.applyUnits(keys, units, s.cfg.MaxRows); {
	case errors.Is(err, ErrFull):
		return wire.Refusal{Code: wire.CodeRowsFull, Index: uint16(bad / d), Value: uint32(s.cfg.MaxRows)}
	case err != nil:
		return wire.Refusal{Code: wire.CodeOverflow, Index: uint16(bad)}
	}
	return nil
}

// AccumulateAt is [Store.Accumulate] of a COLD_AT body with row numbers of [Store.Find]. It
// adds nothing, with CodeNumbering, if the numbers are of another store, even one that this
// one was restored from; and with CodeRowNumber if a number belongs to no row.
func (s *Store) AccumulateAt(rows wire.Rows) error {
	switch {
	case rows.Dim != s.cfg.Dim:
		return wire.Refusal{Code: wire.CodeDimension, Value: uint32(s.cfg.Dim)}
	case rows.Numbering != s.numbering:
		return wire.Refusal{Code: wire.CodeNumbering, Value: s.numbering}
	}
	_, units := s.scratchRows(rows.Count)
	kept := s.kept()
	for i := range s.batchRows {
		r := int(rows.Number(i)) - 1
		if uint(r) >= uint(kept) {
			return wire.Refusal{Code: wire.CodeRowNumber, Index: uint16(i), Value: uint32(kept)}
		}
		s.batchRows[i] = r
	}
	if err := s.units(rows); err != nil {
		return err
	}
	if bad, err := s.addUnits(s.batchRows, nil, units, s.cfg.MaxRows); err != nil {
		return wire.Refusal{Code: wire.CodeOverflow, Index: uint16(bad)}
	}
	return nil
}

// Find stores the row number of each key in numbers, from 1 on, or 0 for a key without a row. A
// row keeps its number for the life of the store; without an optimiser, rows have no numbers.
// The numbering identifies the store.
func (s *Store) Find(keys []uint64, numbers []uint32) (numbering uint32) {
	if s.kept() == 0 {
		clear(numbers[:len(keys)])
		return s.numbering
	}
	s.scratchRows(len(keys))
	s.index.findBatch(s.batchRows, keys)
	for i, r := range s.batchRows {
		if r < 0 {
			r = s.index.findRow(keys[i])
		}
		numbers[i] = uint32(r + 1)
	}
	return s.numbering
}

// units converts the floats of a body into the batch.
func (s *Store) units(rows wire.Rows) error {
	if s.wide != nil {
		return s.wide.unitsOfRows(rows, s.batchUnits)
	}
	for i := range s.batchUnits {
		n, err := s.format.FromBits(rows.Bits(i))
		if err != nil {
			return refusal(err, i)
		}
		s.batchUnits[i] = n
	}
	return nil
}

func refusal(err error, index int) wire.Refusal {
	code := wire.CodeOverflow
	if errors.Is(err, fixedpoint.ErrNotFinite) {
		code = wire.CodeNotFinite
	}
	return wire.Refusal{Code: code, Index: uint16(index)}
}

// Push adds the gradients of len(keys) rows to the open step, as Accumulate does for
// a frame; len(grads) must be len(keys) × Dim. It adds all of them or, with an error,
// none.
func (s *Store) Push(keys []uint64, grads []float32) error {
	d := s.cfg.Dim
	if len(grads) != len(keys)*d {
		return fmt.Errorf("ps: %d gradients for %d rows of %d", len(grads), len(keys), d)
	}
	_, units := s.scratchRows(len(keys))
	for i, x := range grads {
		var n int64
		var err error
		if s.wide != nil {
			n, err = s.wide.unitsOf(i, math.Float32bits(x))
		} else {
			n, err = s.format.FromFloat32(x)
		}
		if err != nil {
			return fmt.Errorf("ps: gradient %d (key %d, column %d): %w", i, keys[i/d], i%d, err)
		}
		units[i] = n
	}
	if bad, err := s.applyUnits(keys, units, s.cfg.MaxRows); err != nil {
		return fmt.Errorf("ps: gradient %d (key %d, column %d): %w", bad, keys[bad/d], bad%d, err)
	}
	return nil
}

// AddSum adds fixed-point units to one parameter of the open step. It adds nothing and
// returns an error that wraps [ErrOverflow] or [ErrFull] if the sum would be out of
// range or there is no room for the row.
func (s *Store) AddSum(key uint64, col int, units int64) error {
	d := s.cfg.Dim
	if col < 0 || col >= d {
		return fmt.Errorf("ps: column %d of a row of %d", col, d)
	}
	keys, row := s.scratchRows(1)
	clear(row)
	keys[0], row[col] = key, units
	if _, err := s.applyUnits(keys, row, s.cfg.MaxRows); err != nil {
		return fmt.Errorf("ps: key %d, column %d: %w", key, col, err)
	}
	return nil
}

// scratchRows returns scratch space for n rows.
func (s *Store) scratchRows(n int) (keys []uint64, units []int64) {
	s.batchKeys = slices.Grow(s.batchKeys[:0], n)[:n]
	s.batchUnits = slices.Grow(s.batchUnits[:0], n*s.cfg.Dim)[:n*s.cfg.Dim]
	s.batchRows = slices.Grow(s.batchRows[:0], n)[:n]
	if s.wide != nil {
		s.wide.batch = s.wide.batch[:0]
	}
	return s.batchKeys, s.batchUnits
}

// applyUnits adds len(keys) rows of units to the open step. If a sum overflows
// ([ErrOverflow]), or a new row would exceed limit ([ErrFull]), it restores the store
// and returns the position of the unit. The caller has called scratchRows for at least as
// many rows. A store without an optimiser also adds what units do not hold.
func (s *Store) applyUnits(keys []uint64, units []int64, limit int) (bad int, err error) {
	if !s.noteRows(keys, units, limit) {
		rows := s.batchRows[:len(keys)]
		s.index.findBatch(rows, keys)
		bad, err = s.addUnits(rows, keys, units, limit)
	}
	if s.wide != nil && err == nil {
		s.wide.addBatch(keys)
	}
	return bad, err
}

// addUnits is applyUnits with known rows; unknown ones are less than 0. Without an optimiser no sum
// overflows: what would is added to a wide one.
func (s *Store) addUnits(rows []int, keys []uint64, units []int64, limit int) (bad int, err error) {
	d := s.cfg.Dim
	oldRows, oldTouched := s.rows.n, len(s.touched)

	for i, r := range rows {
		if r >= 0 {
			continue
		}
		r, inserted := s.index.placeKey(keys[i], s.rows.n)
		if inserted {
			s.insertRow(keys[i])
			if _, always := s.always[keys[i]]; s.rows.n > limit && !always {
				s.undoUnits(rows, nil, oldRows, oldTouched)
				return i * d, ErrFull
			}
		}
		rows[i] = r
	}
	// Short passes let the processor overlap the cache misses of each: first those of
	// the table, now those of the sums.
	s.loaded = s.rows.prefetchSums(rows)
	if d == 1 { // the loop below, without its inner loop and slices
		for i, r := range rows {
			c, j := s.rows.chunkAt(r)
			at := &c.sums[j]
			sum, ok := fixedpoint.Add(*at, units[i])
			if !ok && s.wide != nil {
				s.wide.addUnits(s.rows.keyOf(r), 0, units[i])
				sum, ok = *at, true
			}
			if !ok {
				s.undoUnits(rows, units[:i], oldRows, oldTouched)
				return i, ErrOverflow
			}
			*at = sum
			if c.markRow(j) {
				s.touched = append(s.touched, r)
			}
		}
		return 0, nil
	}
	for i, r := range rows {
		c, j := s.rows.chunkAt(r)
		sums, add := c.sums[j*d:][:d], units[i*d:][:d]
		for col := range sums {
			sum, ok := fixedpoint.Add(sums[col], add[col])
			if !ok && s.wide != nil {
				s.wide.addUnits(s.rows.keyOf(r), col, add[col])
				sum, ok = sums[col], true
			}
			if !ok {
				s.undoUnits(rows, units[:i*d+col], oldRows, oldTouched)
				return i*d + col, ErrOverflow
			}
			sums[col] = sum
		}
		if c.markRow(j) {
			s.touched = append(s.touched, r)
		}
	}
	return 0, nil
}

// insertRow appends a row with its initial weights.
func (s *Store) insertRow(key uint64) {
	s.rows.reserveRows(s.rows.n + 1)
	c, i := s.rows.chunkAt(s.rows.n)
	s.rows.n++
	c.keys[i] = key
	// The sums are zero: in new memory, and after undoUnits or forgetStep.
	if s.rows.method == None {
		return
	}
	_, _, weights, squares := s.rows.rowArrays(s.rows.n - 1)
	s.cfg.Init.fillRow(key, weights)
	for col := range squares {
		squares[col] = s.cfg.Optimizer.InitialAccumulator
	}
}

// MakeRoom makes room in the index for as many rows as came since its last call. Servers call it
// when idle, so that the next step, which may bring as many, need not.
func (s *Store) MakeRoom() {
	s.index.makeRoom(s.rows.n - s.roomy)
	s.roomy = s.rows.n
}

// undoUnits reverts applyUnits: the additions of units, then the touched rows and the
// insertions.
func (s *Store) undoUnits(rows []int, units []int64, oldRows, oldTouched int) {
	d := s.cfg.Dim
	for i, n := range units {
		_, sums, _, _ := s.rows.rowArrays(rows[i/d])
		sums[i%d] -= n
	}
	for _, r := range s.touched[oldTouched:] {
		s.rows.unmarkRow(r)
	}
	s.touched = s.touched[:oldTouched]
	s.moved = s.moved || s.rows.n > oldRows
	for r := oldRows; r < s.rows.n; r++ {
		s.index.unplaceKey(s.rows.keyOf(r))
	}
	s.rows.n = oldRows
}

// Pending iterates over the rows of the open step: their keys and their Dim sums in fixed-point
// units, without what these do not hold ([None]). The sums are views; the store must not be changed
// during the iteration.
func (s *Store) Pending() iter.Seq2[uint64, []int64] {
	s.sumNoted()
	return func(yield func(uint64, []int64) bool) {
		for _, r := range s.touched {
			key, sums, _, _ := s.rows.rowArrays(r)
			if !yield(key, sums) {
				return
			}
		}
	}
}

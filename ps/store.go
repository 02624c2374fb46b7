package ps

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// Store holds the rows of one job. It is not safe for concurrent use: one
// goroutine owns it.
//
// Accumulating, reading and committing do not allocate, except when the store
// grows.
type Store struct {
	cfg    Config
	format fixedpoint.Format
	unit   float32 // 2^Exp

	// Rows have numbers in the order of their first update. That order puts
	// the hot rows of a skewed job next to each other. What accumulating needs,
	// what reading needs and what only committing needs are separate arrays,
	// so that neither drags the others through the cache.
	index   table
	keys    []uint64
	sums    []int64   // Dim a row: the open step
	weights []float32 // Dim a row
	squares []float32 // Dim a row under Adagrad, else empty

	touched []int    // numbers of the rows of the open step
	marks   []uint64 // one bit a row: it is in touched

	harvest harvestID // of the last harvest applied

	// The batch that is being applied, kept for its memory.
	batchKeys  []uint64
	batchUnits []int64
	batchRows  []int
	loaded     int64 // keeps the compiler from leaving loads out
	row        []float32
}

// New returns an empty store, or an error that names the bad field of cfg.
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
		row:    make([]float32, cfg.Dim),
	}
	s.growRows(cfg.Capacity)
	return s, nil
}

// Config returns the store's configuration with its defaults filled in.
func (s *Store) Config() Config { return s.cfg }

// Len returns the number of rows that hold memory: those that were ever
// updated.
func (s *Store) Len() int { return len(s.keys) }

// LastHarvest returns the instance and the number of the last harvest that was
// applied; zeros before the first.
func (s *Store) LastHarvest() (instance, number uint64) {
	return s.harvest.instance, s.harvest.number
}

// Read copies the weights of a row, as of the last commit, into dst, which must
// hold at least Dim floats. A row without updates has its initial weights and
// is not inserted, so reading takes no memory.
func (s *Store) Read(key uint64, dst []float32) {
	d := s.cfg.Dim
	if r := s.index.find(key); r >= 0 {
		copy(dst[:d], s.weights[r*d:])
		return
	}
	s.cfg.Init.fill(key, dst[:d])
}

// fill writes the initial weights of a row.
func (i Init) fill(key uint64, dst []float32) {
	dst[0] = 0
	// A splitmix64 stream for each row: its state advances by the odd
	// constant, and column c gets output c.
	const gamma = 0x9e3779b97f4a7c15
	state := mix(mix(i.Seed+gamma) ^ key)
	for c := 1; c < len(dst); c++ {
		state += gamma
		// 24 bits are what a float32 holds, so every value is exact and the
		// only rounding is that of the product.
		u := int32(mix(state)>>40) - 1<<23
		dst[c] = float32(u) * (1.0 / (1 << 23)) * i.Scale
	}
}

// Accumulate adds the gradients of a COLD body to the open step. It adds all of
// them or, with an error, none. The errors are of type [wire.Refusal]:
// CodeDimension, CodeNotFinite, CodeOverflow; Index is the position of the float
// in the body.
func (s *Store) Accumulate(rows wire.Rows) error {
	d := s.cfg.Dim
	if rows.Dim != d {
		return wire.Refusal{Code: wire.CodeDimension, Value: uint32(d)}
	}
	keys, units := s.batch(rows.Count)
	for i := range keys {
		keys[i] = rows.Key(i)
		rows.Row(i, s.row)
		for c, x := range s.row {
			n, err := s.format.FromFloat32(x)
			if err != nil {
				return refusal(err, i*d+c)
			}
			units[i*d+c] = n
		}
	}
	if bad := s.apply(keys, units); bad >= 0 {
		return wire.Refusal{Code: wire.CodeOverflow, Index: uint16(bad)}
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

// Push adds the gradients of len(keys) rows to the open step, as Accumulate
// does for a frame; len(grads) must be len(keys) × Dim. It adds all of them or,
// with an error, none.
func (s *Store) Push(keys []uint64, grads []float32) error {
	d := s.cfg.Dim
	if len(grads) != len(keys)*d {
		return fmt.Errorf("ps: %d gradients for %d rows of %d", len(grads), len(keys), d)
	}
	_, units := s.batch(len(keys))
	for i, x := range grads {
		n, err := s.format.FromFloat32(x)
		if err != nil {
			return fmt.Errorf("ps: gradient %d (key %d, column %d): %w", i, keys[i/d], i%d, err)
		}
		units[i] = n
	}
	if bad := s.apply(keys, units); bad >= 0 {
		return fmt.Errorf("ps: gradient %d (key %d, column %d): %w", bad, keys[bad/d], bad%d, ErrOverflow)
	}
	return nil
}

// AddSum adds a number of fixed-point units to one parameter of the open step.
// It returns an error that wraps [ErrOverflow], and adds nothing, if the sum
// would leave the range.
func (s *Store) AddSum(key uint64, col int, units int64) error {
	d := s.cfg.Dim
	if col < 0 || col >= d {
		return fmt.Errorf("ps: column %d of a row of %d", col, d)
	}
	keys, row := s.batch(1)
	clear(row)
	keys[0], row[col] = key, units
	if s.apply(keys, row) >= 0 {
		return fmt.Errorf("ps: key %d, column %d: %w", key, col, ErrOverflow)
	}
	return nil
}

// batch returns scratch space for n rows.
func (s *Store) batch(n int) (keys []uint64, units []int64) {
	s.batchKeys = slices.Grow(s.batchKeys[:0], n)[:n]
	s.batchUnits = slices.Grow(s.batchUnits[:0], n*s.cfg.Dim)[:n*s.cfg.Dim]
	s.batchRows = slices.Grow(s.batchRows[:0], n)[:n]
	return s.batchKeys, s.batchUnits
}

// apply adds len(keys) rows of units to the open step. If a sum overflows, it
// restores the store and returns the position of that unit, else -1. The caller
// has called batch for at least as many rows.
func (s *Store) apply(keys []uint64, units []int64) (bad int) {
	d := s.cfg.Dim
	s.index.grow(len(keys))
	oldRows, oldTouched := len(s.keys), len(s.touched)

	// Three short passes, so that the processor overlaps the cache misses of
	// each: first those of the table, then those of the sums, which the loads
	// into loaded only bring near.
	rows := s.batchRows[:len(keys)]
	s.index.home(rows, keys)
	var loaded int64
	for i, r := range rows {
		if r < 0 {
			var inserted bool
			r, inserted = s.index.place(keys[i], len(s.keys))
			if inserted {
				s.insert(keys[i])
			}
			rows[i] = r
		}
		loaded |= s.sums[r*d]
	}
	s.loaded = loaded
	for i, r := range rows {
		sums, add := s.sums[r*d:][:d], units[i*d:][:d]
		for c := range sums {
			sum, ok := fixedpoint.Add(sums[c], add[c])
			if !ok {
				s.undo(rows, units[:i*d+c], oldRows, oldTouched)
				return i*d + c
			}
			sums[c] = sum
		}
		if s.marks[r>>6]>>(r&63)&1 == 0 {
			s.marks[r>>6] |= 1 << (r & 63)
			s.touched = append(s.touched, r)
		}
	}
	return -1
}

// insert appends a row with its initial weights.
func (s *Store) insert(key uint64) {
	d := s.cfg.Dim
	s.growRows(1)
	n := len(s.keys) + 1
	s.keys = append(s.keys, key)
	s.sums = s.sums[:n*d]
	clear(s.sums[(n-1)*d:])
	s.weights = s.weights[:n*d]
	s.cfg.Init.fill(key, s.weights[(n-1)*d:])
	if s.cfg.Optimizer.Method == Adagrad {
		s.squares = s.squares[:n*d]
		for c := range d {
			s.squares[(n-1)*d+c] = s.cfg.Optimizer.InitialAccumulator
		}
	}
	if len(s.marks)*64 < n {
		s.marks = append(s.marks, 0)
	}
}

// growRows makes room for n more rows.
func (s *Store) growRows(n int) {
	d := s.cfg.Dim
	s.keys = slices.Grow(s.keys, n)
	s.sums = slices.Grow(s.sums, n*d)
	s.weights = slices.Grow(s.weights, n*d)
	if s.cfg.Optimizer.Method == Adagrad {
		s.squares = slices.Grow(s.squares, n*d)
	}
}

// undo takes back what apply did: the additions of units, then the touched rows
// and the insertions from the newest to the oldest.
func (s *Store) undo(rows []int, units []int64, oldRows, oldTouched int) {
	d := s.cfg.Dim
	for i, n := range units {
		s.sums[rows[i/d]*d+i%d] -= n
	}
	for _, r := range s.touched[oldTouched:] {
		s.marks[r>>6] &^= 1 << (r & 63)
	}
	s.touched = s.touched[:oldTouched]
	for r := len(s.keys) - 1; r >= oldRows; r-- {
		s.index.unplace(s.keys[r])
	}
	s.keys = s.keys[:oldRows]
	s.sums = s.sums[:oldRows*d]
	s.weights = s.weights[:oldRows*d]
	if s.cfg.Optimizer.Method == Adagrad {
		s.squares = s.squares[:oldRows*d]
	}
}

// Pending iterates over the rows of the open step: their keys and their Dim
// sums in fixed-point units. The sums are views; the store must not be changed
// during the iteration.
func (s *Store) Pending() iter.Seq2[uint64, []int64] {
	d := s.cfg.Dim
	return func(yield func(uint64, []int64) bool) {
		for _, r := range s.touched {
			if !yield(s.keys[r], s.sums[r*d:(r+1)*d:(r+1)*d]) {
				return
			}
		}
	}
}

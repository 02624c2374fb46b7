// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/libra-ina/libra/wire"
)

// Errors of New, Begin and Fill.
var (
	// ErrConfig means that a Config is out of range.
	ErrConfig = errors.New("packer: bad configuration")
	// ErrShape means that a batch has not Dim gradients for each key, or more
	// than 2^32-1 of them.
	ErrShape = errors.New("packer: gradients do not match keys")
	// ErrBuffer means that a payload is too short for Config.Stripes stripes
	// or for one row.
	ErrBuffer = errors.New("packer: payload buffer too short")
)

// NotFiniteError refuses a batch that holds a NaN or an infinity. Nothing of the
// batch was sent.
type NotFiniteError struct {
	Index int     // position of the first offending gradient in the batch
	Key   uint64  // row that it belongs to
	Value float32 // NaN, +Inf or -Inf
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("packer: gradient %d (key %d) is %v; nothing of the batch was sent: put a finite number there, or leave the row out", e.Index, e.Key, e.Value)
}

// Config describes the frames that a Packer writes.
type Config struct {
	// HotSet has the rows that are hot. Nil sends every row cold; Dim is
	// needed then.
	HotSet *HotSet
	// Dim is the number of gradients of a row. 0 takes the hot set's.
	Dim int
	// Layout of the hot frames. The zero value is LaneAligned, which every
	// aggregator takes.
	Layout Layout
	// Stripes is the largest number of stripes in a hot frame, as learnt at
	// admission. 0 means 1, which every aggregator takes.
	Stripes int
	// Numbers is how gradients stand in hot frames. The zero value is
	// float32.
	Numbers Numbers
	// Split of the cold rows among parameter servers: no frame has rows of two of
	// them. 0 means one server.
	Split Split
}

// Sent counts what is in the frames of a batch.
type Sent struct {
	HotPairs   int // scalar (rank, gradient) pairs in hot frames
	HotStripes int // stripes that carry them
	HotFrames  int
	ColdRows   int // rows of Dim gradients in cold frames
	ColdFrames int
}

// Unfilled returns the share of the lanes in hot frames that carry no pair, 0
// to 1: the price of lane alignment, largest for small batches. It is 0 if
// there are no hot frames.
func (s Sent) Unfilled() float64 {
	if s.HotStripes == 0 {
		return 0
	}
	return 1 - float64(s.HotPairs)/float64(s.HotStripes*wire.Lanes)
}

// Packer writes batches of gradients into frames, one batch after the other:
// [Packer.Begin] takes a batch apart, and each [Packer.Fill] writes the next
// frame of it. Between two frames the caller may do whatever it likes, and may
// begin another batch instead.
//
// A Packer keeps scratch memory between batches, which grows to the largest of
// them; after that it allocates nothing. It is not safe for concurrent use.
type Packer struct {
	hotSet  *HotSet
	dim     int
	layout  Layout
	stripes int
	numbers Numbers
	split   Split
	scratch scratch
	merged  []uint64 // keys of several prepared batches
	sums    *sums    // nil before the first BeginSum
	// prepared are batches of a sum.
	prepared []*Prepared
	// mergedRows are the numbers of their cold rows.
	mergedRows RowNumbers
	batch
}

// batch is the batch in progress, and how much of it is in frames.
type batch struct {
	places
	keys  []uint64
	grads []float32
	rows  *RowNumbers // of the cold rows, or nil: they are named by keys
	sent  Sent

	server int // that the next cold frame is for
}

// New returns a Packer. It returns [ErrConfig] if a field is out of range, or
// if the hot set has more than [MaxSlots] scalars.
func New(c Config) (*Packer, error) {
	if c.HotSet != nil && c.Dim == 0 {
		c.Dim = c.HotSet.Dim()
	}
	c.Stripes = cmp.Or(c.Stripes, 1)
	switch {
	case c.Dim < 1:
		return nil, fmt.Errorf("%w: row dimension %d is not positive", ErrConfig, c.Dim)
	case c.HotSet != nil && c.Dim != c.HotSet.Dim():
		return nil, fmt.Errorf("%w: row dimension %d, but the hot set has %d", ErrConfig, c.Dim, c.HotSet.Dim())
	case c.HotSet != nil && c.HotSet.Len() > MaxSlots/c.Dim:
		return nil, fmt.Errorf("%w: %d hot rows of dimension %d exceed %d slots", ErrConfig, c.HotSet.Len(), c.Dim, MaxSlots)
	case c.Layout > Dense:
		return nil, fmt.Errorf("%w: unknown layout %d", ErrConfig, c.Layout)
	case c.Split < 0 || c.Split > wire.MaxServers:
		return nil, fmt.Errorf("%w: %d parameter servers, possible are 1 to %d", ErrConfig, c.Split, wire.MaxServers)
	case c.Stripes < 1 || c.Stripes > wire.MaxStripes:
		return nil, fmt.Errorf("%w: %d stripes a frame, possible are 1 to %d", ErrConfig, c.Stripes, wire.MaxStripes)
	}
	return &Packer{hotSet: c.HotSet, dim: c.Dim, layout: c.Layout, stripes: c.Stripes, numbers: c.Numbers, split: max(1, c.Split)}, nil
}

// Begin takes a batch apart: keys[i] is a row key and grads[i*Dim:(i+1)*Dim] its
// gradients. Keys may repeat; every occurrence is sent. The slices are the
// packer's until [Packer.Next] returns 0 or another batch begins. What Fill has
// not written of the batch before is dropped.
//
// A batch is refused as a whole, before any frame is written: with [ErrShape] if
// the lengths do not match, with *[NotFiniteError] for the first NaN or infinity,
// with *[RangeError] for the first hot gradient that Config.Numbers excludes.
func (p *Packer) Begin(keys []uint64, grads []float32) error {
	p.batch = batch{}
	if err := p.check(keys, grads); err != nil {
		return err
	}
	p.scratch.reset()
	p.place(&p.scratch, keys, 0)
	p.deal(&p.scratch, keys)
	return p.start(p.placed(&p.scratch), keys, grads)
}

// check compares the numbers of keys and of gradients of a batch, and looks for
// gradients that are not finite.
func (p *Packer) check(keys []uint64, grads []float32) error {
	if err := p.checkShape(uint64(len(keys)), uint64(len(grads))); err != nil {
		return err
	}
	if at := notFinite(grads); at >= 0 {
		return &NotFiniteError{Index: at, Key: keys[at/p.dim], Value: grads[at]}
	}
	return nil
}

// start makes a checked batch the one in progress, unless hot gradients of it are out
// of range.
func (p *Packer) start(where places, keys []uint64, grads []float32) error {
	if at := p.outOfRange(&where, grads); at >= 0 {
		return &RangeError{Index: at, Key: keys[at/p.dim], Value: grads[at]}
	}
	p.batch = batch{places: where, keys: keys, grads: grads}
	p.aim()
	return nil
}

// aim finds the server that the next cold frame is for.
func (b *batch) aim() {
	for b.server < len(b.ends) && b.sent.ColdRows == b.ends[b.server] {
		b.server++
	}
}

// checkShape compares the numbers of keys and of gradients of a batch.
func (p *Packer) checkShape(keys, grads uint64) error {
	if grads != keys*uint64(p.dim) {
		return fmt.Errorf("%w: %d keys of dimension %d, %d gradients", ErrShape, keys, p.dim, grads)
	}
	if grads > math.MaxUint32 { // positions are kept in 32 bits
		return fmt.Errorf("%w: a batch of %d gradients; push at most %d at a time", ErrShape, grads, uint32(math.MaxUint32))
	}
	return nil
}

// Next returns the type of the frame that Fill writes next: [wire.TypeHot] while
// there are hot pairs, then [wire.TypeCold] or [wire.TypeColdAt], and 0 when the whole
// batch is in frames.
func (p *Packer) Next() wire.Type {
	switch {
	case p.sent.HotStripes < len(p.masks):
		return wire.TypeHot
	case p.sent.ColdRows < len(p.cold):
		if p.rows != nil {
			return wire.TypeColdAt
		}
		return wire.TypeCold
	}
	return 0
}

// Server returns the index of the server that the next cold frame is for. Frames for one server follow
// those for the server before.
func (p *Packer) Server() int { return p.server }

// Sent returns what is in the frames that Fill has written of the batch.
func (p *Packer) Sent() Sent { return p.sent }

// Fill writes the body of the next frame into payload and returns the part of
// payload that the frame takes, the header included; nil if Next is 0. The first
// wire.HeaderLen bytes are the caller's: Fill never reads or writes them. Of the
// rest it writes every byte that it returns, so payload need not be zeroed. A
// gradient is copied once, from the batch into payload.
//
// A hot frame ([wire.FlagDense] if Config.Layout is) needs
// wire.HotLen(Config.Stripes) bytes. A cold frame takes as many rows as fit, at
// least one. [ErrBuffer] means that payload is shorter than that; the frame is
// still the next one then.
func (p *Packer) Fill(payload []byte) ([]byte, error) {
	switch p.Next() {
	case wire.TypeHot:
		if len(payload) < wire.HotLen(p.stripes) {
			return nil, fmt.Errorf("packer: hot frame %d of the batch: %w: %d bytes for %d stripes", p.sent.HotFrames, ErrBuffer, len(payload), p.stripes)
		}
		return p.fillHot(payload), nil
	case wire.TypeCold, wire.TypeColdAt:
		n := wire.ColdCap(len(payload), p.dim)
		if p.rows != nil {
			n = wire.ColdAtCap(len(payload), p.dim)
		}
		if n < 1 {
			return nil, fmt.Errorf("packer: cold frame %d of the batch: %w: %d bytes cannot hold a row of dimension %d", p.sent.ColdFrames, ErrBuffer, len(payload), p.dim)
		}
		return p.fillCold(payload, n), nil
	}
	return nil, nil
}

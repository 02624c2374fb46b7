// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/wire"
)

// Errors of New, Begin and Fill.
var (
	// ErrConfig means that a Config is out of range.
	ErrConfig = errors.New("packer: bad configuration")
	// ErrShape means that a batch does not have Dim gradients for each key, or has
	// more than 2^32-1 gradients.
	ErrShape = errors.New("packer: gradients do not match keys")
	// errBuffer means that a payload is too short for Config.Stripes stripes
	// or for one row.
	errBuffer = errors.New("packer: payload buffer too short")
)

// NotFiniteError refuses a batch with a NaN or an infinity. Nothing of the batch
// was sent.
type NotFiniteError struct {
	Index int     // position in the batch of the first such gradient
	Key   uint64  // of its row
	Value float32 // NaN, +Inf or -Inf
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("packer: gradient %d (key %d) is %v; nothing of the batch was sent: put a finite number there, or leave the row out", e.Index, e.Key, e.Value)
}

// Config describes the frames that a [Packer] writes.
type Config struct {
	// HotSet lists the hot rows. Nil makes every row cold; Dim is then required.
	HotSet *HotSet
	// Shares divides the hot set among several jobs; a hot frame has pairs of only one of them, by
	// their local ranks. Rows of a part that it keeps cold go to the first server, as those that
	// Numbers excludes. Nil means one job with everything.
	Shares *share.Division
	// Dim is the number of gradients in a row. 0 means the hot set's.
	Dim int
	// Layout of the hot frames. Every aggregator accepts the zero value,
	// LaneAligned.
	Layout Layout
	// Stripes is the largest number of stripes in a hot frame, as learnt at
	// admission. 0 means 1, which every aggregator accepts.
	Stripes int
	// Numbers is the format of gradients in hot frames. The zero value is
	// float32. With Multiples, hot rows that it excludes are cold.
	Numbers Numbers
	// Codec codes the gradients of cold rows, except those of the hot set. The zero value leaves them
	// floats.
	Codec codec.Config
	// Split assigns the cold rows to parameter servers; a frame has rows of only
	// one of them. 0 means one server.
	Split Split
}

// Sent counts the contents of a batch's frames.
type Sent struct {
	HotPairs   int // scalar (rank, gradient) pairs in hot frames
	HotStripes int // stripes that carry them
	HotFrames  int
	ColdRows   int // rows of Dim gradients in cold frames
	ColdFrames int

	CodedValues int // gradients of cold rows that are coded
	CodedBytes  int // their codes
}

// Unfilled returns the share of empty lanes in hot frames, 0 to 1: the cost of
// lane alignment, largest for small batches. It is 0 without hot frames.
func (s Sent) Unfilled() float64 {
	if s.HotStripes == 0 {
		return 0
	}
	return 1 - float64(s.HotPairs)/float64(s.HotStripes*wire.Lanes)
}

// Packer writes batches of gradients into frames, one batch after the other:
// [Packer.Begin] starts a batch, and each [Packer.Fill] writes its next frame.
// Between frames, the caller may begin another batch instead.
//
// The scratch memory of a Packer grows to the largest batch; after that it does
// not allocate. It is not safe for concurrent use.
type Packer struct {
	hotSet  *HotSet
	current atomic.Pointer[places] // of batches that begin from now on
	dim     int
	layout  Layout
	stripes int
	numbers Numbers
	split   Split
	coder   *coder // nil: cold rows are not coded
	scratch scratch
	merged  []uint64 // keys of several prepared batches
	sums    *sums    // nil before the first BeginSum
	// prepared are the prepared batches of a sum.
	prepared []*Prepared
	// mergedRows holds the numbers of the cold rows of merged batches.
	mergedRows RowNumbers
	batch
}

// batch is the batch in progress, and its progress.
type batch struct {
	slotList
	keys  []uint64
	grads []float32
	rows  *RowNumbers // numbers of the cold rows, or nil to send keys
	sent  Sent

	finite   bool // all gradients are known to be finite
	vanished int  // gradients that are rounded to 0
	share    int  // share of the next hot frame
	server   int  // server of the next cold frame
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
	case c.HotSet != nil && c.HotSet.Len() > MaxHotRows(c.Dim):
		return nil, fmt.Errorf("%w: %d hot rows of dimension %d exceed %d slots", ErrConfig, c.HotSet.Len(), c.Dim, MaxSlots)
	case c.Layout > Dense:
		return nil, fmt.Errorf("%w: unknown layout %d", ErrConfig, c.Layout)
	case c.Split < 0 || c.Split > wire.MaxServers:
		return nil, fmt.Errorf("%w: %d parameter servers, possible are 1 to %d", ErrConfig, c.Split, wire.MaxServers)
	case c.Stripes < 1 || c.Stripes > wire.MaxStripes:
		return nil, fmt.Errorf("%w: %d stripes a frame, possible are 1 to %d", ErrConfig, c.Stripes, wire.MaxStripes)
	}
	coder, err := newCoder(c.Codec, c.Dim)
	if err != nil {
		return nil, err
	}
	p := &Packer{hotSet: c.HotSet, dim: c.Dim, layout: c.Layout, stripes: c.Stripes, numbers: c.Numbers,
		split: max(1, c.Split), coder: coder}
	if err := p.Divide(c.Shares); err != nil {
		return nil, err
	}
	return p, nil
}

// Begin starts a batch: keys[i] is a row key and grads[i*Dim:(i+1)*Dim] its
// gradients. Keys may repeat; every occurrence is sent. The slices belong to the
// packer until [Packer.Next] returns 0 or another batch begins. The unwritten rest
// of the batch before is dropped.
//
// A batch is refused as a whole, before any frame is written: with [ErrShape] if
// the lengths do not match, with *[NotFiniteError] for the first NaN or infinity,
// with *[RangeError] for the first hot gradient that Config.Numbers excludes.
func (p *Packer) Begin(keys []uint64, grads []float32) error {
	p.batch = batch{}
	if err := p.checkBatch(keys, grads); err != nil {
		return err
	}
	p.resetScratch(&p.scratch)
	p.placeKeys(&p.scratch, keys, 0, p.siftable(grads))
	p.groupCold(&p.scratch, keys)
	return p.startBatch(p.slotListOf(&p.scratch), keys, grads)
}

// BeginCold is [Packer.Begin], and sends all rows as cold ones, hot rows to their server.
func (p *Packer) BeginCold(keys []uint64, grads []float32) error {
	p.batch = batch{}
	if err := p.checkBatch(keys, grads); err != nil {
		return err
	}
	s := &p.scratch
	p.resetScratch(s)
	s.nCold, s.cold, s.sifted = len(keys), grown(s.cold, len(keys)), true
	for i := range keys {
		s.cold[i] = uint32(i)
	}
	p.groupCold(s, keys)
	return p.startBatch(p.slotListOf(s), keys, grads)
}

// siftable returns the gradients of a batch if Config.Numbers excludes some of them, or else nil.
func (p *Packer) siftable(grads []float32) []float32 {
	if !p.numbers.multiples() || p.hotSet == nil {
		return nil
	}
	if p.finite = p.numbers.fit(grads); p.finite {
		return nil
	}
	return grads
}

// startBatch makes a batch of the right shape the current one, unless it refuses its gradients.
func (p *Packer) startBatch(where slotList, keys []uint64, grads []float32) error {
	if err := p.checkNumbers(&where, keys, grads); err != nil {
		return err
	}
	p.batch = batch{slotList: where, keys: keys, grads: grads, vanished: p.vanished}
	p.aimBatch()
	return nil
}

// aimBatch finds the share of the next hot frame, and the server of the next cold one.
func (b *batch) aimBatch() {
	for b.share < len(b.shareEnds) && b.sent.HotStripes == b.shareEnds[b.share] {
		b.share++
	}
	for b.server < len(b.ends) && b.sent.ColdRows == b.ends[b.server] {
		b.server++
	}
}

// checkBatch checks the shape of a batch.
func (p *Packer) checkBatch(keys []uint64, grads []float32) error {
	return p.checkShape(uint64(len(keys)), uint64(len(grads)))
}

// checkShape compares the number of gradients with the number of keys.
func (p *Packer) checkShape(keys, grads uint64) error {
	if grads != keys*uint64(p.dim) {
		return fmt.Errorf("%w: %d keys of dimension %d, %d gradients", ErrShape, keys, p.dim, grads)
	}
	if grads > math.MaxUint32 { // positions are 32 bits
		return fmt.Errorf("%w: a batch of %d gradients; push at most %d at a time", ErrShape, grads, uint32(math.MaxUint32))
	}
	return nil
}

// Next returns the type of the next frame: [wire.TypeHot] while there are hot pairs,
// then [wire.TypeCold] or [wire.TypeColdAt], and 0 when the whole batch is in
// frames.
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

// Cold returns the number of the batch's cold rows, and the key of the first.
func (p *Packer) Cold() (rows int, first uint64) {
	if len(p.cold) > 0 {
		first = p.keys[p.cold[0]]
	}
	return len(p.cold), first
}

// To returns where the next frame goes: a hot one to the share with this index, a cold one to the
// server. Frames are in the order of these.
func (p *Packer) To() int {
	if p.Next() == wire.TypeHot {
		return p.share
	}
	return p.server
}

// Sent counts the contents of the frames written so far of the batch.
func (p *Packer) Sent() Sent { return p.sent }

// Vanished returns how many gradients of the batch are rounded to 0, if Config.Numbers is Rounded.
func (p *Packer) Vanished() int { return p.vanished }

// FirstVanished returns the position of the first of gradients that are rounded to 0, or -1.
func (p *Packer) FirstVanished(grads []float32) int {
	return slices.IndexFunc(grads, p.numbers.vanishes)
}

// Fill writes the body of the next frame into payload and returns the frame's part of
// payload, including the header, or nil if Next is 0. Fill does not access the first
// wire.HeaderLen bytes, which are the caller's. It writes every other byte that it
// returns, so payload need not be zeroed. A gradient is copied once, from the batch into
// payload; one that is coded goes there by way of 64 values and the codes of a frame.
//
// A hot frame ([wire.FlagDense] if Config.Layout is) needs
// wire.HotLen(Config.Stripes) bytes. A cold frame ([wire.FlagCoded] if Sent counts more coded
// values after it) holds as many rows as fit, at least one; with codes, there has to be room
// for the longest of a row. It fails if payload is too short; the frame remains the next one.
func (p *Packer) Fill(payload []byte) ([]byte, error) {
	switch p.Next() {
	case wire.TypeHot:
		if len(payload) < wire.HotLen(p.stripes) {
			return nil, fmt.Errorf("packer: hot frame %d of the batch: %w: %d bytes for %d stripes", p.sent.HotFrames,
				errBuffer, len(payload), p.stripes)
		}
		return p.fillHot(payload), nil
	case wire.TypeCold, wire.TypeColdAt:
		if p.isCoded() {
			if len(payload) < wire.CodedLen(p.Next(), 1, codec.MaxLen(p.dim)) {
				return nil, fmt.Errorf("packer: cold frame %d of the batch: %w: %d bytes cannot hold a coded row of dimension %d",
					p.sent.ColdFrames, errBuffer, len(payload), p.dim)
			}
			return p.fillCoded(payload), nil
		}
		n := wire.ColdCap(len(payload), p.dim)
		if p.rows != nil {
			n = wire.ColdAtCap(len(payload), p.dim)
		}
		if n < 1 {
			return nil, fmt.Errorf("packer: cold frame %d of the batch: %w: %d bytes cannot hold a row of dimension %d",
				p.sent.ColdFrames, errBuffer, len(payload), p.dim)
		}
		return p.fillCold(payload, n), nil
	}
	return nil, nil
}

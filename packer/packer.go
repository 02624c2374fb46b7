package packer

import (
	"errors"
	"fmt"
	"math"

	"github.com/libra-ina/libra/wire"
)

// Errors of New and Pack.
var (
	// ErrConfig says that a Config is out of range.
	ErrConfig = errors.New("packer: bad configuration")
	// ErrShape says that a batch has not Dim gradients for each key, or more
	// than 2^32-1 of them.
	ErrShape = errors.New("packer: gradients do not match keys")
	// ErrBuffer says that a Frames lent a payload too short for one stripe
	// set or one row: a defect of the transport, or rows that do not fit the
	// path MTU.
	ErrBuffer = errors.New("packer: payload buffer too short")
)

// NotFiniteError says that a batch holds a NaN or an infinity. Nothing of the
// batch was sent.
type NotFiniteError struct {
	Index int     // position of the first offending gradient in the batch
	Key   uint64  // row that it belongs to
	Value float32 // NaN, +Inf or -Inf
}

func (e *NotFiniteError) Error() string {
	return fmt.Sprintf("packer: gradient %d (key %d) is %v; nothing of the batch was sent", e.Index, e.Key, e.Value)
}

// Config describes the frames that a Packer writes.
type Config struct {
	// HotSet says which rows are hot. Nil sends every row cold; Dim is
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
	// Numbers says how gradients stand in hot frames. The zero value is
	// float32.
	Numbers Numbers
}

// Sent says what a call of Pack handed over.
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

// Packer writes batches of gradients into frames. It keeps scratch memory
// between calls and is not safe for concurrent use.
type Packer struct {
	hotSet  *HotSet
	dim     int
	layout  Layout
	stripes int
	numbers Numbers
	scratch
}

// New returns a Packer. It returns [ErrConfig] if a field is out of range, or
// if the hot set has more than [MaxSlots] scalars.
func New(c Config) (*Packer, error) {
	if c.HotSet != nil && c.Dim == 0 {
		c.Dim = c.HotSet.Dim()
	}
	if c.Stripes == 0 {
		c.Stripes = 1
	}
	switch {
	case c.Dim < 1:
		return nil, fmt.Errorf("%w: row dimension %d is not positive", ErrConfig, c.Dim)
	case c.HotSet != nil && c.Dim != c.HotSet.Dim():
		return nil, fmt.Errorf("%w: row dimension %d, but the hot set has %d", ErrConfig, c.Dim, c.HotSet.Dim())
	case c.HotSet != nil && c.HotSet.Len() > MaxSlots/c.Dim:
		return nil, fmt.Errorf("%w: %d hot rows of dimension %d exceed %d slots", ErrConfig, c.HotSet.Len(), c.Dim, MaxSlots)
	case c.Layout > Dense:
		return nil, fmt.Errorf("%w: unknown layout %d", ErrConfig, c.Layout)
	case c.Stripes < 1 || c.Stripes > wire.MaxStripes:
		return nil, fmt.Errorf("%w: %d stripes a frame, possible are 1 to %d", ErrConfig, c.Stripes, wire.MaxStripes)
	}
	return &Packer{hotSet: c.HotSet, dim: c.Dim, layout: c.Layout, stripes: c.Stripes, numbers: c.Numbers}, nil
}

// Pack writes a batch into frames: keys[i] is a row key and
// grads[i*Dim:(i+1)*Dim] its gradients. Keys may repeat; every occurrence is
// sent. Hot frames go first, then cold ones; the order of the pairs within them
// is the packer's own.
//
// Before anything is sent it checks the batch: [ErrShape] if the lengths do not
// match, *[NotFiniteError] for the first NaN or infinity, *[RangeError] for the
// first hot gradient that Config.Numbers excludes. Otherwise an error comes from
// frames, and Sent says what had been handed over until then.
func (p *Packer) Pack(frames Frames, keys []uint64, grads []float32) (Sent, error) {
	var sent Sent
	if len(grads) != len(keys)*p.dim {
		return sent, fmt.Errorf("%w: %d keys of dimension %d, %d gradients", ErrShape, len(keys), p.dim, len(grads))
	}
	if uint64(len(grads)) > math.MaxUint32 { // positions are kept in 32 bits
		return sent, fmt.Errorf("%w: a batch of %d gradients; push at most %d at a time", ErrShape, len(grads), uint32(math.MaxUint32))
	}
	if err := p.split(keys, grads); err != nil {
		return sent, err
	}
	if err := p.checkRange(keys, grads); err != nil {
		return sent, err
	}
	if err := p.packHot(frames, grads, &sent); err != nil {
		return sent, fmt.Errorf("packer: hot frame %d of the batch: %w", sent.HotFrames, err)
	}
	if err := p.packCold(frames, keys, grads, &sent); err != nil {
		return sent, fmt.Errorf("packer: cold frame %d of the batch: %w", sent.ColdFrames, err)
	}
	return sent, nil
}

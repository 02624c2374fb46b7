// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Limits of Config, and the shape of codes.
const (
	MinBound = 1
	MaxBound = 14
	MinScale = -126
	MaxScale = 126

	Group = 64 // values that share a byte of marks
	Burst = 8  // values that share 16 bits of tags

	// maxGroup is the most bytes of a group: marks, and bursts of values with tag 3. Nothing that is
	// read or written 16 bytes at a time, from where four codes start, is beyond it.
	maxGroup = 1 + Group/Burst*2 + Group*4
)

// ErrConfig means that a field of Config is out of range.
var ErrConfig = errors.New("codec: bad configuration")

// Config says how values are coded. Both sides need the same.
type Config struct {
	// Bound is E, 1 to 14: decoded values differ from coded ones by less than 2^-(Bound+Scale).
	Bound int
	// Scale is k, -126 to 126: values are multiplied by 2^Scale before they are compared and cut. At
	// 0, values of magnitude 1 and more take four bytes. [Fit] returns one for values of any size.
	Scale int
	// Paper codes as the paper prints it, for comparison: values of one byte are cut to multiples of
	// 2^-(7+Scale) for any bound, so that those below become zero, and bursts of zeros are not left
	// out. Nothing is vectorised.
	Paper bool
}

// Codec codes and decodes values. Make it with [New]; methods of the zero Codec panic.
type Codec struct {
	config    Config
	constants constants
	plain     bool
}

// constants are what vectorised code reads, by index.
type constants = [8]float32

const (
	scaleUp    = iota // 2^k
	tagOne            // 2^-E: the least magnitude with tag 1
	tagTwo            // 2^-T
	unitOne           // 2^(31+T): puts the code of tag 1 into the high byte of an int32, below its sign
	unitTwo           // 2^31: and that of tag 2 into the two high bytes
	inverseOne        // 1/unitOne
	inverseTwo        // 1/unitTwo
	scaleDown         // 2^-k
)

// New checks the configuration.
func New(config Config) (Codec, error) {
	for _, f := range []struct {
		name             string
		value, low, high int
	}{
		{"Bound", config.Bound, MinBound, MaxBound},
		{"Scale", config.Scale, MinScale, MaxScale},
	} {
		if f.value < f.low || f.value > f.high {
			return Codec{}, fmt.Errorf("%w: %s: %d is not in [%d, %d]", ErrConfig, f.name, f.value, f.low, f.high)
		}
	}
	half := config.Bound / 2
	finer := half // by which codes of one byte are finer than 2^-7
	if config.Paper {
		finer = 0
	}
	c := Codec{config: config}
	for i, exponent := range [len(constants{})]int{
		scaleUp: config.Scale, scaleDown: -config.Scale,
		tagOne: -config.Bound, tagTwo: -half,
		unitOne: 31 + finer, unitTwo: 31,
		inverseOne: -31 - finer, inverseTwo: -31,
	} {
		c.constants[i] = float32(math.Ldexp(1, exponent))
	}
	return c, nil
}

// Config returns what the Codec was made of.
func (c Codec) Config() Config { return c.config }

// Plain returns a Codec with the same codes that uses no vectorised code, to measure what that
// gains.
func (c Codec) Plain() Codec {
	c.plain = true
	return c
}

// MaxLen is the length of the longest encoding of n values, of any bound and scale.
func MaxLen(n int) int {
	return (n+Group-1)/Group + (n+Burst-1)/Burst*2 + 4*n
}

// Append appends the encoding of the values to dst, as append does: it allocates only if dst lacks
// the room, MaxLen(len(values)), and may write up to there, beyond the slice that it returns.
func (c Codec) Append(dst []byte, values []float32) []byte {
	c.mustBeMade()
	n, room := len(dst), MaxLen(len(values))
	dst = slices.Grow(dst, room)
	out := dst[n : n+room]
	switch {
	case c.config.Paper:
		return dst[:n+c.encodePaper(out, values)]
	case c.plain:
		return dst[:n+c.encodePlain(out, values)]
	}
	return dst[:n+c.encode(out, values)]
}

// Decode fills all of values from the encoding of as many values. It reads all bytes of coded: any
// left over are malformed, too. After an error the values are undefined.
func (c Codec) Decode(values []float32, coded []byte) error {
	c.mustBeMade()
	switch {
	case c.config.Paper:
		return c.decodePaper(values, coded)
	case c.plain:
		return c.decodePlain(values, 0, coded, 0)
	}
	return c.decode(values, coded)
}

// Count returns how many of the values have tag 0, 1, 2 and 3, so that they take 0, 1, 2 and 4
// bytes.
func (c Codec) Count(values []float32) (tags [4]int) {
	c.mustBeMade()
	for _, v := range values {
		tag, _ := c.code(math.Float32bits(v))
		tags[tag]++
	}
	return tags
}

// Fit returns the Scale that puts the largest finite magnitude of the values into [1/2, 1), so that
// no finite value takes four bytes and the error is below 2^-Bound times twice that magnitude. It
// is 0 if all are zero or not finite, and the nearest that Config has if that is out of range.
func Fit(values []float32) int {
	const infinite = 0xff << 23
	var top uint32
	for _, v := range values {
		if b := math.Float32bits(v) &^ sign; b < infinite {
			top = max(top, b)
		}
	}
	if top == 0 {
		return 0
	}
	_, exponent := math.Frexp(float64(math.Float32frombits(top)))
	return min(max(-exponent, MinScale), MaxScale)
}

func (c *Codec) mustBeMade() {
	if c.config.Bound == 0 {
		panic("codec: a Codec that was not made by New")
	}
}

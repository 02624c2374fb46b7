// SPDX-License-Identifier: Apache-2.0

package lut

import "math/bits"

// New builds the tables. It returns [ErrConfig] for a bad configuration.
func New(c Config) (*Adder, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Adder{
		epo:     epoTable(),
		logM:    logMTable(c),
		logMln2: logMln2Table(c),
		logD:    logDTable(c),
		exp:     expTable(c),
		sigma: [2]sigma{
			{octaves(c.MiKeyBits, miValue), uint32(c.LogBits + 1 - c.MiKeyBits)},
			{octaves(c.SubKeyBits, subValue), uint32(c.LogBits + 1 - c.SubKeyBits)},
		},
		final: finalTable(c),

		deltaBits:  c.deltaBits(),
		logBits:    c.LogBits,
		entryShift: c.LogBits - entryBits,
		keyShift:   c.LogBits - c.FinalKeyBits,

		cfg: c,
	}, nil
}

func epoTable() []uint16 {
	t := make([]uint16, 256)
	for e := range t {
		t[e] = uint16(e - 127)
	}
	return t
}

// significand returns m = 1.f of a key of the logTables, with 63 fraction bits.
func (c Config) significand(key int) uint64 {
	return one | uint64(key)<<(63-c.MantissaBits)
}

func logMTable(c Config) []uint32 {
	t := make([]uint32, 1<<c.MantissaBits)
	for key := range t {
		t[key] = uint32(round(log2(c.significand(key)), c.LogBits))
	}
	return t
}

// The keys of expTable are unsigned, so both of its operands are biased by whole
// octaves. With m in [1, 2), log2(m ln 2) + 1 is in (0.47, 1.48). With Δm = d
// units, log2 d + 4 is in [4, deltaBits + 4) for d > 0, so that the keys of all
// d > 0 are in (2.5, deltaBits + 3.6). The entry for d = 0 is 2; its keys are in
// (0.5, 1.6), where expTable is 0.
const (
	mln2Bias  = 1 << q
	deltaBias = 4 << q
	zeroDelta = 2 << q
)

func logMln2Table(c Config) []uint16 {
	t := make([]uint16, 1<<c.MantissaBits)
	for key := range t {
		t[key] = uint16(round(log2(c.significand(key))+log2ln2+mln2Bias, c.expFraction()))
	}
	return t
}

func logDTable(c Config) []uint16 {
	t := make([]uint16, 1<<c.deltaBits())
	t[0] = uint16(round(zeroDelta, c.expFraction()))
	for d := 1; d < len(t); d++ {
		t[d] = uint16(round(log2int(uint32(d))+deltaBias, c.expFraction()))
	}
	return t
}

// expTable holds Δm/(m ln 2), in units of a logarithm, for the possible keys.
func expTable(c Config) []uint16 {
	t := make([]uint16, 1<<c.ExpKeyBits)
	for key := range (c.deltaBits() + 4) << c.expFraction() {
		l := int64(key) << (q - c.expFraction())
		l += mln2Bias - deltaBias // log2(Δm/(m ln 2)) with Δm in its own units, 2^-23
		l += int64(c.LogBits-fractionBits) << q
		// l is below 15.6. Where it is below -1, as for Δm = 0, the entry is 0.
		whole, f := int(l>>q), l&(oneQ-1)
		t[key] = uint16((exp2(f)>>(62-whole) + 1) >> 1)
	}
	return t
}

// octaves builds a table for Adder.lookup: value gets the middle of the interval
// of u that a key represents, with q fraction bits.
func octaves(width int, value func(u int64) uint16) []uint16 {
	t := make([]uint16, 1<<width)
	for key := 1; key < len(t); key++ {
		significant := bits.Len(uint(key))
		octave := width - significant
		t[key] = value(int64(octave+2)<<q - int64(2*key+1)<<(q-significant))
	}
	return t
}

func miValue(u int64) uint16 {
	return entry(log2(one + exp2neg(u)))
}

// subValue excludes the octave [0, 1) of u, which subtractNear covers.
func subValue(u int64) uint16 {
	return entry(oneQ - log2((one-exp2neg(u+oneQ))<<1))
}

// entry rounds a logarithm in (0, 1] to an entry; 1 becomes the largest one.
func entry(l int64) uint16 {
	return uint16(min(round(l, entryBits), 1<<entryBits-1))
}

// finalTable holds the fraction of 2^f, for f in the middle of each key's
// interval.
func finalTable(c Config) []uint16 {
	t := make([]uint16, 1<<c.FinalKeyBits)
	for key := range t {
		fraction := exp2(int64(2*key+1)<<(q-c.FinalKeyBits-1)) - one
		t[key] = uint16((fraction>>(62-entryBits) + 1) >> 1)
	}
	return t
}

// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"cmp"
	"errors"
	"fmt"
)

// ErrConfig means that a field of Config is out of range.
var ErrConfig = errors.New("lut: bad configuration")

// Config holds the widths of the tables. The zero value is the paper's shape with
// logarithms as fine as 32 bits allow. Wider keys are more precise: see
// [Adder.Bound] and [Adder.Budget].
type Config struct {
	// MantissaBits is the number of leading fraction bits of a float32 that
	// select m in equation 1; the others are Δm. 8 to 15; 0 means the paper's
	// 11.
	MantissaBits int
	// LogBits is the number of fraction bits of a logarithm, 16 to 23; 0 means
	// 23. With the sign and 8 integer bits, more do not fit 32 bits.
	LogBits int
	// ExpKeyBits is the width of the keys of expTable, 10 to 16; 0 means 16.
	ExpKeyBits int
	// MiKeyBits, SubKeyBits and FinalKeyBits are the widths of the keys of
	// miTable, subTable and the final expTable, 8 to 16; 0 means 16.
	MiKeyBits, SubKeyBits, FinalKeyBits int
}

const (
	fractionBits = 23 // of a float32
	entryBits    = 16 // of the entries of miTable, subTable and finalTable
)

func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		name               string
		value              *int
		fallback, low, top int
	}{
		{"MantissaBits", &c.MantissaBits, 11, 8, 15},
		{"LogBits", &c.LogBits, 23, 16, 23},
		{"ExpKeyBits", &c.ExpKeyBits, 16, 10, 16},
		{"MiKeyBits", &c.MiKeyBits, 16, 8, 16},
		{"SubKeyBits", &c.SubKeyBits, 16, 8, 16},
		{"FinalKeyBits", &c.FinalKeyBits, 16, 8, 16},
	} {
		*f.value = cmp.Or(*f.value, f.fallback)
		if *f.value < f.low || *f.value > f.top {
			return c, fmt.Errorf("%w: %s: %d is not in [%d, %d]", ErrConfig, f.name, *f.value, f.low, f.top)
		}
	}
	return c, nil
}

// deltaBits is the width of Δm.
func (c Config) deltaBits() int { return fractionBits - c.MantissaBits }

// expFraction is the number of fraction bits of a key of expTable. Its integer
// part counts octaves: those of Δm, and four more (see logDelta in build.go).
func (c Config) expFraction() int {
	octaves := c.deltaBits() + 4
	n := 0
	for 1<<n < octaves {
		n++
	}
	return c.ExpKeyBits - n
}

// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestKeepOrderSpreadsEvenly compares the places of keys with their share of the
// range, in big arithmetic: the factor is rounded down, which moves a key by one
// entry at most.
func TestKeepOrderSpreadsEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := rapid.IntRange(4, 24).Draw(t, "log")
		width := rapid.Uint64().Draw(t, "width") >> rapid.IntRange(0, 63).Draw(t, "shift")
		least := rapid.Uint64Range(0, ^uint64(0)-width).Draw(t, "least")
		p := keepOrder(log, least, least+width)
		entries := uint64(1) << log
		if p.last != entries-1 {
			t.Fatalf("the last entry is %d of %d", p.last, entries)
		}
		for _, at := range []uint64{0, 1, 2, width / 3, width / 2, width - 1, width} {
			if at > width {
				continue
			}
			home := p.homeEntry(least + at)
			want := new(big.Int).SetUint64(at)
			want.Mul(want.Add(want, big.NewInt(1)), new(big.Int).SetUint64(entries))
			span := new(big.Int).SetUint64(width)
			span.Add(span, big.NewInt(2))
			if least := new(big.Int).SetUint64(entries + 1); span.Cmp(least) < 0 {
				span = least // an entry for each key
			}
			want.Div(want, span)
			if d := new(big.Int).Sub(want, new(big.Int).SetUint64(home)); d.Sign() < 0 || d.Cmp(big.NewInt(1)) > 0 {
				t.Fatalf("key %d of %d has entry %d of %d, want %d", at, width, home, entries, want)
			}
		}
	})
}

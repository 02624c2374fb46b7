// SPDX-License-Identifier: Apache-2.0

package fixedpoint

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// checkSplit checks what Split documents.
func checkSplit(t interface{ Fatalf(string, ...any) }, exp int, n int64) {
	f := Format{exp}
	var parts [SplitParts]float32
	count, ok := f.Split(n, &parts)
	if n == math.MinInt64 {
		if ok {
			t.Fatalf("%d was split", n)
		}
		return
	}
	if !ok || count < 1 || count > SplitParts {
		t.Fatalf("%d at 2^%d: %d parts, %v", n, exp, count, ok)
	}
	var sum int64
	for i, part := range parts[:count] {
		units, err := f.FromFloat32(part)
		if err != nil || f.ToFloat32(units) != part {
			t.Fatalf("%d at 2^%d: part %d is %g, which converts to %d, %v", n, exp, i, part, units, err)
		}
		if units == 0 && n != 0 || units < 0 != (n < 0) {
			t.Fatalf("%d at 2^%d: part %d is %d units", n, exp, i, units)
		}
		var in bool
		if sum, in = Add(sum, units); !in {
			t.Fatalf("%d at 2^%d: the parts %v overflow", n, exp, parts[:count])
		}
	}
	if sum != n {
		t.Fatalf("%d at 2^%d: %v add up to %d", n, exp, parts[:count], sum)
	}
}

func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exp := rapid.IntRange(MinExp, MaxExp).Draw(t, "exp")
		checkSplit(t, exp, rapid.Int64().Draw(t, "n")>>rapid.IntRange(0, 63).Draw(t, "shift"))
	})
	for _, exp := range []int{MinExp, DefaultExp, 0, MaxExp} {
		for shift := range 64 {
			for _, low := range []int64{-2, -1, 0, 1, 2} {
				for _, n := range []int64{1<<shift + low, -1<<shift + low, math.MaxInt64>>shift + low, math.MinInt64>>shift + low, 0x5555555555555555 >> shift} {
					checkSplit(t, exp, n)
				}
			}
		}
	}
}

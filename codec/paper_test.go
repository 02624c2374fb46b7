// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// asPrinted is the paper's Algorithm 2, step by step. v has the bits of the code, width of them.
func asPrinted(f uint32, bound int) (tag uint, v uint32, width int) {
	errorBound := 127 - bound // the exponent of 2^-bound
	s, e, m := f>>31, int(f>>23&0xff), f&(1<<23-1)
	switch {
	case e >= 127:
		return 3, f, 32
	case e < errorBound:
		return 0, 0, 0
	}
	shifted := (1<<23 | m) >> (127 - e)
	if e >= errorBound+(127-errorBound+1)/2 { // the half is rounded up
		return 2, s<<15 | shifted>>8&0x7fff, 16
	}
	return 1, s<<7 | shifted>>16&0x7f, 8
}

// asDecoded is Algorithm 3 for 8 and 16 bits. The printed first1_loc_from_MSB is of a code that is
// not 0, and counts from 1.
func asDecoded(v uint32, width, countFrom int) uint32 {
	fraction := width - 1
	code := v & (1<<fraction - 1)
	shift := fraction - bits.Len32(code) + countFrom
	m := code << shift & (1<<fraction - 1) << (23 - fraction)
	return v>>fraction<<31 | uint32(127-shift)<<23 | m
}

// TestPaper holds the mode against the algorithms, and the algorithms against their bound.
func TestPaper(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	values := make([]float32, 0, 1<<16)
	for exponent := -20; exponent <= 2; exponent++ {
		values = append(values, around(math.Ldexp(1, exponent))...)
	}
	for len(values) < cap(values) {
		values = append(values, widelySpread(r, 1)...)
	}
	for bound := MinBound; bound <= MaxBound; bound++ {
		c := made(t, Config{Bound: bound, Paper: true})
		decoded := make([]float32, len(values))
		if err := c.Decode(decoded, c.Append(nil, values)); err != nil {
			t.Fatal(err)
		}
		worst := [4]float64{}
		for i, v := range values {
			b := math.Float32bits(v)
			tag, code, width := asPrinted(b, bound)
			gotTag, got := c.code(b)
			if gotTag != tag || width > 0 && got>>(32-width) != code {
				t.Fatalf("bound %d: %g has tag %d and code %x, as printed %d and %x", bound, v, gotTag, got, tag, code)
			}
			want := decoded[i]
			if tag == 1 || tag == 2 {
				if zero := code&(1<<(width-1)-1) == 0; zero {
					if want != 0 {
						t.Fatalf("bound %d: %g becomes %g", bound, v, want)
					}
				} else if w := asDecoded(code, width, 1); w != math.Float32bits(want) {
					t.Fatalf("bound %d: %g becomes %g, as printed %g", bound, v, want, math.Float32frombits(w))
				}
			}
			if tag < 3 {
				worst[tag] = max(worst[tag], math.Abs(float64(v)-float64(want)))
			}
		}
		// Errors of one byte are as large as 2^-7, whatever the bound.
		if least := math.Ldexp(1, -7) * 0.99; worst[1] > 0 && worst[1] < least || worst[1] >= math.Ldexp(1, -7) {
			t.Errorf("bound %d: one-byte values err by %g", bound, worst[1])
		}
		t.Logf("2^-%d: largest errors of zeros, one byte, two bytes: %.3g, %.3g, %.3g", bound, worst[0], worst[1], worst[2])
	}
}

// TestPaperIsWrong has the page's examples.
func TestPaperIsWrong(t *testing.T) {
	// From 2^-10 to below 2^-7, the code of one byte is 0, and so has no first 1.
	for _, v := range []float32{0x1p-10, 0.005, 0x1.fffffep-8} {
		if tag, code, _ := asPrinted(math.Float32bits(v), 10); tag != 1 || code != 0 {
			t.Errorf("%g has tag %d and code %x", v, tag, code)
		}
	}
	// Where the first 1 is counted from 0, 1/2 becomes 3/2.
	_, code, width := asPrinted(math.Float32bits(0.5), 10)
	for from, want := range []float32{1.5, 0.5} {
		if got := math.Float32frombits(asDecoded(code, width, from)); got != want {
			t.Errorf("counted from %d, 1/2 becomes %g, want %g", from, got, want)
		}
	}
	// A value whose error is above the bound.
	for _, config := range []Config{{Bound: 10}, {Bound: 10, Paper: true}} {
		c := made(t, config)
		w := []float32{0.005}
		if err := c.Decode(w, c.Append(nil, w)); err != nil {
			t.Fatal(err)
		}
		if config.Paper == (math.Abs(float64(w[0])-0.005) < 0x1p-10) {
			t.Errorf("%+v: 0.005 becomes %g", config, w[0])
		}
	}
}

// TestPaperRefuses has codes of that layout which are too short, too long, or for fewer values.
func TestPaperRefuses(t *testing.T) {
	c := made(t, Config{Bound: 10, Paper: true})
	for coded, want := range map[string]MalformedError{
		"":                  {0, 0, truncated},
		"00":                {0, 0, truncated},
		"800040":            {2, 0, truncated},
		"0000":              {2, 8, truncated},
		"0000" + "4000":     {4, 8, truncated},
		"0000" + "100001":   {2, 8, tagBeyond},
		"0000" + "000000":   {4, 9, leftOver},
		"0000" + "40008000": {5, 9, leftOver},
	} {
		err := c.Decode(make([]float32, 9), fromHex(t, coded))
		if m, ok := err.(*MalformedError); !ok || *m != want { //nolint:errorlint // the error itself
			t.Errorf("%s: %v, want %v", coded, err, &want)
		}
	}
	if err := c.Decode(make([]float32, 9), fromHex(t, "00004000"+"80")); err != nil {
		t.Error(err)
	}
}

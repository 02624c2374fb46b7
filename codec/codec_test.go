// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func made(t testing.TB, config Config) *Codec {
	t.Helper()
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// gradients are normal with deviation sigma, but for a share of which most are zero and the others
// a hundredth as large.
func gradients(seed uint64, n int, small, sigma float64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	values := make([]float32, n)
	for i := range values {
		switch u := r.Float64(); {
		case u >= small:
			values[i] = float32(r.NormFloat64() * sigma)
		case u < small/3:
			values[i] = float32(r.NormFloat64() * sigma / 100)
		}
	}
	return values
}

// widelySpread are values of all exponents, most of them near 1.
func widelySpread(r *rand.Rand, n int) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = math.Float32frombits(r.Uint32())
		if r.IntN(4) > 0 {
			values[i] = float32(math.Ldexp(r.Float64()-0.5, 3-r.IntN(20)))
		}
	}
	return values
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// TestBytes has codes that were made by hand.
func TestBytes(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		values []float32
		want   string
	}{
		"each tag":      {Config{Bound: 10}, []float32{0.75, -0.01, 0, 2.5, 0.001, 0.0009, 0, -1e-9}, "80 9340 6000 a8 40200000 04"},
		"second burst":  {Config{Bound: 10}, []float32{8: -0.125}, "40 8000 9000"},
		"zeros":         {Config{Bound: 10}, make([]float32, 65), "00 00"},
		"none":          {Config{Bound: 10}, nil, ""},
		"scale":         {Config{Bound: 10, Scale: 3}, []float32{0.75 / 8, -0.01 / 8, 1}, "80 9c00 6000 a8 3f800000"},
		"paper":         {Config{Bound: 10, Paper: true}, []float32{0.75, -0.01, 0, 2.5, 0.001, 8: 0.5}, "9340 6000 81 40200000 00 8000 4000"},
		"paper, zeros":  {Config{Bound: 10, Paper: true}, make([]float32, 17), "0000 0000 0000"},
		"paper, nearly": {Config{Bound: 10, Paper: true}, []float32{-0x1.fffffep-8}, "4000 80"},
	} {
		codec := made(t, c.config)
		coded := codec.Append([]byte("before"), c.values)
		want := strings.ReplaceAll(c.want, " ", "")
		if got := hex.EncodeToString(bytes.TrimPrefix(coded, []byte("before"))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if err := codec.Decode(make([]float32, len(c.values)), fromHex(t, want)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if codec.Config() != c.config {
			t.Errorf("%s: made of %v", name, codec.Config())
		}
	}
}

func TestBadConfig(t *testing.T) {
	for want, config := range map[string]Config{
		"Bound: 0 is not in [1, 14]":        {},
		"Bound: 15 is not in [1, 14]":       {Bound: 15},
		"Bound: -1 is not in [1, 14]":       {Bound: -1, Paper: true},
		"Scale: 127 is not in [-126, 126]":  {Bound: 14, Scale: 127},
		"Scale: -127 is not in [-126, 126]": {Bound: 1, Scale: -127},
	} {
		if _, err := New(config); !errors.Is(err, ErrConfig) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", config, err, want)
		}
	}
	for name, call := range map[string]func(){
		"Append": func() { Codec{}.Append(nil, nil) },
		"Decode": func() { _ = Codec{}.Decode(nil, nil) },
		"Count":  func() { Codec{}.Count(nil) },
	} {
		func() {
			defer func() {
				if r, ok := recover().(string); !ok || !strings.Contains(r, "not made by New") {
					t.Errorf("%s of the zero Codec: %v", name, r)
				}
			}()
			call()
		}()
	}
}

// TestMessages reads a whole error, does what it says, and succeeds.
func TestMessages(t *testing.T) {
	c := made(t, Config{Bound: 10})
	coded := c.Append(nil, make([]float32, 100))
	err := c.Decode(make([]float32, 64), coded)
	want := "codec: malformed at byte 1, value 64: bytes are left over; decode the bytes of one encoding, all of them, " +
		"with its number of values"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := c.Decode(make([]float32, 100), coded); err != nil {
		t.Error(err)
	}
}

// TestMaxLen has values that take it, and one byte less is too little for them.
func TestMaxLen(t *testing.T) {
	ones := make([]float32, 300)
	for i := range ones {
		ones[i] = 1
	}
	c := made(t, Config{Bound: 3})
	for n := range ones {
		if got := len(c.Append(nil, ones[:n])); got != MaxLen(n) {
			t.Errorf("%d values take %d bytes, want %d", n, got, MaxLen(n))
		}
	}
}

// TestAppendKeepsToItsRoom looks at what is before and behind.
func TestAppendKeepsToItsRoom(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 500 {
		values := widelySpread(r, r.IntN(300))
		c := made(t, Config{Bound: 1 + r.IntN(14), Paper: r.IntN(4) == 0})
		before, after := r.IntN(40), 40
		buffer := bytes.Repeat([]byte{0xa5}, before+MaxLen(len(values))+after)
		coded := c.Append(buffer[:before], values)
		if &coded[:1][0] != &buffer[0] {
			t.Fatalf("%d values are not coded in place", len(values))
		}
		if outside := slices.Concat(buffer[:before], buffer[len(buffer)-after:]); len(bytes.Trim(outside, "\xa5")) > 0 {
			t.Fatalf("%d values: %x", len(values), outside)
		}
		if grown := c.Append(buffer[:before:before], values); !bytes.Equal(grown, coded) {
			t.Fatalf("%d values become other codes in a slice that grows", len(values))
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	values := gradients(1, 333, 0.5, 0.1)
	for _, paper := range []bool{false, true} {
		c := made(t, Config{Bound: 9, Paper: paper})
		coded := c.Append(nil, values)
		buffer, decoded := make([]byte, 0, MaxLen(len(values))), make([]float32, len(values))
		if n := testing.AllocsPerRun(100, func() {
			codec, err := New(Config{Bound: 9, Scale: Fit(values)})
			if err != nil {
				t.Error(err)
			}
			codec.Append(buffer, values)
			c.Append(buffer, values)
			if err := c.Decode(decoded, coded); err != nil {
				t.Error(err)
			}
			c.Count(values)
		}); n > 0 {
			t.Errorf("paper %v: %g allocations", paper, n)
		}
	}
}

// TestGroupsJoin codes values in pieces.
func TestGroupsJoin(t *testing.T) {
	values := gradients(2, 64*5+9, 0.5, 0.1)
	c := made(t, Config{Bound: 8})
	whole := c.Append(nil, values)
	joined := c.Append(c.Append(c.Append(nil, values[:64]), values[64:256]), values[256:])
	if !bytes.Equal(whole, joined) {
		t.Errorf("joined %x, whole %x", joined, whole)
	}
}

func TestCount(t *testing.T) {
	c := made(t, Config{Bound: 10, Scale: 1})
	nan := float32(math.NaN())
	if got := c.Count([]float32{0, 0.0004, 0.001, -0.01, 0.25, -0.4999, 0.5, nan}); got != [4]int{2, 2, 2, 2} {
		t.Errorf("tags %v", got)
	}
	values := widelySpread(rand.New(rand.NewPCG(9, 9)), 640)
	n := made(t, Config{Bound: 10, Scale: 1, Paper: true}).Append(nil, values)
	if tags := c.Count(values); len(n) != 160+tags[1]+2*tags[2]+4*tags[3] {
		t.Errorf("%d bytes for tags %v", len(n), tags)
	}
}

func TestFit(t *testing.T) {
	infinity, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		values []float32
		want   int
	}{
		{nil, 0},
		{[]float32{0, 0}, 0},
		{[]float32{infinity, nan, -infinity}, 0},
		{[]float32{0.5, 0.1}, 0},
		{[]float32{0x1.fffffep-1}, 0},
		{[]float32{0.1, -1}, -1},
		{[]float32{-0.25, infinity, nan, 0.1}, 1},
		{[]float32{0x1p-20}, 19},
		{[]float32{math.MaxFloat32}, -126}, // -128 is out of range
		{[]float32{0x1p125}, -126},
		{[]float32{0x1p-127}, 126},
		{[]float32{0x1p-149}, 126},
	} {
		if got := Fit(c.values); got != c.want {
			t.Errorf("%g: %d, want %d", c.values, got, c.want)
		}
	}
	r := rand.New(rand.NewPCG(6, 6))
	for range 1000 {
		values := []float32{float32(math.Ldexp(r.Float64()-0.5, r.IntN(220)-100)), 0}
		top := math.Ldexp(math.Abs(float64(values[0])), Fit(values))
		if top < 0.5 || top >= 1 {
			t.Errorf("%g is scaled to %g", values[0], top)
		}
		if tags := made(t, Config{Bound: 1, Scale: Fit(values)}).Count(values); tags[3] > 0 {
			t.Errorf("%g takes four bytes", values[0])
		}
	}
}

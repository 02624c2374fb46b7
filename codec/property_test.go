// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"flag"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// fataler is a testing.TB or a rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkValues codes values both ways, decodes them both ways, and looks at what comes out.
func checkValues(t fataler, c *Codec, values []float32, buffers *buffers) {
	t.Helper()
	buffers.resize(len(values))
	coded := buffers.coded[:c.encodePlain(buffers.coded, values)]
	if vectorised := buffers.again[:c.encode(buffers.again, values)]; !bytes.Equal(coded, vectorised) {
		t.Fatalf("%+v: %x is coded as %x, by plain code as %x", c.config, hexBits(values), vectorised, coded)
	}
	if err := c.decodePlain(buffers.decoded, 0, coded, 0); err != nil {
		t.Fatalf("%+v: %x: %v", c.config, hexBits(values), err)
	}
	if err := c.decode(buffers.redecoded, coded); err != nil {
		t.Fatalf("%+v: %x: %v", c.config, hexBits(values), err)
	}
	bound := math.Ldexp(1, -c.config.Bound-c.config.Scale)
	up := math.Ldexp(1, c.config.Scale)
	for i, v := range values {
		w := buffers.decoded[i]
		b, d := math.Float32bits(v), math.Float32bits(w)
		if d != math.Float32bits(buffers.redecoded[i]) {
			t.Fatalf("%+v: %08x is decoded as %08x, by plain code as %08x", c.config, b, math.Float32bits(buffers.redecoded[i]), d)
		}
		magnitude := math.Abs(float64(v))
		switch {
		case magnitude*up < 1: // and so it is finite
			if !(math.Abs(float64(v)-float64(w)) < bound) || math.Abs(float64(w)) > magnitude || d != 0 && (b^d)&sign != 0 {
				t.Fatalf("%+v: %g (%08x) becomes %g", c.config, v, b, w)
			}
		case d != b:
			t.Fatalf("%+v: %g (%08x) becomes %08x", c.config, v, b, d)
		}
	}
	if recoded := buffers.again[:c.encode(buffers.again, buffers.decoded)]; !bytes.Equal(coded, recoded) {
		t.Fatalf("%+v: %x is coded as %x, and once more as %x", c.config, hexBits(values), coded, recoded)
	}
}

type buffers struct {
	coded, again       []byte
	decoded, redecoded []float32
}

func (b *buffers) resize(n int) {
	if len(b.decoded) != n {
		*b = buffers{make([]byte, MaxLen(n)), make([]byte, MaxLen(n)), make([]float32, n), make([]float32, n)}
	}
	for i := range b.decoded { // so that a value that is not written is seen
		b.decoded[i], b.redecoded[i] = 1e30, 2e30
	}
}

// checkCodes decodes bytes both ways, with the same result.
func checkCodes(t fataler, c *Codec, n int, coded []byte) error {
	t.Helper()
	plain, vectorised := make([]float32, n), make([]float32, n)
	want := c.decodePlain(plain, 0, coded, 0)
	got := c.decode(vectorised, coded)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v: %d values of %x: %v, plain code says %v", c.config, n, coded, got, want)
	}
	if want == nil && !sameBits(plain, vectorised) {
		t.Fatalf("%+v: %x is decoded as %s, by plain code as %s", c.config, coded, hexBits(vectorised), hexBits(plain))
	}
	return want
}

// drawValues are around what a codec distinguishes, or anything.
func drawValues(c *Codec) *rapid.Generator[[]float32] {
	near := rapid.Custom(func(t *rapid.T) float32 {
		exponent := rapid.IntRange(-c.config.Bound-2, 2).Draw(t, "exponent") - c.config.Scale
		v := math.Float32bits(float32(math.Ldexp(1, exponent))) + uint32(rapid.IntRange(-3, 3).Draw(t, "ulp"))
		return math.Float32frombits(v ^ uint32(rapid.IntRange(0, 1).Draw(t, "sign"))<<31)
	})
	anything := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	return rapid.SliceOfN(rapid.OneOf(rapid.Just(float32(0)), near, anything), 0, 200)
}

func drawCodec(t *rapid.T) *Codec {
	scale := rapid.OneOf(rapid.Just(0), rapid.SampledFrom([]int{MinScale, MaxScale}), rapid.IntRange(MinScale, MaxScale))
	c, err := New(Config{Bound: rapid.IntRange(MinBound, MaxBound).Draw(t, "bound"), Scale: scale.Draw(t, "scale")})
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

func TestValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCodec(t)
		checkValues(t, c, drawValues(c).Draw(t, "values"), &buffers{})
	})
}

// TestDamage cuts, lengthens and changes codes: those of other lengths are refused, and whatever is
// wrong, both decoders say the same.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCodec(t)
		values := drawValues(c).Draw(t, "values")
		coded := c.Plain().Append(nil, values)
		if len(coded) > 0 {
			cut := rapid.IntRange(0, len(coded)-1).Draw(t, "cut")
			if checkCodes(t, c, len(values), coded[:cut]) == nil {
				t.Fatalf("%d of %d bytes are accepted", cut, len(coded))
			}
		}
		longer := append(bytes.Clone(coded), rapid.SliceOfN(rapid.Byte(), 1, 600).Draw(t, "more")...)
		if checkCodes(t, c, len(values), longer) == nil {
			t.Fatalf("%d bytes instead of %d are accepted", len(longer), len(coded))
		}
		for range min(3, len(coded)) {
			coded[rapid.IntRange(0, len(coded)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			_ = checkCodes(t, c, len(values), coded)
		}
		_ = checkCodes(t, c, max(0, len(values)+rapid.IntRange(-9, 9).Draw(t, "other")), c.Plain().Append(nil, values))
	})
}

// TestEveryLength has all lengths of values and codes around the ends of groups.
func TestEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for n := range 400 {
		for _, values := range [][]float32{widelySpread(r, n), gradients(uint64(n), n, 0.9, 0.02), make([]float32, n)} {
			c := made(t, Config{Bound: 1 + n%14})
			checkValues(t, c, values, &buffers{})
			coded := c.Plain().Append(nil, values)
			for cut := max(0, len(coded)-40); cut < len(coded); cut++ {
				if checkCodes(t, c, n, coded[:cut]) == nil {
					t.Fatalf("%d values: %d of %d bytes are accepted", n, cut, len(coded))
				}
			}
		}
	}
}

var everyPattern = flag.Bool("every-pattern", false, "code all 2^32 float32 values with bounds 6, 8 and 10, not a sample (minutes)")

// TestPatterns codes values of all exponents and all or many fractions.
func TestPatterns(t *testing.T) {
	t.Parallel()
	type work struct {
		config Config
		step   uint64 // odd: bits of a value and the next
	}
	var all []work
	for _, bound := range []int{6, 8, 10} {
		w := work{Config{Bound: bound}, 8191}
		if *everyPattern {
			w.step = 1
		}
		all = append(all, w)
	}
	for bound := MinBound; bound <= MaxBound; bound++ {
		for _, scale := range []int{0, 20, -20, MinScale, MaxScale} {
			all = append(all, work{Config{Bound: bound, Scale: scale}, 65537})
		}
	}
	const pieces = 64 // of the values of each
	next := make(chan func(*buffers))
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			var b buffers
			for do := range next {
				do(&b)
			}
		})
	}
	for _, w := range all {
		c := made(t, w.config)
		for piece := range uint64(pieces) {
			next <- func(b *buffers) {
				const most = 1024 // values at a time
				bits, end := piece*(1<<32/pieces), (piece+1)*(1<<32/pieces)
				values := make([]float32, 0, most)
				for bits += (w.step - bits%w.step) % w.step; bits < end && !t.Failed(); {
					for values = values[:0]; len(values) < most && bits < end; bits += w.step {
						values = append(values, math.Float32frombits(uint32(bits)))
					}
					checkValues(failing{t}, c, values, b)
				}
			}
		}
	}
	close(next)
	group.Wait()
}

// failing is a test that fails in another goroutine.
type failing struct{ *testing.T }

func (f failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/wire"
)

// TestIntegers compares the conversion, there and back, with package scaled.
func TestIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := scaled.Scale{Exp: rapid.IntRange(-97, 180).Draw(t, "scale")}
		n := Integers(-s.Exp)
		bits := rapid.Uint32().Draw(t, "bits")
		if rapid.Bool().Draw(t, "near one unit or the range's end") {
			e := rapid.SampledFrom([]int{-s.Exp, 31 - s.Exp}).Draw(t, "end") + rapid.IntRange(-3, 3).Draw(t, "off")
			bits = bits&0x807fffff | uint32(min(max(e+127, 0), 254))<<23
		}
		g := math.Float32frombits(bits)
		want, err := s.FromBits(bits)
		bad := err != nil || math.Abs(float64(g)) >= math.Ldexp(1, 31-s.Exp)
		if got := n.Check([]float32{0, g}) == 1; got != bad {
			t.Fatalf("%g at scale %d refused: %v, want %v", g, s.Exp, got, bad)
		}
		if bad {
			return
		}
		if got := int32(n.integer(g)); got != want {
			t.Fatalf("%g at scale %d becomes %d, want %d", g, s.Exp, got, want)
		}
		sum := rapid.Int32().Draw(t, "sum")
		if got, want := n.Float32(uint32(sum)), s.ToFloat32(sum); got != want {
			t.Fatalf("%d at scale %d becomes %g, want %g", sum, s.Exp, got, want)
		}
	})
}

func TestFloatsBelow(t *testing.T) {
	n := FloatsBelow(17)
	for g, want := range map[float32]int{
		0: -1, 1 << 17: 0, -1 << 17: 0, math.Nextafter32(1<<17, 0): -1, math.Nextafter32(1<<17, 1<<18): 0, float32(math.Inf(1)): 0, float32(math.NaN()): 0,
	} {
		if got := n.Check([]float32{g}); got != want {
			t.Errorf("%g: %d, want %d", g, got, want)
		}
	}
	if got := (Numbers{}).Check([]float32{math.MaxFloat32, float32(math.Inf(-1))}); got != 1 {
		t.Errorf("an infinity is found at %d, want 1", got)
	}
}

// TestCheckFindsTheFirst puts a gradient that is refused at each place of batches of each length
// and alignment, between gradients of which a check of two at a time could carry into it or borrow
// from it.
func TestCheckFindsTheFirst(t *testing.T) {
	for limit, n := range map[uint32]Numbers{infinity: {}, 0x48000000: FloatsBelow(17), 1: FloatsBelow(-149)} {
		refused := []uint32{limit, math.MaxInt32, limit | 1<<31, math.MaxUint32}
		for _, other := range []uint32{0, 1 << 31, limit - 1, (limit - 1) | 1<<31} {
			for length := range 20 {
				all := slices.Repeat([]float32{math.Float32frombits(other)}, length+2)
				all[length+1] = float32(math.NaN()) // behind the batch
				for from := range 2 {
					grads := all[from : length+1]
					if at := n.Check(grads); at != -1 || !allBelow(limit, grads) {
						t.Fatalf("below %#x: %d of %x are refused at %d, or read twice", limit, len(grads), other, at)
					}
					for at := range grads {
						for _, bits := range refused {
							grads[at] = math.Float32frombits(bits)
							if got := n.Check(grads); got != at {
								t.Fatalf("below %#x: %x at %d of %d is found at %d", limit, bits, at, len(grads), got)
							}
						}
						grads[at] = math.Float32frombits(other)
					}
				}
			}
		}
	}
}

// TestPackIntegers checks that hot gradients become integers, in both layouts, and cold ones do not
// change, whatever their size.
func TestPackIntegers(t *testing.T) {
	hot, err := NewHotSet(2, []uint64{10, 0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12}, nil, Meta{}) // 12 is in slot 1
	if err != nil {
		t.Fatal(err)
	}
	keys, grads := []uint64{12, 5, 10}, []float32{0.5, -1.25, 1 << 30, 0.1, -0.375, 3}
	for _, layout := range []Layout{LaneAligned, Dense} {
		p, err := New(Config{HotSet: hot, Layout: layout, Stripes: 2, Numbers: Integers(-2)})
		if err != nil {
			t.Fatal(err)
		}
		r := &recorder{tb: t, hotLen: wire.HotLen(2), cold: wire.MaxPayload}
		if _, err := r.pack(p, keys, grads); err != nil {
			t.Fatal(err)
		}
		got := map[uint32]int32{}
		for _, q := range r.hotPairs(layout, 2) {
			got[q.Rank] = int32(q.Bits)
		}
		if diff := cmp.Diff(map[uint32]int32{22: 2, 23: -5, 0: -2, 1: 12}, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", layout, diff)
		}
		rows, err := wire.ParseRows(r.colds[0], wire.TypeCold)
		if err != nil {
			t.Fatal(err)
		}
		row := make([]float32, 2)
		if rows.Row(0, row); row[0] != 1<<30 || row[1] != 0.1 {
			t.Errorf("cold row is %v", row)
		}

		grads := append([]float32(nil), grads...)
		grads[5] = -1 << 29
		var outside *RangeError
		sent, err := r.pack(p, keys, grads)
		if !errors.As(err, &outside) || *outside != (RangeError{Index: 5, Key: 10, Value: -1 << 29}) || sent != (Sent{}) {
			t.Errorf("error %v after %+v, want a RangeError at 5", err, sent)
		}
		grads[4] = float32(math.NaN())
		var notFinite *NotFiniteError
		if _, err := r.pack(p, keys, grads); !errors.As(err, &notFinite) || notFinite.Index != 4 {
			t.Errorf("error %v, want a NotFiniteError at 4", err)
		}
		grads[0], grads[4], grads[5] = -1<<29, 0, 0
		if _, err := r.pack(p, keys, grads); !errors.As(err, &outside) || *outside != (RangeError{Index: 0, Key: 12, Value: -1 << 29}) {
			t.Errorf("error %v, want a RangeError at 0", err)
		}
	}
}

func TestVector(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, wire.MaxStripes*wire.Lanes).Draw(t, "ranks")
		slot := rapid.IntRange(0, PageSlots/wire.Lanes-wire.MaxStripes).Draw(t, "slot")
		numbers := rapid.SampledFrom([]Numbers{{}, Integers(-8)}).Draw(t, "numbers")
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(rapid.IntRange(-1<<23, 1<<23).Draw(t, "value")) / 256
		}
		payload := make([]byte, wire.HotLen(VectorStripes(n)))
		for i := range payload {
			payload[i] = 0xa5 // earlier contents of the buffer
		}
		PutVector(payload, slot, values, numbers)
		fresh := make([]byte, len(payload))
		if PutVector(fresh, slot, values, numbers); !bytes.Equal(payload[wire.HeaderLen:], fresh[wire.HeaderLen:]) {
			t.Fatal("the payload has some of what its buffer held before")
		}
		sums := make([]float32, n)
		if !TakeVector(payload, slot, sums, numbers) {
			t.Fatal("refused")
		}
		if diff := cmp.Diff(values, sums); diff != "" {
			t.Fatal(diff)
		}
		// Values with other ranks change nothing.
		clear(sums)
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			slot++
		case 1:
			payload = payload[:len(payload)-1]
		case 2:
			s := wire.StripeAt(payload, rapid.IntRange(0, VectorStripes(n)-1).Draw(t, "stripe"))
			s[rapid.IntRange(0, 3).Draw(t, "byte")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		case 3:
			at := rapid.IntRange(0, n-1).Draw(t, "rank")
			s := wire.StripeAt(payload, at/wire.Lanes)
			s.SetSlot(at%wire.Lanes, s.Slot(at%wire.Lanes)^1)
		}
		if TakeVector(payload, slot, sums, numbers) {
			t.Fatal("sums of other ranks were taken")
		}
		for i, v := range sums {
			if v != 0 {
				t.Fatalf("sum %d was changed to %g", i, v)
			}
		}
	})
}

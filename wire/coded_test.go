// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// FuzzParseCoded decodes arbitrary bodies as coded ones, and encodes the result.
func FuzzParseCoded(f *testing.F) {
	for _, c := range loadGolden(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil && c.Rows != nil && c.Sums == nil {
			f.Add(p.Payload, p.Payload[0]&15)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte, kind uint8) {
		r, codes, err := wire.ParseCoded(payload, wire.Type(kind))
		if err != nil {
			return
		}
		if r.Count*r.Dim > wire.MaxCoded || len(codes) == 0 || len(payload) != wire.CodedLen(wire.Type(kind), r.Count, len(codes)) {
			t.Fatalf("%d rows of dimension %d, %d bytes of codes in %d", r.Count, r.Dim, len(codes), len(payload))
		}
		again := make([]byte, len(payload))
		copy(again, payload[:wire.HeaderLen])
		w, place := wire.PutCoded(again, wire.Type(kind), r.Count, r.Dim, r.Numbering)
		copy(place, codes)
		var numbers []uint32
		for i := range r.Count {
			if wire.Type(kind) == wire.TypeCold {
				w.SetKey(i, r.Key(i))
			} else {
				numbers = append(numbers, r.Number(i))
			}
		}
		w.SetNumbers(numbers)
		if !bytes.Equal(again, payload) {
			t.Fatalf("% x is written as % x", payload, again)
		}
	})
}

func TestOtherTypesAreNotCoded(t *testing.T) {
	payload := coded(wire.TypeCold, 4, someCoded[:8], 1, 2)
	for kind := range wire.Type(16) {
		_, _, err := wire.ParseCoded(payload, kind)
		if want := kind != wire.TypeCold && kind != wire.TypeColdAt; errors.Is(err, wire.ErrLength) != want {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

func TestRowsWithFloats(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 100} {
		values := make([]float32, 2*n)
		for i := range values {
			values[i] = float32(i) - 3.5
		}
		values[0] = math.Float32frombits(0x7fc12345)
		r, _, err := wire.ParseCoded(coded(wire.TypeCold, n, make([]float32, 2*n), 5, 6), wire.TypeCold)
		if err != nil {
			t.Fatal(err)
		}
		r = r.WithFloats(values, make([]byte, 4*wire.MaxCoded))
		got := make([]float32, 2*n)
		r.Row(0, got)
		r.Row(1, got[n:])
		if r.Key(0) != 5 || r.Key(1) != 6 || r.Bits(0) != 0x7fc12345 || !slices.Equal(got[1:], values[1:]) {
			t.Errorf("%d floats a row: keys %d, %d, %v", n, r.Key(0), r.Key(1), got)
		}
	}
}

func TestFlagNames(t *testing.T) {
	for _, c := range []struct {
		wire.Header
		want string
	}{
		{wire.Header{Type: wire.TypeCold, Flags: wire.FlagCoded | wire.FlagQuiet}, "CODED|QUIET"},
		{wire.Header{Type: wire.TypeColdAt, Flags: wire.FlagRetx | wire.FlagCoded}, "RETX|CODED"},
		{wire.Header{Type: wire.TypeAck, Flags: wire.FlagSum | wire.FlagScale}, "SUM|SCALE"},
		{wire.Header{Type: wire.TypeRows, Flags: 0x20}, "SCALE"},
		{wire.Header{Type: wire.TypeCold}, ""},
		{wire.Header{Type: wire.TypeAck, Flags: wire.FlagTaken | wire.FlagCover}, "TAKEN|COVER"},
		{wire.Header{Type: wire.TypeTaken, Flags: 0x40}, "QUIET"},
	} {
		if got := c.FlagNames(); got != c.want {
			t.Errorf("%v: %q, want %q", c.Type, got, c.want)
		}
	}
}

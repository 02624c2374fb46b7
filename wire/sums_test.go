// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// Sums of ascending keys, near each other or far apart, are read from full frames of the width of
// SumsWidth as they were written, up to the last bit; a smaller width is not enough.
func TestSumsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.IntRange(1, 20).Draw(t, "dim")
		limit := rapid.IntRange(wire.SumsLen(1, dim, wire.SumsWidthMax), wire.MaxPayload).Draw(t, "limit")
		bits := rapid.IntRange(1, 64).Draw(t, "bits")
		keys := rapid.SliceOfNDistinct(rapid.Uint64Max(math.MaxUint64>>(64-bits)), 1, 1<<min(bits, 8), rapid.ID).Draw(t, "keys")
		slices.Sort(keys)
		sums := rapid.SliceOfN(rapid.Float32(), len(keys)*dim, len(keys)*dim).Draw(t, "sums")

		width := wire.SumsWidth(keys, limit, dim)
		each := wire.SumsCap(limit, dim, width)
		if wire.SumsLen(each, dim, width) > limit || wire.SumsLen(each+1, dim, width) <= limit {
			t.Fatalf("%d rows of width %d in %d bytes", each, width, limit)
		}
		needs := func(width int) (bits uint64) {
			for frame := range slices.Chunk(keys, max(1, wire.SumsCap(limit, dim, width))) {
				bits |= frame[len(frame)-1] - frame[0]
			}
			return bits
		}
		if width < wire.SumsWidthMax && needs(width)>>(8*width) != 0 || width > 1 && needs(width-1)>>(8*(width-1)) == 0 {
			t.Fatalf("width %d for keys %x", width, keys)
		}
		for first := 0; first < len(keys); first += each {
			n := min(each, len(keys)-first)
			payload := make([]byte, wire.SumsLen(n, dim, width))
			head := wire.SumsHead{Step: 1<<40 + 5, Rows: uint32(len(keys)), First: uint32(first), Width: width}
			wire.PutStepSums(payload, head, keys[first:first+n], dim, sums[first*dim:])
			s, err := wire.ParseStepSums(payload)
			if head.Least = keys[first]; err != nil || s.Count != n || s.Dim != dim || s.SumsHead != head {
				t.Fatalf("%+v, %v; want %d rows of %d and %+v", s, err, n, dim, head)
			}
			gotKeys, got := make([]uint64, n), make([]float32, n*dim)
			s.Copy(gotKeys, got)
			same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }
			if !slices.Equal(gotKeys, keys[first:first+n]) || !slices.EqualFunc(got, sums[first*dim:][:n*dim], same) {
				t.Fatalf("keys %x, sums %v; want %x, %v", gotKeys, got, keys[first:first+n], sums[first*dim:][:n*dim])
			}
			for _, wrong := range [][]byte{payload[:len(payload)-1], append(slices.Clip(payload), 0), payload[:wire.SumsLen(0, dim, width)-1]} {
				if _, err := wire.ParseStepSums(wrong); !errors.Is(err, wire.ErrLength) {
					t.Fatalf("%d bytes instead of %d: %v", len(wrong), len(payload), err)
				}
			}
		}
	})
}

// FuzzParseStepSums decodes arbitrary SUMS payloads, and encodes the result. Keys out of order
// cannot be encoded.
func FuzzParseStepSums(f *testing.F) {
	for _, c := range loadGolden(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil && c.Sums != nil {
			f.Add(p.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, err := wire.ParseStepSums(payload)
		if err != nil {
			return
		}
		keys, sums := make([]uint64, s.Count), make([]float32, s.Count*s.Dim)
		s.Copy(keys, sums)
		if keys[0] != s.Least || !slices.IsSorted(keys) {
			return
		}
		again := make([]byte, len(payload))
		copy(again, payload[:wire.HeaderLen])
		if wire.PutStepSums(again, s.SumsHead, keys, s.Dim, sums); !bytes.Equal(again, payload) {
			t.Fatalf("% x is written as % x", payload, again)
		}
	})
}

// A step of 16,384 rows of one float, as a server writes it once and each worker reads it.
func BenchmarkStepSums(b *testing.B) {
	const rows = 1 << 14
	keys, sums := make([]uint64, rows), make([]float32, rows)
	for i := range keys {
		keys[i], sums[i] = uint64(i)*61, float32(i)
	}
	width := wire.SumsWidth(keys, wire.MaxPayload, 1)
	each := wire.SumsCap(wire.MaxPayload, 1, width)
	var frames [][]byte
	for first := 0; first < rows; first += each {
		frames = append(frames, make([]byte, wire.SumsLen(min(each, rows-first), 1, width)))
	}
	write := func() {
		for i, payload := range frames {
			first := i * each
			head := wire.SumsHead{Rows: rows, First: uint32(first), Width: width}
			wire.PutStepSums(payload, head, keys[first:min(first+each, rows)], 1, sums[first:])
		}
	}
	write()
	b.Run("write", func(b *testing.B) {
		for range b.N {
			write()
		}
	})
	b.Run("read", func(b *testing.B) {
		for range b.N {
			for _, payload := range frames {
				s, err := wire.ParseStepSums(payload)
				if err != nil {
					b.Fatal(err)
				}
				s.Copy(keys[s.First:], sums[s.First:])
			}
		}
	})
}

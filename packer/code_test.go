// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// codedFrame is a cold frame whose values are decoded.
type codedFrame struct {
	server    int
	coded     bool
	numbering uint32
	keys      []uint64 // or row numbers
	values    []float32
}

// codedFrames fills all frames of the packer's batch, and returns the cold ones.
func codedFrames(t rapid.TB, p *Packer, c codec.Codec, limit int) (frames []codedFrame) {
	for kind := p.Next(); kind != 0; kind = p.Next() {
		f, n := codedFrame{server: p.To(), coded: p.isCoded()}, limit
		if kind == wire.TypeHot {
			n = wire.HotLen(p.stripes)
		}
		buffer := make([]byte, n)
		for i := range buffer {
			buffer[i] = 0xa5
		}
		payload, err := p.Fill(buffer)
		if err != nil {
			t.Fatal(err)
		}
		if kind == wire.TypeHot {
			continue
		}
		var rows wire.Rows
		if f.coded {
			var codes []byte
			if rows, codes, err = wire.ParseCoded(payload, kind); err != nil {
				t.Fatal(err)
			}
			f.values = make([]float32, rows.Count*rows.Dim)
			if err := c.Decode(f.values, codes); err != nil {
				t.Fatal(err)
			}
		} else if rows, err = wire.ParseRows(payload, kind); err != nil {
			t.Fatal(err)
		}
		f.numbering = rows.Numbering
		for i := range rows.Count {
			if kind == wire.TypeColdAt {
				f.keys = append(f.keys, uint64(rows.Number(i)))
			} else {
				f.keys = append(f.keys, rows.Key(i))
			}
			if !f.coded {
				row := make([]float32, rows.Dim)
				rows.Row(i, row)
				f.values = append(f.values, row...)
			}
		}
		frames = append(frames, f)
	}
	return frames
}

// checkFull fails if the first row of a coded frame would have had room in the one before.
func checkFull(t rapid.TB, frames []codedFrame, c codec.Codec, kind wire.Type, dim, limit int) {
	for i := 1; i < len(frames); i++ {
		a, b := frames[i-1], frames[i]
		if !a.coded || !b.coded || a.server != b.server {
			continue
		}
		n := len(a.keys) + 1
		codes := c.Append(nil, append(slices.Clone(a.values), b.values[:dim]...))
		if n*dim <= wire.MaxCoded && wire.CodedLen(kind, n, len(codes)) <= limit {
			t.Fatalf("frame %d of %d rows has room for another", i-1, len(a.keys))
		}
	}
}

// drawCodable draws gradients of many sizes, with runs of zeros.
func drawCodable(t *rapid.T, n int) []float32 {
	grads := make([]float32, n)
	seed := rapid.Uint64().Draw(t, "gradients")
	zeros := rapid.SampledFrom([]uint64{0, 50, 90, 100}).Draw(t, "percent of zeros")
	for i := range grads {
		seed = seed*6364136223846793005 + 1442695040888963407
		if x := seed >> 11; x%100 >= zeros {
			grads[i] = float32(math.Ldexp(float64(int32(x>>8)), -28-int(x>>40&31)))
		}
	}
	return grads
}

// TestCodedRows packs batches in each way, with several servers. Every value is what CodeCold makes
// of it, whatever the frame, except those of the hot set, and frames are full.
func TestCodedRows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 1, 2, 3, 7, 9, 16, 17, 64, 65, 100, 339}).Draw(t, "dimension")
		config := codec.Config{Bound: rapid.IntRange(1, 14).Draw(t, "bound"), Scale: rapid.IntRange(-4, 8).Draw(t, "scale")}
		c, err := codec.New(config)
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, 2000/dim+2).Draw(t, "rows")
		keys, hotKeys := make([]uint64, n), []uint64{1 << 40}
		for i := range keys {
			keys[i] = uint64(i) * 7919
			if i%4 == 1 {
				hotKeys = append(hotKeys, keys[i])
			}
		}
		hot, err := NewHotSet(dim, hotKeys, nil, Meta{})
		if err != nil {
			t.Fatal(err)
		}
		grads := drawCodable(t, n*dim)
		want := slices.Clone(grads)
		CodeCold(c, hot, keys, want)
		split := Split(rapid.IntRange(1, 3).Draw(t, "servers"))
		limit := max(wire.CodedLen(wire.TypeCold, 1, codec.MaxLen(dim)), rapid.IntRange(100, wire.MaxPayload).Draw(t, "limit"))
		const exp = -20
		numbers := rapid.SampledFrom([]Numbers{{}, Multiples(exp)}).Draw(t, "numbers")
		p, err := New(Config{HotSet: hot, Layout: Dense, Stripes: 10, Numbers: numbers, Split: split, Codec: config})
		if err != nil {
			t.Fatal(err)
		}
		way := rapid.SampledFrom([]string{"keys", "cold", "prepared", "numbers", "merged", "sum"}).Draw(t, "way")
		kind := wire.TypeCold
		switch way {
		case "keys":
			err = p.Begin(keys, grads)
		case "cold":
			err = p.BeginCold(keys, grads)
		case "sum":
			_, err = p.BeginSum(exp, []Part{{Keys: keys[:n/2], Grads: grads[:n/2*dim]}, {Keys: keys[n/2:], Grads: grads[n/2*dim:]}})
		default:
			halves := []*Prepared{}
			for _, part := range [][]uint64{keys[:n/2], keys[n/2:]} {
				b, err := p.Prepare(part)
				if err != nil {
					t.Fatal(err)
				}
				halves = append(halves, b)
			}
			if way != "merged" {
				whole, err := p.Prepare(keys)
				if err != nil {
					t.Fatal(err)
				}
				halves = []*Prepared{whole}
			}
			if way == "numbers" {
				rows := &RowNumbers{Numberings: []uint32{5, 6, 7}[:split]}
				for _, key := range halves[0].ColdRows().Keys {
					rows.Numbers = append(rows.Numbers, uint32(key))
				}
				halves[0].ColdRows().SetNumbers(rows)
				if numbers == (Numbers{}) || numbers.fit(grads) {
					kind = wire.TypeColdAt
				}
			}
			err = p.BeginPrepared(grads, halves...)
		}
		if errors.Is(err, ErrSum) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		frames := codedFrames(t, p, c, limit)
		checkFull(t, frames, c, kind, dim, limit)

		left := map[uint64]int{} // rows that must come, with their place
		for i, key := range keys {
			_, isHot := hot.Rank(key)
			if !isHot || way == "cold" || numbers != (Numbers{}) && !numbers.fit(grads[i*dim:][:dim]) {
				left[key] = i
			}
		}
		sent := p.Sent()
		for _, f := range frames {
			if f.coded {
				sent.CodedValues -= len(f.values)
			}
			sent.ColdRows -= len(f.keys)
			if kind == wire.TypeColdAt && f.numbering != uint32(5+f.server) {
				t.Fatalf("numbering %d for server %d", f.numbering, f.server)
			}
			for i, key := range f.keys {
				at, ok := left[key]
				_, isHot := hot.Rank(key)
				if delete(left, key); !ok || f.coded == isHot || f.server != split.Owner(hot, key) {
					t.Fatalf("row %d: to come %v, coded %v, hot %v, server %d", key, ok, f.coded, isHot, f.server)
				}
				for j := range dim {
					if w, g := want[at*dim+j], f.values[i*dim+j]; math.Float32bits(w) != math.Float32bits(g) {
						t.Fatalf("row %d, column %d: %x, want %x (gradient %x)", key, j, g, w, grads[at*dim+j])
					}
				}
			}
		}
		if len(left) > 0 || sent.ColdRows != 0 || sent.CodedValues != 0 {
			t.Fatalf("%d rows did not come; counted too much: %+v", len(left), sent)
		}
	})
}

// Packing what was decoded changes nothing: a row that is sent again has the same value.
func TestCodingTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := codec.New(codec.Config{Bound: rapid.IntRange(1, 14).Draw(t, "bound"), Scale: rapid.IntRange(-126, 126).Draw(t, "scale")})
		if err != nil {
			t.Fatal(err)
		}
		grads := drawCodable(t, rapid.IntRange(1, 300).Draw(t, "gradients"))
		CodeCold(c, nil, make([]uint64, len(grads)), grads)
		again := slices.Clone(grads)
		CodeCold(c, nil, []uint64{1}, again) // other groups
		for i := range grads {
			if math.Float32bits(grads[i]) != math.Float32bits(again[i]) {
				t.Fatalf("%x becomes %x", grads[i], again[i])
			}
		}
	})
}

// Zeros take nearly no room, but frames have a limit of values.
func TestCodedZeros(t *testing.T) {
	for _, dim := range []int{1, 64, 127} {
		p, err := New(Config{Dim: dim, Codec: codec.Config{Bound: 10}})
		if err != nil {
			t.Fatal(err)
		}
		n := 3 * wire.MaxCoded / dim
		if err := p.Begin(make([]uint64, n), make([]float32, n*dim)); err != nil {
			t.Fatal(err)
		}
		for _, f := range codedFrames(t, p, p.coder.Codec, wire.MaxPayload) {
			most := min(wire.MaxCoded/dim, (wire.MaxPayload-wire.CodedLen(wire.TypeCold, 0, 0))/8)
			if len(f.keys) > most || len(f.keys) < most*9/10 && p.Sent().ColdFrames < 3 {
				t.Errorf("dimension %d: %d rows in a frame, want up to %d", dim, len(f.keys), most)
			}
		}
		if sent := p.Sent(); sent.ColdRows != n || sent.CodedValues != n*dim || sent.CodedBytes >= n*dim/50+1000 {
			t.Errorf("dimension %d: %+v", dim, sent)
		}
	}
}

func TestCodecConfig(t *testing.T) {
	for _, c := range []struct {
		codec.Config
		dim  int
		want string
	}{
		{codec.Config{Bound: 15}, 1, "Bound: 15 is not in [1, 14]"},
		{codec.Config{Bound: 10, Scale: 127}, 1, "Scale: 127 is not in [-126, 126]"},
		{codec.Config{Scale: 3}, 1, "Bound: 0 is not in [1, 14]"},
		{codec.Config{Bound: 10, Paper: true}, 1, "leave Paper out"},
		{codec.Config{Bound: 10}, wire.MaxCoded + 1, "rows of 16385 gradients"},
	} {
		_, err := New(Config{Dim: c.dim, Codec: c.Config})
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.Config, err, c.want)
		}
	}
	p, err := New(Config{Dim: 10, Codec: codec.Config{Bound: 10}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Begin([]uint64{1}, make([]float32, 10)); err != nil {
		t.Fatal(err)
	}
	least := wire.CodedLen(wire.TypeCold, 1, codec.MaxLen(10))
	if _, err := p.Fill(make([]byte, least-1)); !errors.Is(err, errBuffer) || p.Next() != wire.TypeCold {
		t.Errorf("a payload of a byte too few: %v, next %v", err, p.Next())
	}
	if _, err := p.Fill(make([]byte, least)); err != nil || p.Next() != 0 {
		t.Errorf("the shortest payload: %v, next %v", err, p.Next())
	}
}

func TestCodingDoesNotAllocate(t *testing.T) {
	for _, dim := range []int{1, 9} {
		p, err := New(Config{HotSet: benchHotSet(t, dim), Layout: Dense, Stripes: 10, Codec: codec.Config{Bound: 10}})
		if err != nil {
			t.Fatal(err)
		}
		b := benchBatches(1, 4000, dim, false)[0]
		frames := &ring{}
		if n := testing.AllocsPerRun(20, func() {
			if _, err := frames.fill(p, b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("dimension %d: %v allocations a batch", dim, n)
		}
		if p.Sent().CodedValues == 0 {
			t.Error("nothing was coded")
		}
	}
}

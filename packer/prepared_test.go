// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// frame is a frame that Fill has written.
type frame struct {
	kind wire.Type
	body []byte
}

// rest fills frames with the remaining batch, cold frames up to a length.
func rest(tb rapid.TB, p *Packer, cold int) (frames []frame) {
	for kind := p.Next(); kind != 0; kind = p.Next() {
		buffer := bytes.Repeat([]byte{0xa5}, wire.MaxPayload)
		if kind == wire.TypeCold {
			buffer = buffer[:cold]
		}
		payload, err := p.Fill(buffer)
		if err != nil {
			tb.Fatal(err)
		}
		frames = append(frames, frame{kind, payload})
	}
	return frames
}

// stripesOf returns the stripes of hot frames, sorted, and the other frames.
func stripesOf(frames []frame) (parts []frame) {
	var cold []frame
	for _, f := range frames {
		if f.kind != wire.TypeHot {
			cold = append(cold, f)
			continue
		}
		for body := range slices.Chunk(f.body[wire.HeaderLen:], wire.StripeLen) {
			parts = append(parts, frame{f.kind, body})
		}
	}
	slices.SortFunc(parts, func(a, b frame) int { return bytes.Compare(a.body, b.body) })
	return append(parts, cold...)
}

// TestPreparedMakesTheSameFrames compares prepared batches, one or several together, with the same
// keys unprepared: the frames byte by byte, and the errors.
func TestPreparedMakesTheSameFrames(t *testing.T) { rapid.Check(t, checkPrepared) }

func checkPrepared(t *rapid.T) {
	dim := rapid.SampledFrom([]int{1, 1, 2, 7, 23}).Draw(t, "dim")
	hot, err := NewHotSet(dim, keysGen(300).Draw(t, "hot"), nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	paged := rapid.IntRange(0, 3).Draw(t, "pages") == 0
	if paged {
		hot = pagedHotSet(t, dim)
	}
	c := Config{
		HotSet: hot, Layout: rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout"),
		Stripes: rapid.IntRange(1, wire.MaxStripes).Draw(t, "stripes"),
		Numbers: rapid.SampledFrom([]Numbers{{}, Integers(-10), FloatsBelow(3)}).Draw(t, "numbers"),
	}
	if rapid.IntRange(0, 9).Draw(t, "no hot set") == 0 {
		c.HotSet, c.Dim = nil, dim
	}
	plain, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	key := rapid.Uint64Range(0, 300)
	if hot.Len() > 0 { // half of the keys hot, many of them repeated
		key = rapid.OneOf(key, rapid.Map(rapid.IntRange(0, hot.Len()-1), func(r int) uint64 { return hot.Key(uint32(r)) }))
	}
	if paged {
		key = pagedKey(hot)
	}
	cold := rapid.IntRange(wire.ColdLen(1, dim), wire.MaxPayload).Draw(t, "cold")
	var prepared []*Prepared
	var keys []uint64
	for _, part := range rapid.SliceOfN(rapid.SliceOfN(key, 0, 100), 1, 4).Draw(t, "batches") {
		b, err := p.Prepare(part)
		if err != nil {
			t.Fatal(err)
		}
		prepared, keys = append(prepared, b), append(keys, part...)
	}
	for range 2 { // with other gradients the second time
		n := len(keys) * dim
		if rapid.IntRange(0, 9).Draw(t, "wrong length") == 0 {
			n = rapid.IntRange(0, n+2).Draw(t, "length")
		}
		grads := make([]float32, n)
		for i := range grads {
			grads[i] = float32(rapid.IntRange(-1<<12, 1<<12).Draw(t, "gradient")) / (1 << 10) // below 2^3 except two
		}
		if n > 0 && rapid.IntRange(0, 4).Draw(t, "bad") == 0 {
			for range 2 {
				grads[rapid.IntRange(0, n-1).Draw(t, "at")] = rapid.SampledFrom([]float32{
					float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1 << 30, -8,
				}).Draw(t, "value")
			}
		}
		want, got := plain.Begin(keys, grads), p.BeginPrepared(grads, prepared...)
		if (want == nil) != (got == nil) || want != nil && want.Error() != got.Error() {
			t.Fatalf("the error is %v, unprepared %v", got, want)
		}
		wantFrames, gotFrames := rest(t, plain, cold), rest(t, p, cold)
		if paged && len(prepared) > 1 { // the stripes may be in another order
			wantFrames, gotFrames = stripesOf(wantFrames), stripesOf(gotFrames)
		}
		if !slices.EqualFunc(gotFrames, wantFrames, func(a, b frame) bool { return a.kind == b.kind && bytes.Equal(a.body, b.body) }) {
			t.Fatalf("the frames are\n%v\nunprepared\n%v", gotFrames, wantFrames)
		}
		if diff := cmp.Diff(plain.Sent(), p.Sent()); diff != "" {
			t.Fatalf("Sent (-unprepared +prepared)\n%s", diff)
		}
	}
}

// TestPreparedErrorsAreTyped looks at what errors.As finds.
func TestPreparedErrorsAreTyped(t *testing.T) {
	hot := mustHotSet(t, 1, make50()...)
	p, err := New(Config{HotSet: hot, Layout: Dense, Numbers: FloatsBelow(3)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Prepare([]uint64{7, 900, 8})
	if err != nil {
		t.Fatal(err)
	}
	inf := float32(math.Inf(1))
	var notFinite *NotFiniteError
	if err := p.BeginPrepared([]float32{1, inf, inf}, b); !errors.As(err, &notFinite) || *notFinite != (NotFiniteError{1, 900, inf}) {
		t.Errorf("got %v", err)
	}
	var outside *RangeError
	for at, grads := range map[int][]float32{0: {8, 9, 8}, 2: {1, 9, -8}} {
		key := []uint64{7, 900, 8}[at]
		if err := p.BeginPrepared(grads, b); !errors.As(err, &outside) || *outside != (RangeError{at, key, grads[at]}) {
			t.Errorf("got %v, want position %d", err, at)
		}
	}
	for _, n := range []int{0, 2, 4} {
		if err := p.BeginPrepared(make([]float32, n), b); !errors.Is(err, ErrShape) {
			t.Errorf("%d gradients: %v", n, err)
		}
	}
	if kind := p.Next(); kind != 0 {
		t.Errorf("of refused batches comes a %v frame", kind)
	}
}

// TestPreparedForAnotherPacker passes batches to packers with other places for them, and to one
// with the same.
func TestPreparedForAnotherPacker(t *testing.T) {
	hot := mustHotSet(t, 2, make50()...)
	config := Config{HotSet: hot, Layout: Dense, Stripes: 2}
	p, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	b, err := p.Prepare([]uint64{3, 90})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Config{
		"same keys in another hot set": {HotSet: mustHotSet(t, 2, make50()...), Layout: Dense},
		"no hot set":                   {Dim: 2, Layout: Dense},
		"another layout":               {HotSet: hot},
		"another dimension":            {Dim: 3},
	} {
		other, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Begin([]uint64{3}, make([]float32, other.dim)); err != nil {
			t.Fatal(err)
		}
		if err := other.BeginPrepared(make([]float32, 4), b); !errors.Is(err, ErrConfig) || other.Next() != 0 {
			t.Errorf("%s: %v, then a %v frame", name, err, other.Next())
		}
	}
	without, err := New(Config{Dim: 2})
	if err != nil {
		t.Fatal(err)
	}
	if b, err = without.Prepare([]uint64{3}); err != nil {
		t.Fatal(err)
	}
	wider, err := New(Config{Dim: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := wider.BeginPrepared(make([]float32, 3), b); !errors.Is(err, ErrConfig) {
		t.Errorf("rows of another dimension: %v", err)
	}
	config.Stripes, config.Numbers = 5, Integers(-4)
	like, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if b, err = p.Prepare([]uint64{3, 90}); err != nil {
		t.Fatal(err)
	}
	if err := like.BeginPrepared(make([]float32, 4), b); err != nil {
		t.Errorf("frames of other sizes and numbers: %v", err)
	}
}

// TestPrepareRefusesTooManyGradients asks for 2^32 of them.
func TestPrepareRefusesTooManyGradients(t *testing.T) {
	p, err := New(Config{Dim: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Prepare(make([]uint64, 1<<16)); !errors.Is(err, ErrShape) {
		t.Errorf("got %v", err)
	}
}

// TestPrepareDisturbsNothing prepares in several goroutines while a batch is packed.
func TestPrepareDisturbsNothing(t *testing.T) {
	p, err := New(Config{HotSet: benchHotSet(t, 1), Layout: Dense})
	if err != nil {
		t.Fatal(err)
	}
	batches := benchBatches(2, 500, 1, false)
	if err := p.Begin(batches[0].keys, batches[0].grads); err != nil {
		t.Fatal(err)
	}
	want := rest(t, p, wire.MaxPayload)
	if err := p.Begin(batches[0].keys, batches[0].grads); err != nil {
		t.Fatal(err)
	}
	var preparing sync.WaitGroup
	for range 3 {
		preparing.Go(func() {
			for range 20 {
				if _, err := p.Prepare(batches[1].keys); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := rest(t, p, wire.MaxPayload)
	preparing.Wait()
	if !slices.EqualFunc(got, want, func(a, b frame) bool { return a.kind == b.kind && bytes.Equal(a.body, b.body) }) {
		t.Error("a batch has other frames while others are prepared")
	}
}

// Prepared batches must not allocate, alone or, once the scratch memory has grown, together.
func TestPreparedDoesNotAllocate(t *testing.T) {
	for _, layout := range []Layout{LaneAligned, Dense} {
		for _, dim := range []int{1, 8} {
			p, err := New(Config{HotSet: benchHotSet(t, dim), Layout: layout, Stripes: wire.MaxStripes})
			if err != nil {
				t.Fatal(err)
			}
			b := benchBatches(1, 512, dim, false)[0]
			prepared, err := p.Prepare(b.keys)
			if err != nil {
				t.Fatal(err)
			}
			buffer, twice := make([]byte, wire.MaxPayload), append(slices.Clone(b.grads), b.grads...)
			fill := func(err error) {
				for err == nil && p.Next() != 0 {
					_, err = p.Fill(buffer)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if n := testing.AllocsPerRun(20, func() {
				fill(p.BeginPrepared(b.grads, prepared))
				fill(p.BeginPrepared(twice, prepared, prepared))
			}); n != 0 {
				t.Errorf("%v, dimension %d: %v allocations", layout, dim, n)
			}
		}
	}
}

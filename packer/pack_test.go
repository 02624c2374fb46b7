// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// recorder keeps the frames of a batch and checks the contract of Fill: it returns the payload with
// its header unchanged. It offers the same dirty buffer repeatedly.
type recorder struct {
	tb     rapid.TB
	hotLen int // length of payloads for hot frames
	cold   int
	limit  int // of frames; 0 is none

	buffer  [wire.MaxPayload]byte
	hotSent [][]byte
	colds   [][]byte
}

// pack fills frames with a batch, up to the limit.
func (r *recorder) pack(p *Packer, keys []uint64, grads []float32) (Sent, error) {
	if err := p.Begin(keys, grads); err != nil {
		if next, sent := p.Next(), p.Sent(); next != 0 || sent != (Sent{}) {
			r.tb.Fatalf("of a refused batch comes a %v frame after %+v", next, sent)
		}
		return p.Sent(), err
	}
	for r.limit == 0 || len(r.hotSent)+len(r.colds) < r.limit {
		n, to := r.hotLen, &r.hotSent
		kind := p.Next()
		switch kind {
		case 0:
			if payload, err := p.Fill(r.buffer[:]); payload != nil || err != nil {
				r.tb.Fatalf("after the last frame: %d bytes, %v", len(payload), err)
			}
			return p.Sent(), nil
		case wire.TypeCold:
			n, to = r.cold, &r.colds
		}
		for i := range r.buffer {
			r.buffer[i] = 0xa5
		}
		before := p.Sent()
		payload, err := p.Fill(r.buffer[:n])
		if err != nil {
			if next, sent := p.Next(), p.Sent(); next != kind || sent != before {
				r.tb.Fatalf("a failed Fill of a %v frame changes the next to %v and %+v to %+v", kind, next, before, sent)
			}
			return p.Sent(), err
		}
		if &payload[0] != &r.buffer[0] {
			r.tb.Fatal("another buffer came back")
		}
		for i, b := range payload[:wire.HeaderLen] {
			if b != 0xa5 {
				r.tb.Fatalf("header byte %d was written", i)
			}
		}
		*to = append(*to, append([]byte(nil), payload...))
	}
	return p.Sent(), nil
}

// coldFrame is a cold frame of a batch.
type coldFrame struct {
	wire.Rows

	kind   wire.Type
	server int
}

// coldFrames fills all frames of the packer's batch. It keeps the hot ones, and yields the others.
func (r *recorder) coldFrames(p *Packer) iter.Seq[coldFrame] {
	return func(yield func(coldFrame) bool) {
		for kind := p.Next(); kind != 0; kind = p.Next() {
			server := p.To()
			payload, err := p.Fill(make([]byte, wire.MaxPayload))
			if err != nil {
				r.tb.Fatal(err)
			}
			if kind == wire.TypeHot {
				r.hotSent = append(r.hotSent, payload)
				continue
			}
			rows, err := wire.ParseRows(payload, kind)
			if err != nil || rows.Dim != p.dim {
				r.tb.Fatalf("%v frame of dimension %d: %v", kind, rows.Dim, err)
			}
			if !yield(coldFrame{rows, kind, server}) {
				return
			}
		}
	}
}

// placed is a pair as the aggregator sees it.
type placed struct {
	Stripe, Lane int
	Rank         uint32
	Bits         uint32
}

// hotPairs decodes the hot frames in order and checks every stripe: only lanes of the mask are used
// and the others are zero.
func (r *recorder) hotPairs(layout Layout, stripes int) []placed {
	var pairs []placed
	for f, payload := range r.hotSent {
		n, err := wire.StripeCount(payload)
		if err != nil || n > stripes || n < stripes && f < len(r.hotSent)-1 {
			r.tb.Fatalf("hot frame %d of %d has %d stripes of at most %d, %v", f, len(r.hotSent), n, stripes, err)
		}
		for k := range n {
			s := wire.StripeAt(payload, k)
			if s.Mask() == 0 {
				r.tb.Fatalf("frame %d stripe %d has no pairs", f, k)
			}
			for lane := range wire.Lanes {
				if s.Mask()>>lane&1 == 0 {
					if s.Bits(lane) != 0 || s.Slot(lane) != 0 {
						r.tb.Fatalf("frame %d stripe %d: unused lane %d is not zero", f, k, lane)
					}
					continue
				}
				pairs = append(pairs, placed{f*stripes + k, lane, layout.Rank(s, lane), s.Bits(lane)})
			}
		}
	}
	return pairs
}

type coldRow struct {
	Key  uint64
	Bits string
}

func (r *recorder) coldRows(dim int) []coldRow {
	var rows []coldRow
	values := make([]float32, dim)
	for i, payload := range r.colds {
		body, err := wire.ParseRows(payload, wire.TypeCold)
		if err != nil || body.Dim != dim || body.Count < wire.ColdCap(r.cold, dim) && i < len(r.colds)-1 {
			r.tb.Fatalf("cold frame %d of %d: %d rows of dimension %d, %v", i, len(r.colds), body.Count, body.Dim, err)
		}
		for k := range body.Count {
			body.Row(k, values)
			rows = append(rows, coldRow{body.Key(k), bitsOf(values)})
		}
	}
	return rows
}

func bitsOf(values []float32) string {
	s := ""
	for _, v := range values {
		s += fmt.Sprintf("%08x ", math.Float32bits(v))
	}
	return s
}

// expected computes the place of every pair in the simplest way.
func expected(hot *HotSet, layout Layout, keys []uint64, grads []float32) (pairs []placed, rows []coldRow) {
	dim := hot.Dim()
	perLane := map[int]int{}
	for i, key := range keys {
		row := grads[i*dim : (i+1)*dim]
		rank, ok := hot.Rank(key)
		if !ok {
			rows = append(rows, coldRow{key, bitsOf(row)})
			continue
		}
		for j, v := range row {
			p := placed{Rank: rank*uint32(dim) + uint32(j), Bits: math.Float32bits(v)}
			if layout == Dense {
				p.Stripe, p.Lane = len(pairs)/wire.Lanes, len(pairs)%wire.Lanes
			} else {
				p.Lane = int(p.Rank % wire.Lanes)
				p.Stripe = perLane[p.Lane]
				perLane[p.Lane]++
			}
			pairs = append(pairs, p)
		}
	}
	return pairs, rows
}

func sortPlaced(pairs []placed) map[[2]int]placed {
	m := map[[2]int]placed{}
	for _, p := range pairs {
		m[[2]int{p.Stripe, p.Lane}] = p
	}
	return m
}

// Every pair of a batch arrives exactly once, bit for bit, in its lane and stripe, for every shape
// of batch. The packer is used several times, so that remains of a batch in its scratch memory
// would be noticed.
func TestPack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 1, 2, 7, 22, 23, 50}).Draw(t, "dim")
		hot, err := NewHotSet(dim, keysGen(PageSlots/dim/100).Draw(t, "hot"), nil, Meta{})
		if err != nil {
			t.Fatal(err)
		}
		layout := rapid.SampledFrom([]Layout{LaneAligned, Dense}).Draw(t, "layout")
		stripes := rapid.IntRange(1, wire.MaxStripes).Draw(t, "stripes")
		p, err := New(Config{HotSet: hot, Layout: layout, Stripes: stripes})
		if err != nil {
			t.Fatal(err)
		}
		key := rapid.Uint64Range(0, 300)
		if hot.Len() > 0 { // half of the keys hot, many of them repeated
			key = rapid.OneOf(key, rapid.Map(rapid.IntRange(0, hot.Len()-1), func(r int) uint64 { return hot.Key(uint32(r)) }))
		}
		for range 3 {
			keys := rapid.SliceOfN(key, 0, 200).Draw(t, "keys")
			grads := make([]float32, len(keys)*dim)
			for i := range grads { // distinct, and of every kind of number
				grads[i] = math.Float32frombits(uint32(i)*0x9e3779b1%0x7f800000 | uint32(i)<<31)
			}
			r := &recorder{tb: t, hotLen: wire.HotLen(stripes), cold: rapid.IntRange(wire.ColdLen(1, dim), wire.MaxPayload).Draw(t, "cold")}
			sent, err := r.pack(p, keys, grads)
			if err != nil {
				t.Fatal(err)
			}
			wantPairs, wantRows := expected(hot, layout, keys, grads)
			gotPairs, gotRows := r.hotPairs(layout, stripes), r.coldRows(dim)
			if len(gotPairs) != len(wantPairs) {
				t.Fatalf("%d hot pairs, want %d", len(gotPairs), len(wantPairs))
			}
			if diff := cmp.Diff(sortPlaced(wantPairs), sortPlaced(gotPairs)); diff != "" {
				t.Fatalf("hot pairs (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(wantRows, gotRows); diff != "" {
				t.Fatalf("cold rows (-want +got)\n%s", diff)
			}
			stripeCount := 0
			for _, q := range wantPairs {
				stripeCount = max(stripeCount, q.Stripe+1)
			}
			want := Sent{HotPairs: len(wantPairs), HotStripes: stripeCount, HotFrames: len(r.hotSent), ColdRows: len(wantRows), ColdFrames: len(r.colds)}
			if sent != want {
				t.Fatalf("Sent is %+v, want %+v", sent, want)
			}
		}
	})
}

// If a batch is abandoned for another one, at any point, Sent counts exactly the filled frames, and
// nothing of the rest follows later.
func TestGivenUpBatch(t *testing.T) {
	for _, layout := range []Layout{LaneAligned, Dense} {
		hot := mustHotSet(t, 2, make50()...)
		p, err := New(Config{HotSet: hot, Layout: layout, Stripes: 2})
		if err != nil {
			t.Fatal(err)
		}
		keys := make([]uint64, 100) // 50 hot rows, 50 cold ones
		for i := range keys {
			keys[i] = uint64(i)
		}
		grads := make([]float32, 200)
		newRecorder := func(limit int) *recorder {
			return &recorder{tb: t, hotLen: wire.HotLen(2), cold: wire.ColdLen(20, 2), limit: limit}
		}
		whole := newRecorder(0)
		if _, err := whole.pack(p, keys, grads); err != nil {
			t.Fatal(err)
		}
		if len(whole.hotSent) < 2 || len(whole.colds) != 3 {
			t.Fatalf("%d hot and %d cold frames test too little", len(whole.hotSent), len(whole.colds))
		}
		for limit := 1; limit <= len(whole.hotSent)+len(whole.colds); limit++ {
			r := newRecorder(limit)
			sent, err := r.pack(p, keys, grads)
			if err != nil {
				t.Fatal(err)
			}
			if sent.HotPairs != len(r.hotPairs(layout, 2)) || sent.HotFrames != len(r.hotSent) ||
				sent.ColdRows != min(50, 20*len(r.colds)) || sent.ColdFrames != len(r.colds) {
				t.Errorf("after %d frames: %+v, there are %d hot and %d cold frames", limit, sent, len(r.hotSent), len(r.colds))
			}
			other := newRecorder(0)
			sent, err = other.pack(p, keys[40:60], grads[80:120])
			pairs, rows := expected(hot, layout, keys[40:60], grads[80:120])
			if err != nil || sent.HotPairs != len(pairs) || sent.ColdRows != len(rows) {
				t.Fatalf("the batch after %d frames of another: %+v, %v; want %d pairs and %d rows", limit, sent, err, len(pairs), len(rows))
			}
			if diff := cmp.Diff(sortPlaced(pairs), sortPlaced(other.hotPairs(layout, 2))); diff != "" {
				t.Fatalf("hot pairs after %d frames of another batch (-want +got)\n%s", limit, diff)
			}
			if diff := cmp.Diff(rows, other.coldRows(2)); diff != "" {
				t.Fatalf("cold rows after %d frames of another batch (-want +got)\n%s", limit, diff)
			}
		}
	}
}

func TestPackRefusesBadBatches(t *testing.T) {
	hot := mustHotSet(t, 2, make50()...)
	p, err := New(Config{HotSet: hot})
	if err != nil {
		t.Fatal(err)
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for name, c := range map[string]struct {
		keys  []uint64
		grads []float32
		index int // of a *NotFiniteError, or -1 for ErrShape
	}{
		"too few gradients":  {[]uint64{1, 2}, []float32{1, 2, 3}, -1},
		"too many gradients": {[]uint64{1}, []float32{1, 2, 3}, -1},
		"gradients only":     {nil, []float32{1}, -1},
		"NaN first":          {[]uint64{1, 900}, []float32{nan, 1, inf, 1}, 0},
		"infinity last":      {[]uint64{1, 900}, []float32{math.MaxFloat32, 1, -math.MaxFloat32, inf}, 3},
		"NaN in a hot row":   {[]uint64{900, 1}, []float32{1, 1, 1, math.Float32frombits(0xff800001)}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{tb: t, hotLen: wire.HotLen(1), cold: wire.MaxPayload}
			sent, err := r.pack(p, c.keys, c.grads)
			if c.index < 0 {
				if !errors.Is(err, ErrShape) {
					t.Errorf("got %v", err)
				}
			} else {
				var bad *NotFiniteError
				if !errors.As(err, &bad) || bad.Index != c.index || bad.Key != c.keys[c.index/2] ||
					math.Float32bits(bad.Value) != math.Float32bits(c.grads[c.index]) {
					t.Errorf("got %v, want index %d", err, c.index)
				}
			}
			if frames := len(r.hotSent) + len(r.colds); sent != (Sent{}) || frames != 0 {
				t.Errorf("a refused batch was touched: %+v, %d frames", sent, frames)
			}
		})
	}
}

func TestPackWithoutHotSet(t *testing.T) {
	p, err := New(Config{Dim: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{50, 7} {
		r := &recorder{tb: t, hotLen: wire.HotLen(1), cold: wire.ColdLen(4, 3)}
		sent, err := r.pack(p, make50()[:n], make([]float32, 3*n))
		if want := (Sent{ColdRows: n, ColdFrames: (n + 3) / 4}); err != nil || sent != want {
			t.Errorf("got %+v, %v; want %+v", sent, err, want)
		}
	}
}

func TestPackRefusesShortBuffers(t *testing.T) {
	p, err := New(Config{HotSet: mustHotSet(t, 4, 1), Stripes: 3})
	if err != nil {
		t.Fatal(err)
	}
	const short = " frame 0 of the batch: packer: payload buffer too short: "
	hot, cold := wire.HotLen(3)-1, wire.ColdLen(1, 4)-1
	for want, r := range map[string]*recorder{
		fmt.Sprintf("packer: hot%s%d bytes for 3 stripes", short, hot):                      {tb: t, hotLen: hot, cold: wire.MaxPayload},
		fmt.Sprintf("packer: cold%s%d bytes cannot hold a row of dimension 4", short, cold): {tb: t, hotLen: wire.HotLen(3), cold: cold},
	} {
		_, err := r.pack(p, []uint64{1, 2}, make([]float32, 8))
		if !errors.Is(err, errBuffer) || err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestNewErrors(t *testing.T) {
	const dim = 1 << 15
	rows := make([]uint64, MaxSlots/dim+1)
	for i := range rows {
		rows[i] = uint64(i)
	}
	for name, c := range map[string]Config{
		"no dimension":        {},
		"negative dimension":  {Dim: -1},
		"dimensions disagree": {HotSet: mustHotSet(t, 2, 1), Dim: 3},
		"too many slots":      {HotSet: mustHotSet(t, dim, rows...)},
		"unknown layout":      {Dim: 1, Layout: 2},
		"too many stripes":    {Dim: 1, Stripes: wire.MaxStripes + 1},
		"negative stripes":    {Dim: 1, Stripes: -1},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Config{HotSet: mustHotSet(t, dim, rows[1:]...), Stripes: wire.MaxStripes}); err != nil {
		t.Errorf("the largest hot set: %v", err)
	}
}

func TestUnfilled(t *testing.T) {
	for want, s := range map[float64]Sent{
		0:    {ColdRows: 7, ColdFrames: 1},
		0.5:  {HotPairs: 11, HotStripes: 1, HotFrames: 1},
		0.75: {HotPairs: 22, HotStripes: 4, HotFrames: 2},
	} {
		if got := s.Unfilled(); got != want {
			t.Errorf("%+v: %v, want %v", s, got, want)
		}
	}
}

// The hot path must not allocate once its scratch memory has grown.
func TestPackDoesNotAllocate(t *testing.T) {
	for _, layout := range []Layout{LaneAligned, Dense} {
		for _, dim := range []int{1, 8} {
			p, err := New(Config{HotSet: benchHotSet(t, dim), Layout: layout, Stripes: wire.DefaultStripes})
			if err != nil {
				t.Fatal(err)
			}
			b := benchBatches(1, 512, dim, false)[0]
			frames := &ring{}
			if n := testing.AllocsPerRun(20, func() {
				if _, err := frames.fill(p, b); err != nil {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("%v, dimension %d: %v allocations a batch", layout, dim, n)
			}
		}
	}
}

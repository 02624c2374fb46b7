// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

func drawHeader(t *rapid.T) wire.Header {
	return wire.Header{
		Type:   wire.Type(rapid.Uint8Range(0, 15).Draw(t, "type")),
		Flags:  wire.Flags(rapid.Uint8().Draw(t, "flags")),
		Job:    rapid.Uint16().Draw(t, "job"),
		Sender: rapid.Uint16().Draw(t, "sender"),
		Epoch:  rapid.Uint16().Draw(t, "epoch"),
		Seq:    rapid.Uint32().Draw(t, "seq"),
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawHeader(t)
		b := make([]byte, wire.HeaderLen)
		want.Put(b)
		got, err := wire.ParseHeader(b)
		if err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
		b[0] = rapid.Uint8Range(0, 15).Filter(func(v uint8) bool { return v != wire.Version }).Draw(t, "version")<<4 | b[0]&15
		if got, err = wire.ParseHeader(b); !errors.Is(err, wire.ErrVersion) || got != want {
			t.Fatalf("another version: %+v, %v; want the fields and ErrVersion", got, err)
		}
	})
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		wire.TypeHot.String():                       "HOT",
		wire.TypeCold.String():                      "COLD",
		wire.TypePull.String():                      "PULL",
		wire.TypeRows.String():                      "ROWS",
		wire.TypeAck.String():                       "ACK",
		wire.TypeError.String():                     "ERROR",
		wire.TypeScale.String():                     "SCALE",
		wire.Type(0).String():                       "Type(0)",
		wire.Type(15).String():                      "Type(15)",
		wire.Type(16).String():                      "Type(16)",
		(wire.FlagAll | wire.FlagScale).String():    "ALL|SCALE",
		wire.TypeFind.String():                      "FIND",
		wire.TypeFound.String():                     "FOUND",
		wire.TypeColdAt.String():                    "COLD_AT",
		wire.TypeStep.String():                      "STEP",
		wire.TypeSums.String():                      "SUMS",
		wire.TypeBlock.String():                     "BLOCK",
		wire.TypeTaken.String():                     "TAKEN",
		wire.Type(15).String():                      "Type(15)",
		wire.Type(200).String():                     "Type(200)",
		(wire.FlagRetx | wire.FlagSum).String():     "RETX|SUM",
		(wire.FlagQuiet | wire.FlagCover).String():  "QUIET|COVER",
		wire.Flags(0).String():                      "",
		wire.CodeWrongEpoch.String():                "wrong epoch",
		wire.Code(999).String():                     "error code 999",
		(wire.FlagWantSum | wire.FlagRetx).String(): "RETX|WANT_SUM",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestStripeLayout writes a stripe with the accessors and reads it at the offsets of the layout.
func TestStripeLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s wire.Stripe
		mask, page := rapid.Uint32().Draw(t, "mask"), rapid.IntRange(0, wire.MaxPages-1).Draw(t, "page")
		s.SetPage(page, mask)
		mask &= wire.LaneMask
		var values [wire.Lanes]uint32
		var slots [wire.Lanes]uint16
		for _, j := range rapid.Permutation(lanes()).Draw(t, "order") {
			values[j] = rapid.Uint32().Draw(t, "value")
			slots[j] = rapid.Uint16().Draw(t, "slot")
			s.SetValue(j, math.Float32frombits(values[j]))
			s.SetSlot(j, slots[j])
		}
		if len(s) != 136 || binary.BigEndian.Uint32(s[:]) != uint32(page)<<22|mask || s.Mask() != mask || s.Page() != page {
			t.Fatalf("page %d, mask %#x in % x", page, mask, s[:4])
		}
		for j := range wire.Lanes {
			if v := binary.BigEndian.Uint32(s[4+4*j:]); v != values[j] || s.Bits(j) != v || math.Float32bits(s.Value(j)) != v {
				t.Fatalf("lane %d: value %#x, want %#x", j, v, values[j])
			}
			if v := binary.BigEndian.Uint16(s[92+2*j:]); v != slots[j] || s.Slot(j) != v {
				t.Fatalf("lane %d: slot %d, want %d", j, v, slots[j])
			}
			if rank, ok := s.Rank(j, true); rank != page*65536+int(slots[j]) || !ok {
				t.Fatalf("lane %d: dense rank %d, %v", j, rank, ok)
			}
			within := int(slots[j])*22 + j
			if rank, ok := s.Rank(j, false); ok != (within < 65536) || ok && rank != page*65536+within {
				t.Fatalf("lane %d: lane-aligned rank %d, %v", j, rank, ok)
			}
		}
		if s.SetMask(mask); s.Page() != 0 || s.Mask() != mask {
			t.Fatalf("page %d, mask %#x", s.Page(), s.Mask())
		}
		s.Clear()
		if s != (wire.Stripe{}) {
			t.Fatal("a cleared stripe is not zero")
		}
	})
}

// TestGathering compares gathering from lists of values and keys with setting one by one, for every
// length around a run of the loops.
func TestGathering(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim := rapid.SampledFrom([]int{1, 1, 2, 5}).Draw(t, "dim")
		keys := rapid.SliceOfN(rapid.Uint64(), 1, 50).Draw(t, "keys")
		values := make([]float32, len(keys)*dim)
		for i := range values {
			values[i] = math.Float32frombits(rapid.Uint32().Draw(t, "value"))
		}
		position := rapid.Uint32Range(0, uint32(len(keys)-1))
		at := rapid.SliceOfN(position, 1, 40).Draw(t, "at")
		n := len(at)
		want, got := make([]byte, wire.ColdLen(n, dim)), make([]byte, wire.ColdLen(n, dim))
		w, g := wire.PutRows(want, wire.TypeCold, n, dim), wire.PutRows(got, wire.TypeCold, n, dim)
		for i, from := range at {
			w.SetKey(i, keys[from])
			w.SetRow(i, values[int(from)*dim:])
		}
		g.GatherKeys(keys, at)
		g.GatherRows(values, at)
		if !bytes.Equal(got, want) {
			t.Fatalf("rows are % x, want % x", got, want)
		}
		var one, all wire.Stripe
		var from [wire.Lanes]uint32
		var slots [wire.Lanes]uint16
		for j := range from {
			from[j], slots[j] = position.Draw(t, "position"), rapid.Uint16().Draw(t, "slot")
			one.SetValue(j, values[from[j]])
			one.SetSlot(j, slots[j])
		}
		all.SetSlots(&slots)
		all.GatherValues(values, &from)
		if one != all {
			t.Fatalf("a stripe is % x, want % x", all, one)
		}
	})
}

func lanes() []int {
	l := make([]int, wire.Lanes)
	for j := range l {
		l[j] = j
	}
	return l
}

func TestStripesAreViews(t *testing.T) {
	payload := make([]byte, wire.HotLen(wire.MaxStripes))
	for i := range wire.MaxStripes {
		wire.StripeAt(payload, i).SetMask(uint32(i + 1))
		if got := binary.BigEndian.Uint32(payload[12+136*i:]); got != uint32(i+1) {
			t.Errorf("stripe %d begins with %d", i, got)
		}
	}
	for n := range len(payload) + 200 {
		stripes, err := wire.StripeCount(make([]byte, n))
		body := n - 12
		if valid := body > 0 && body%136 == 0 && body/136 <= 25; (err == nil) != valid || valid && stripes != body/136 {
			t.Errorf("%d bytes: %d stripes, %v", n, stripes, err)
		}
	}
}

var typesOfRows = []wire.Type{wire.TypeCold, wire.TypePull, wire.TypeRows, wire.TypeFind, wire.TypeFound, wire.TypeColdAt}

func lengthOfRows(kind wire.Type, count, dim int) int {
	return map[wire.Type]int{
		wire.TypeCold: wire.ColdLen(count, dim), wire.TypePull: wire.PullLen(count), wire.TypeRows: wire.RowsLen(count, dim),
		wire.TypeFind: wire.PullLen(count), wire.TypeFound: wire.FoundLen(count), wire.TypeColdAt: wire.ColdAtLen(count, dim),
	}[kind]
}

func TestRowsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(typesOfRows).Draw(t, "type")
		count := rapid.IntRange(1, 30).Draw(t, "count")
		dim := rapid.IntRange(1, 20).Draw(t, "dim")
		n := lengthOfRows(kind, count, dim)
		payload := make([]byte, n)
		var numbering uint32
		var w wire.Rows
		named, numbered, valued := kind.Body()
		if numbered {
			numbering = rapid.Uint32().Draw(t, "numbering")
			w = wire.PutNumbered(payload, kind, count, dim, numbering)
		} else {
			w = wire.PutRows(payload, kind, count, dim)
		}
		var keys []uint64
		var numbers []uint32
		var values []float32
		for i := range count {
			if named {
				keys = append(keys, rapid.Uint64().Draw(t, "key"))
				w.SetKey(i, keys[i])
			}
			if numbered {
				numbers = append(numbers, rapid.Uint32().Draw(t, "number"))
			}
			if valued {
				values = append(values, rapid.SliceOfN(rapid.Float32(), dim, dim).Draw(t, "row")...)
				w.SetRow(i, values[i*dim:])
			}
		}
		if numbered {
			w.SetNumbers(numbers)
		}
		r, err := wire.ParseRows(payload, kind)
		if err != nil || r.Count != count || r.Dim != dim || r.Numbering != numbering {
			t.Fatalf("%d × %d of numbering %d, %v; want %d × %d of %d", r.Count, r.Dim, r.Numbering, err, count, dim, numbering)
		}
		row := make([]float32, dim+1)
		for i := range count {
			if keys != nil && r.Key(i) != keys[i] {
				t.Fatalf("key %d is %d, want %d", i, r.Key(i), keys[i])
			}
			if numbers != nil && r.Number(i) != numbers[i] {
				t.Fatalf("number %d is %d, want %d", i, r.Number(i), numbers[i])
			}
			if values != nil {
				r.Row(i, row)
				if diff := cmp.Diff(values[i*dim:(i+1)*dim], row[:dim]); diff != "" {
					t.Fatalf("row %d (-want +got):\n%s", i, diff)
				}
				for c := range dim {
					if got, want := r.Bits(i*dim+c), math.Float32bits(row[c]); got != want {
						t.Fatalf("float %d of row %d has bits %x, want %x", c, i, got, want)
					}
				}
			}
		}
		for _, wrong := range [][]byte{payload[:n-1], append(payload[:n:n], 0)} {
			if _, err := wire.ParseRows(wrong, kind); !errors.Is(err, wire.ErrLength) {
				t.Fatalf("%d bytes instead of %d: %v", len(wrong), n, err)
			}
		}
	})
}

// TestRowsCannotOverflow has counts whose size wraps a 32-bit int around to the body's size.
func TestRowsCannotOverflow(t *testing.T) {
	for _, c := range []struct{ count, dim uint16 }{{1 << 15, 1 << 15}, {1 << 14, 1 << 14}, {65535, 65535}} {
		payload := binary.BigEndian.AppendUint16(make([]byte, wire.HeaderLen), c.count)
		payload = binary.BigEndian.AppendUint16(payload, c.dim)
		for _, kind := range append([]wire.Type{wire.TypeHot}, typesOfRows...) {
			if r, err := wire.ParseRows(payload, kind); err == nil {
				t.Errorf("%v of %d × %d in an empty body is accepted: %+v", kind, c.count, c.dim, r)
			}
		}
	}
}

// TestRowsMustBeThere has counts and dimensions other than the body's: none at all, and whole rows
// too few or too many.
func TestRowsMustBeThere(t *testing.T) {
	for _, kind := range typesOfRows {
		for rows := range 5 {
			for dim := range 4 {
				for count := range 6 {
					payload := make([]byte, lengthOfRows(kind, rows, dim))
					binary.BigEndian.PutUint16(payload[wire.HeaderLen:], uint16(count))
					binary.BigEndian.PutUint16(payload[wire.HeaderLen+2:], uint16(dim))
					r, err := wire.ParseRows(payload, kind)
					if count > 0 && dim > 0 && count == rows {
						if err != nil || r.Count != count || r.Dim != dim {
							t.Errorf("%v of %d × %d: %+v, %v", kind, count, dim, r, err)
						}
					} else if !errors.Is(err, wire.ErrLength) || r.Count != 0 || r.Dim != 0 {
						t.Errorf("%v of %d × %d in a body of %d rows: %+v, %v", kind, count, dim, rows, r, err)
					}
				}
			}
		}
	}
	for n := range wire.ColdLen(0, 1) {
		if _, err := wire.ParseRows(make([]byte, n), wire.TypeCold); !errors.Is(err, wire.ErrLength) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestViewsEndWithTheirRows appends to the last key and the last row.
func TestViewsEndWithTheirRows(t *testing.T) {
	panics := func(f func()) (did bool) {
		defer func() { did = recover() != nil }()
		f()
		return false
	}
	payload := make([]byte, wire.ColdLen(2, 3)+100)
	r := wire.PutRows(payload, wire.TypeCold, 2, 3)
	numbered := wire.PutNumbered(make([]byte, wire.ColdAtLen(2, 3)+100), wire.TypeColdAt, 2, 3, 1)
	for name, f := range map[string]func(){
		"number":       func() { numbered.Number(2) },
		"set numbers":  func() { numbered.SetNumbers(make([]uint32, 3)) },
		"set row at":   func() { numbered.SetRow(2, make([]float32, 3)) },
		"key":          func() { r.Key(2) },
		"set key":      func() { r.SetKey(2, 1) },
		"row":          func() { r.Row(2, make([]float32, 3)) },
		"set row":      func() { r.SetRow(2, make([]float32, 3)) },
		"short target": func() { r.Row(0, make([]float32, 2)) },
		"short source": func() { r.SetRow(0, make([]float32, 2)) },
	} {
		if !panics(f) {
			t.Errorf("%s behind the end is accepted", name)
		}
	}
	for _, lane := range []int{-1, wire.Lanes} {
		var s wire.Stripe
		for name, f := range map[string]func(){
			"value": func() { s.Bits(lane) }, "set value": func() { s.SetBits(lane, 1) },
			"slot": func() { s.Slot(lane) }, "set slot": func() { s.SetSlot(lane, 1) },
		} {
			if !panics(f) {
				t.Errorf("%s of lane %d is accepted", name, lane)
			}
		}
	}
}

func TestCapsFillTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 9000).Draw(t, "limit")
		dim := rapid.IntRange(1, 600).Draw(t, "dim")
		n := wire.ColdCap(limit, dim)
		if n := wire.ColdAtCap(limit, dim); n > 0 && wire.ColdAtLen(n, dim) > limit || wire.ColdAtLen(n+1, dim) <= limit {
			t.Fatalf("%d rows of dimension %d by number are said to fit %d bytes", n, dim, limit)
		}
		if n > 0 && wire.ColdLen(n, dim) > limit || wire.ColdLen(n+1, dim) <= limit {
			t.Fatalf("ColdCap(%d, %d) = %d", limit, dim, n)
		}
		fits := func(n int) bool { return wire.PullLen(n) <= limit && wire.RowsLen(n, dim) <= limit }
		if n = wire.PullCap(limit, dim); n > 0 && !fits(n) || fits(n+1) {
			t.Fatalf("PullCap(%d, %d) = %d", limit, dim, n)
		}
	})
}

func TestRefusal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		want := wire.Refusal{
			Code: wire.Code(rapid.Uint16().Draw(t, "code")), Index: rapid.Uint16().Draw(t, "index"), Value: rapid.Uint32().Draw(t, "value"),
		}
		payload := wire.PutError(make([]byte, 100), h, want)
		got, err := wire.ParseRefusal(payload)
		if err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
		checkEcho(t, payload, h, wire.TypeError, 0)
		var wrapped = fmt.Errorf("push: %w", got)
		if !errors.Is(wrapped, wire.Refusal{Code: want.Code}) || errors.Is(wrapped, wire.Refusal{Code: want.Code + 1}) {
			t.Fatal("errors.Is does not go by the code alone")
		}
	})
	for r, want := range map[wire.Refusal]string{
		{Code: wire.CodeSlotRange, Index: 219, Value: 40000}: "slot out of the job's range: pair 219, the job has 40000 slots",
		{Code: wire.CodeWrongEpoch, Value: 8}:                "wrong epoch: receiver expects 8",
		{Code: wire.CodeNotFinite, Index: 23}:                "NaN or infinity: pair 23",
		{Code: wire.CodeUnknownJob}:                          "unknown job",
		{Code: wire.CodeUnknownSender, Index: 1, Value: 2}:   "sender not admitted to the job",
		{Code: wire.CodeWrongVersion, Value: 1}:              "unsupported protocol version: receiver expects 1",
		{Code: wire.CodeOverflow, Index: 4}:                  "value or sum out of range: pair 4",
		{Code: wire.CodeLength, Value: 10}:                   "body length not accepted: receiver expects 10",
		{Code: wire.CodeMode, Value: 2}:                      "operation not supported by the job's mode",
		{Code: wire.CodeLayout, Index: 2}:                    "stripe layout not accepted",
		{Code: wire.CodeDimension, Value: 9}:                 "row dimension differs from the job's: receiver expects 9",
		{Code: wire.CodeType}:                                "frame type not served here",
		{Code: wire.CodeRound, Value: 77}:                    "round is not the one in progress: receiver expects 77",
		{Code: wire.CodeRowsFull, Index: 3, Value: 8}:        "no room for another row: row 3, the server may hold 8 (server.max_rows)",
		{Code: wire.CodeNumbering, Value: 8}:                 "row numbers of another server: its numbering is 8",
		{Code: wire.CodeStep}:                                "no sums of this step in frames: ask the control service",
		{Code: wire.CodeNoWeights}:                           "the job keeps no weights: give it an optimizer (model.optimizer)",
		{Code: wire.CodeCoding}:                              "the job has no codec",
		{Code: wire.CodeRowNumber, Index: 3, Value: 8}:       "row number beyond the server's rows: row 3, the server holds 8",
		{Code: wire.CodeWindow, Value: 513}:                  "sequence number beyond the window: receiver accepts numbers up to 513",
	} {
		if r.Error() != want {
			t.Errorf("%q, want %q", r.Error(), want)
		}
	}
}

// TestFinalRefusals lists the codes that hold for every copy of a frame; behind the
// others, a copy may have been applied (docs/wire.md, "What a refusal means").
func TestFinalRefusals(t *testing.T) {
	final := map[wire.Code]bool{
		wire.CodeSlotRange: true, wire.CodeWrongVersion: true, wire.CodeNotFinite: true, wire.CodeLength: true,
		wire.CodeMode: true, wire.CodeLayout: true, wire.CodeDimension: true, wire.CodeType: true, wire.CodeNumbering: true,
		wire.CodeNoWeights: true, wire.CodeCoding: true,
		// The receiver remembers these.
		wire.CodeOverflow: true, wire.CodeRound: true, wire.CodeRowsFull: true, wire.CodeRowNumber: true,
	}
	for code := range wire.Code(100) {
		if code.Final() != final[code] {
			t.Errorf("%v is final: %v", code, code.Final())
		}
	}
}

// checkEcho checks that an answer's header repeats the request's.
func checkEcho(t interface{ Fatalf(string, ...any) }, payload []byte, request wire.Header, kind wire.Type, flags wire.Flags) {
	got, err := wire.ParseHeader(payload)
	request.Type, request.Flags = kind, flags
	if err != nil || got != request {
		t.Fatalf("header %+v, %v; want %+v", got, err, request)
	}
}

func TestAcks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHeader(t)
		b := make([]byte, wire.HotLen(wire.MaxStripes))
		plain := wire.PutAck(b, h)
		checkEcho(t, plain, h, wire.TypeAck, 0)
		if n, err := wire.ParseAck(plain, wire.Header{Type: wire.TypeAck}); n != 0 || err != nil {
			t.Fatalf("a plain acknowledgement has %d stripes, %v", n, err)
		}
		want := rapid.IntRange(1, wire.MaxStripes).Draw(t, "stripes")
		sums := wire.PutSums(b, h, want)
		checkEcho(t, sums, h, wire.TypeAck, wire.FlagSum|h.Flags&wire.FlagDense)
		if n, err := wire.ParseAck(sums, wire.Header{Flags: wire.FlagSum}); n != want || err != nil {
			t.Fatalf("%d stripes, %v; want %d", n, err, want)
		}
		if _, err := wire.ParseAck(sums, wire.Header{}); !errors.Is(err, wire.ErrLength) {
			t.Fatalf("stripes without the flag: %v", err)
		}
	})
}

func TestRetxMarkChangesNothingElse(t *testing.T) {
	b := hot(header(wire.TypeHot, wire.FlagDense), []pair{{0, 1, 1}})
	before := string(b)
	wire.MarkRetx(b)
	h, err := wire.ParseHeader(b)
	if err != nil || h.Flags != wire.FlagRetx|wire.FlagDense || strings.Compare(before[2:], string(b[2:])) != 0 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestLaneMask(t *testing.T) {
	for lane := range 32 {
		if has := wire.LaneMask>>lane&1 == 1; has != (lane < wire.Lanes) {
			t.Errorf("bit %d: %v", lane, has)
		}
	}
}

// Every code has a name, and a remedy in the text or beside it.
func TestEveryCodeHasARemedy(t *testing.T) {
	for code := wire.CodeUnknownJob; code <= wire.CodeCoding; code++ {
		if strings.HasPrefix(code.String(), "error code") || code.Remedy() == "" && !strings.Contains(code.String(), ": ") {
			t.Errorf("code %d: %q, %q", code, code, code.Remedy())
		}
	}
	if wire.Code(999).Remedy() == "" {
		t.Error("a code of later versions has no remedy")
	}
}

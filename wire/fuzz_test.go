// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/libra-ina/libra/wire"
	"github.com/libra-ina/libra/wire/golden"
)

// FuzzParseFrame decodes arbitrary frames completely, and answers Libra's.
func FuzzParseFrame(f *testing.F) {
	for _, c := range loadGolden(f) {
		f.Add(c.Bytes)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		before := slices.Clone(frame)
		describe(goldenFrame{bytes: frame})
		p, err := wire.ParseFrame(frame, 0)
		if !bytes.Equal(frame, before) {
			t.Fatal("decoding changed the frame")
		}
		if err != nil {
			return
		}
		reply := wire.Reply(frame[:len(frame):len(frame)], min(len(p.Payload), wire.HeaderLen))
		q, err := wire.ParseFrame(reply, 0)
		if err != nil || q.Src != p.Dst || q.Dst != p.Src {
			t.Fatalf("the answer does not go back: %+v, %v", q, err)
		}
	})
}

// FuzzParsePayload decodes arbitrary UDP payloads, without the checksum, which random bytes hardly
// ever match.
func FuzzParsePayload(f *testing.F) {
	for _, c := range loadGolden(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil {
			f.Add(p.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		h, err := wire.ParseHeader(payload)
		if err != nil {
			return
		}
		var c golden.Case
		if err := describeBody(&c, payload, h); err == nil {
			again := slices.Clone(payload)
			h.Put(again)
			if !bytes.Equal(again, payload) {
				t.Fatalf("header %+v is written as % x", h, again[:wire.HeaderLen])
			}
		}
	})
}

// FuzzParseStep decodes arbitrary STEP payloads, and encodes the result.
func FuzzParseStep(f *testing.F) {
	for _, c := range loadGolden(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil && c.Step != nil {
			f.Add(p.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, err := wire.ParseStep(payload)
		if err != nil {
			return
		}
		again := slices.Clone(payload)
		clear(again[wire.HeaderLen:])
		if s.Put(again); !bytes.Equal(again, payload) {
			t.Fatalf("% x is written as % x", payload, again)
		}
	})
}

// FuzzParseRows decodes arbitrary bodies as every type with rows, and encodes the result.
func FuzzParseRows(f *testing.F) {
	for _, c := range loadGolden(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil && c.Rows != nil && c.Sums == nil {
			f.Add(p.Payload, p.Payload[0]&15)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte, kind uint8) {
		r, err := wire.ParseRows(payload, wire.Type(kind))
		if err != nil {
			return
		}
		again := make([]byte, len(payload))
		copy(again, payload[:wire.HeaderLen])
		keys, numbers, floats := wire.Type(kind).Body()
		var w wire.Rows
		if numbers {
			w = wire.PutNumbered(again, wire.Type(kind), r.Count, r.Dim, r.Numbering)
		} else {
			w = wire.PutRows(again, wire.Type(kind), r.Count, r.Dim)
		}
		row, named := make([]float32, r.Dim), make([]uint32, 0, r.Count)
		for i := range r.Count {
			if keys {
				w.SetKey(i, r.Key(i))
			}
			if numbers {
				named = append(named, r.Number(i))
			}
			if floats {
				r.Row(i, row)
				w.SetRow(i, row)
			}
		}
		w.SetNumbers(named)
		if !bytes.Equal(again, payload) {
			t.Fatalf("% x is written as % x", payload, again)
		}
	})
}

// FuzzParseBlock decodes arbitrary BLOCK payloads, and encodes the result.
func FuzzParseBlock(f *testing.F) {
	for _, c := range loadGolden(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil && c.Header != nil && c.Header.Type == wire.TypeBlock.String() {
			f.Add(p.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		b, values, err := wire.ParseBlock(payload)
		if err != nil {
			return
		}
		again := slices.Clone(payload[:wire.BlockHead])
		b.Put(again)
		if b.Bound == 0 {
			floats := make([]float32, b.Count)
			wire.Floats(floats, values)
			values = make([]byte, 4*len(floats))
			wire.PutFloats(values, floats)
		}
		want := slices.Clone(payload)
		clear(want[wire.BlockHead-2 : wire.BlockHead]) // without a meaning
		if again = append(again, values...); !bytes.Equal(again, want) {
			t.Fatalf("% x is written as % x", payload, again)
		}
	})
}

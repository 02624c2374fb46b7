// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"
	"math/big"
)

// parseState is a state of the parser.
type parseState struct {
	name string
	ops  []func(r *reader, f *frame) string // returns the name of an error, or ""
	key  func(f *frame) *big.Int
	next []transition
}

type transition struct {
	any         bool
	value, mask *big.Int // mask may be nil
	to          *parseState
}

// reader takes bits from the front of a frame.
type reader struct {
	data []byte
	at   int // bit
}

func (r *reader) left() int { return 8*len(r.data) - r.at }

// take reads bits. Headers are whole bytes, but fields need not be.
func (r *reader) take(bits int) *big.Int {
	first, last := r.at/8, (r.at+bits+7)/8
	v := new(big.Int).SetBytes(r.data[first:last])
	v.Rsh(v, uint(8*last-r.at-bits))
	r.at += bits
	return truncated(v, bits)
}

func (p *simpleSwitch) loadParser(c *configuration) error {
	if len(c.Parsers) != 1 || len(c.Deparsers) != 1 {
		return fmt.Errorf("%d parsers and %d deparsers, not one", len(c.Parsers), len(c.Deparsers))
	}
	parser := c.Parsers[0]
	for _, s := range parser.States {
		p.states[s.Name] = &parseState{name: s.Name}
	}
	p.start = p.states[parser.Init]
	for _, s := range parser.States {
		state := p.states[s.Name]
		for _, o := range s.Ops {
			op, err := p.parserOp(o.Op, o.Parameters)
			if err != nil {
				return fmt.Errorf("parser state %s: %w", s.Name, err)
			}
			state.ops = append(state.ops, op)
		}
		var parts []expression
		var widths []int
		for i := range s.Key {
			e, err := p.expression(&s.Key[i])
			if err != nil {
				return fmt.Errorf("parser state %s: %w", s.Name, err)
			}
			_, t, err := p.field(s.Key[i].Value)
			if err != nil {
				return fmt.Errorf("parser state %s: %w", s.Name, err)
			}
			// Each field of a key has whole bytes.
			parts, widths = append(parts, e), append(widths, (t.bits+7)/8*8)
		}
		state.key = func(f *frame) *big.Int {
			var b bitString
			for i, e := range parts {
				b.append(e(f), widths[i])
			}
			return b.v
		}
		for _, t := range s.Transitions {
			n := transition{any: t.Type == "default"}
			var err error
			if t.Next != nil {
				n.to = p.states[*t.Next]
			}
			if !n.any {
				if n.value, err = parseHex(*t.Value); err != nil {
					return err
				}
			}
			if t.Mask != nil {
				if n.mask, err = parseHex(*t.Mask); err != nil {
					return err
				}
			}
			state.next = append(state.next, n)
		}
	}
	for _, name := range c.Deparsers[0].Order {
		h, ok := p.headers[name]
		if !ok {
			return fmt.Errorf("deparser: no header %q", name)
		}
		p.order = append(p.order, h)
	}
	return nil
}

const tooShort = "PacketTooShort"

func (p *simpleSwitch) parserOp(name string, params []value) (func(*reader, *frame) string, error) {
	switch name {
	case "extract", "extract_VL":
		h, err := p.headerOf(params[0].Value)
		if err != nil {
			return nil, err
		}
		var length expression
		if name == "extract_VL" {
			if length, err = p.expression(&params[1]); err != nil {
				return nil, err
			}
		}
		return func(r *reader, f *frame) string { return p.extract(r, f, h, length) }, nil
	case "set":
		at, t, err := p.field(params[0].Value)
		if err != nil {
			return nil, err
		}
		e, err := p.expression(&params[1])
		if err != nil {
			return nil, err
		}
		return func(_ *reader, f *frame) string { f.assign(at, t, e(f)); return "" }, nil
	}
	return nil, fmt.Errorf("no parser operation %q", name)
}

// extract reads a header.
func (p *simpleSwitch) extract(r *reader, f *frame, h int, length expression) string {
	types := p.types[h].fields
	total, varying := 0, 0
	if length != nil {
		varying = int(length(f).Int64())
	}
	for _, t := range types {
		if t.bits < 0 {
			total += varying
		} else {
			total += t.bits
		}
	}
	if r.left() < total {
		return tooShort
	}
	header := &f.headers[h]
	header.valid = true
	header.bits = make([]int, len(types))
	for i, t := range types {
		n := t.bits
		if n < 0 {
			n = varying
		}
		header.bits[i] = n
		header.fields[i] = r.take(n)
	}
	return ""
}

// parse parses a frame.
func (p *simpleSwitch) parse(f *frame, data []byte) {
	r := &reader{data: data}
	fail := func(name string) { f.headers[p.parserError.header].fields[p.parserError.field] = p.errors[name] }
	for s := p.start; s != nil; {
		for _, op := range s.ops {
			if e := op(r, f); e != "" {
				fail(e)
				f.payload = data[r.at/8:]
				return
			}
		}
		var key *big.Int
		var next *parseState
		found := false
		for _, t := range s.next {
			if !t.any {
				if key == nil {
					key = s.key(f)
				}
				got, want := key, t.value
				if t.mask != nil {
					got, want = new(big.Int).And(key, t.mask), new(big.Int).And(want, t.mask)
				}
				if got.Cmp(want) != 0 {
					continue
				}
			}
			next, found = t.to, true
			break
		}
		if !found {
			fail("NoMatch")
		}
		s = next
	}
	f.payload = data[r.at/8:]
}

// deparse assembles a frame.
func (p *simpleSwitch) deparse(f *frame) []byte {
	var out []byte
	for _, h := range p.order {
		header := &f.headers[h]
		if !header.valid {
			continue
		}
		var b bitString
		for i, t := range p.types[h].fields {
			n := t.bits
			if n < 0 {
				n = header.bits[i]
			}
			b.append(truncated(f.get(place{h, i}), n), n)
		}
		out = append(out, b.bytes()...)
	}
	return append(out, f.payload...)
}

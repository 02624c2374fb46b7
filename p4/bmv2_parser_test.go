// SPDX-License-Identifier: Apache-2.0

package p4

import "fmt"

// parseState is a state of the parser.
type parseState struct {
	name string
	ops  []func(r *bitReader, f *frame) (failure string) // the name of an error, or ""
	key  expression
	next []transition
}

type transition struct {
	any         bool
	value, mask num
	to          *parseState
}

func (p *switchProgram) loadParser(c *configuration) error {
	if len(c.Parsers) != 1 || len(c.Deparsers) != 1 {
		return fmt.Errorf("%d parsers and %d deparsers, not one", len(c.Parsers), len(c.Deparsers))
	}
	parser := c.Parsers[0]
	states := make(map[string]*parseState)
	for _, s := range parser.States {
		states[s.Name] = &parseState{name: s.Name}
	}
	p.start = states[parser.Init]
	for _, s := range parser.States {
		state := states[s.Name]
		for _, o := range s.Ops {
			op, err := p.parserOp(o.Op, o.Parameters)
			if err != nil {
				return fmt.Errorf("parser state %s: %w", s.Name, err)
			}
			state.ops = append(state.ops, op)
		}
		var err error
		if state.key, err = p.parserKey(s.Key); err != nil {
			return fmt.Errorf("parser state %s: %w", s.Name, err)
		}
		for _, t := range s.Transitions {
			n := transition{any: t.Type == "default", mask: mask(128)}
			if t.Next != nil {
				n.to = states[*t.Next]
			}
			if t.Mask != nil {
				if n.mask, err = hexNumber(*t.Mask); err != nil {
					return err
				}
			}
			if !n.any {
				if n.value, err = hexNumber(*t.Value); err != nil {
					return err
				}
				n.value = n.value.and(n.mask)
			}
			state.next = append(state.next, n)
		}
	}
	for _, name := range c.Deparsers[0].Order {
		h, err := p.headerOf(name)
		if err != nil {
			return fmt.Errorf("deparser: %w", err)
		}
		p.order = append(p.order, h)
	}
	return nil
}

// parserKey compiles a key of some fields, each of which has whole bytes.
func (p *switchProgram) parserKey(parts []value) (expression, error) {
	key := func(*frame) num { return zero }
	total := 0
	for i := range parts {
		e, err := p.expression(&parts[i])
		if err != nil {
			return nil, err
		}
		_, t, err := p.field(parts[i].Value)
		if err != nil {
			return nil, err
		}
		width := uint64((t.bits + 7) / 8 * 8)
		if total += int(width); total > 127 {
			return nil, fmt.Errorf("a key of more than 127 bits")
		}
		earlier := key
		key = func(f *frame) num { return earlier(f).shl(width).or(e(f)) }
	}
	return key, nil
}

const tooShort = "PacketTooShort"

func (p *switchProgram) parserOp(name string, params []value) (func(*bitReader, *frame) string, error) {
	switch name {
	case "extract", "extract_VL":
		h, err := p.headerOf(params[0].Value)
		if err != nil {
			return nil, err
		}
		length := func(*frame) num { return zero }
		if name == "extract_VL" {
			if length, err = p.expression(&params[1]); err != nil {
				return nil, err
			}
		}
		return func(r *bitReader, f *frame) string { return p.extract(r, f, h, int(length(f).lo)) }, nil
	case "set":
		at, t, err := p.assignable(&params[0])
		if err != nil {
			return nil, err
		}
		e, err := p.expression(&params[1])
		return func(_ *bitReader, f *frame) string { f.assign(at, t, e(f)); return "" }, err
	}
	return nil, fmt.Errorf("no parser operation %q", name)
}

// extract reads a header, whose field of any length has this number of bits.
func (p *switchProgram) extract(r *bitReader, f *frame, h, length int) string {
	t := &p.types[h]
	if length < 0 || length%8 != 0 {
		panic(fmt.Sprintf("bmv2: a field of %d bits in header %s", length, t.name))
	}
	total := t.bits
	if t.varies {
		total += length
	}
	if r.left() < total {
		return tooShort
	}
	f.valid[h] = true
	for i := range t.fields {
		if width := t.fields[i].bits; width >= 0 {
			f.fields[int(t.first)+i] = r.take(width)
			continue
		}
		rest := make([]byte, length/8)
		for k := range rest {
			rest[k] = byte(r.take(8).lo)
		}
		f.rest[h] = rest
	}
	return ""
}

// parse parses a frame.
func (p *switchProgram) parse(f *frame, data []byte) {
	r := bitReader{data: data}
	fail := func(name string) { f.fields[p.parserError] = p.errors[name] }
	for s := p.start; s != nil; {
		for _, op := range s.ops {
			if e := op(&r, f); e != "" {
				fail(e)
				f.payload = data[r.at/8:]
				return
			}
		}
		key := s.key(f)
		var next *parseState
		found := false
		for i := range s.next {
			if t := &s.next[i]; t.any || key.and(t.mask) == t.value {
				next, found = t.to, true
				break
			}
		}
		if !found {
			fail("NoMatch")
		}
		s = next
	}
	f.payload = data[r.at/8:]
}

// deparse assembles a frame.
func (p *switchProgram) deparse(f *frame) []byte {
	var out bitWriter
	for _, h := range p.order {
		if !f.valid[h] {
			continue
		}
		t := &p.types[h]
		for i := range t.fields {
			if width := t.fields[i].bits; width >= 0 {
				out.put(f.fields[int(t.first)+i], width)
			} else {
				out.putBytes(f.rest[h])
			}
		}
		out.free = 0 // headers are whole bytes
	}
	return append(out.data, f.payload...)
}

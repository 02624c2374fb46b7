// SPDX-License-Identifier: Apache-2.0

package p4

import "fmt"

// switchAction is an operation of the pipeline, by a table or the compiler.
type switchAction struct {
	name string
	do   []func(f *frame)
}

// assign writes a field as bmv2 does: truncated to its width, with its sign.
func (f *frame) assign(at place, t fieldType, v num) {
	if t.signed {
		f.fields[at] = v.signed(t.bits)
	} else {
		f.fields[at] = v.truncated(t.bits)
	}
}

// assignable returns the place of a field that actions write.
func (p *switchProgram) assignable(v *value) (place, fieldType, error) {
	at, t, err := p.field(v.Value)
	if err == nil && (at < 0 || t.bits < 0) {
		err = fmt.Errorf("%v is not assigned", v.Value)
	}
	return at, t, err
}

func (p *switchProgram) loadActions(c *configuration) error {
	for _, a := range c.Actions {
		compiled := &switchAction{name: a.Name}
		for _, op := range a.Primitives {
			do, err := p.primitive(op.Op, op.Parameters)
			if err != nil {
				return fmt.Errorf("action %s: %s: %w", a.Name, op.Op, err)
			}
			compiled.do = append(compiled.do, do)
		}
		p.actions[a.ID] = compiled
	}
	return nil
}

// indexOf returns the index of an extern that is a parameter.
func indexOf(v value, all map[string]int, kind string) (int, error) {
	name, _ := v.Value.(string)
	i, ok := all[name]
	if !ok {
		return 0, fmt.Errorf("no %s %v", kind, v.Value)
	}
	return i, nil
}

// dropPort is the port of dropped frames.
const dropPort = 511

func (p *switchProgram) primitive(op string, params []value) (func(f *frame), error) {
	switch op {
	case "assign":
		at, t, err := p.assignable(&params[0])
		if err != nil {
			return nil, err
		}
		e, err := p.expression(&params[1])
		return func(f *frame) { f.assign(at, t, e(f)) }, err
	case "add_header", "remove_header":
		h, err := p.headerOf(params[0].Value)
		return func(f *frame) { f.valid[h] = op == "add_header" }, err
	case "mark_to_drop":
		return func(f *frame) {
			f.set(p.egressSpec, num{lo: dropPort}, 9)
			f.set(p.group, zero, 16)
		}, nil
	case "truncate":
		e, err := p.expression(&params[0])
		return func(f *frame) { f.limit = int(e(f).lo) }, err
	case "resubmit":
		n, err := hexNumber(params[0].Value)
		if err != nil {
			return nil, err
		}
		list := int(n.lo)
		if p.kept[list] == nil {
			return nil, fmt.Errorf("no field list %d", list)
		}
		return func(f *frame) { f.again = list }, nil
	case "register_read":
		return p.registerRead(params)
	case "register_write":
		return p.registerWrite(params)
	case "count":
		i, err := indexOf(params[0], p.counterIndex, "counter")
		if err != nil {
			return nil, err
		}
		e, err := p.expression(&params[1])
		return func(f *frame) {
			if cells, n := f.in.counters[i], e(f).lo; n < uint64(len(cells)) {
				cells[n]++
			}
		}, err
	case "modify_field_with_hash_based_offset":
		return p.hash(params)
	}
	return nil, fmt.Errorf("no such primitive")
}

func (p *switchProgram) registerRead(params []value) (func(f *frame), error) {
	at, t, err := p.assignable(&params[0])
	if err != nil {
		return nil, err
	}
	i, err := indexOf(params[1], p.registerIndex, "register")
	if err != nil {
		return nil, err
	}
	index, err := p.expression(&params[2])
	return func(f *frame) {
		r := &f.in.registers[i]
		r.reads++
		if n := index(f).lo; n < uint64(len(r.cells)) {
			f.assign(at, t, r.cells[n])
		}
	}, err
}

func (p *switchProgram) registerWrite(params []value) (func(f *frame), error) {
	i, err := indexOf(params[0], p.registerIndex, "register")
	if err != nil {
		return nil, err
	}
	index, err := p.expression(&params[1])
	if err != nil {
		return nil, err
	}
	v, err := p.expression(&params[2])
	return func(f *frame) {
		r := &f.in.registers[i]
		r.writes++
		if n := index(f).lo; n < uint64(len(r.cells)) {
			r.cells[n] = v(f).and(r.mask)
		}
	}, err
}

// passed ends a pass.
func (p *simpleSwitch) passed() {
	for i := range p.registers {
		r := &p.registers[i]
		p.reads, p.writes = max(p.reads, r.reads), max(p.writes, r.writes)
		r.reads, r.writes = 0, 0
	}
}

// accessed returns the largest numbers of reads and of writes of any register in one pass of a
// frame since the last call.
func (p *simpleSwitch) accessed() (reads, writes int) {
	reads, writes = p.reads, p.writes
	p.reads, p.writes = 0, 0
	return reads, writes
}

// hash writes base + checksum mod max.
func (p *switchProgram) hash(params []value) (func(f *frame), error) {
	at, t, err := p.assignable(&params[0])
	if err != nil {
		return nil, err
	}
	base, err := p.expression(&params[1])
	if err != nil {
		return nil, err
	}
	name, _ := params[2].Value.(string)
	sum, ok := p.sums[name]
	if !ok {
		return nil, fmt.Errorf("no calculation %q", name)
	}
	size, err := p.expression(&params[3])
	if err != nil {
		return nil, err
	}
	return func(f *frame) {
		n := checksum(sum(f))
		if s := size(f); s.hi == 0 { // else it is larger than any checksum
			n %= s.lo
		}
		f.assign(at, t, num{lo: n}.add(base(f)))
	}, nil
}

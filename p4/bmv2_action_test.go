// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/json"
	"fmt"
	"math/big"
)

// switchAction is an operation of the pipeline, by a table or the compiler.
type switchAction struct {
	name string
	do   []func(f *frame)
}

// assign writes a field as bmv2 does: truncated to its width, with its sign.
func (f *frame) assign(at place, t fieldType, v *big.Int) {
	if t.signed {
		v = binaries["two_comp_mod"](v, big.NewInt(int64(t.bits)))
		f.headers[at.header].fields[at.field] = v
		return
	}
	f.set(at, v, t.bits)
}

func (p *simpleSwitch) loadActions(c *configuration) error {
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

// name returns the name of an extern that is a parameter.
func name(v value) (s string, err error) {
	err = json.Unmarshal(v.Value, &s)
	return s, err
}

// dropPort is the port of dropped frames.
const dropPort = 511

func (p *simpleSwitch) primitive(op string, params []value) (func(f *frame), error) {
	switch op {
	case "assign":
		at, t, err := p.field(params[0].Value)
		if err != nil {
			return nil, err
		}
		if at.field < 0 {
			return nil, fmt.Errorf("a validity is not assigned")
		}
		e, err := p.expression(&params[1])
		return func(f *frame) { f.assign(at, t, e(f)) }, err
	case "add_header", "remove_header":
		h, err := p.headerOf(params[0].Value)
		return func(f *frame) {
			f.headers[h].valid = op == "add_header"
		}, err
	case "mark_to_drop":
		return func(f *frame) {
			f.set(p.egressSpec, big.NewInt(dropPort), 9)
			f.set(p.group, zero, 16)
		}, nil
	case "truncate":
		e, err := p.expression(&params[0])
		return func(f *frame) { f.limit = int(e(f).Int64()) }, err
	case "resubmit":
		n, err := hexNumber(params[0].Value)
		if err != nil {
			return nil, err
		}
		list := int(n.Int64())
		if p.kept[list] == nil {
			return nil, fmt.Errorf("no field list %d", list)
		}
		return func(f *frame) { f.again = list }, nil
	case "register_read":
		return p.registerRead(params)
	case "register_write":
		return p.registerWrite(params)
	case "count":
		id, err := name(params[0])
		if err != nil {
			return nil, err
		}
		cells, ok := p.counters[id]
		if !ok {
			return nil, fmt.Errorf("no counter %q", id)
		}
		e, err := p.expression(&params[1])
		return func(f *frame) {
			if i := e(f).Uint64(); i < uint64(len(cells)) {
				cells[i]++
			}
		}, err
	case "modify_field_with_hash_based_offset":
		return p.hash(params)
	}
	return nil, fmt.Errorf("no such primitive")
}

func (p *simpleSwitch) register(v value) (*register, error) {
	id, err := name(v)
	if err != nil {
		return nil, err
	}
	r, ok := p.registers[id]
	if !ok {
		return nil, fmt.Errorf("no register %q", id)
	}
	return r, nil
}

func (p *simpleSwitch) registerRead(params []value) (func(f *frame), error) {
	at, t, err := p.field(params[0].Value)
	if err != nil {
		return nil, err
	}
	r, err := p.register(params[1])
	if err != nil {
		return nil, err
	}
	index, err := p.expression(&params[2])
	return func(f *frame) {
		r.reads++
		if i := index(f).Uint64(); i < uint64(len(r.cells)) {
			v := r.cells[i]
			if v == nil {
				v = zero
			}
			f.assign(at, t, v)
		}
	}, err
}

func (p *simpleSwitch) registerWrite(params []value) (func(f *frame), error) {
	r, err := p.register(params[0])
	if err != nil {
		return nil, err
	}
	index, err := p.expression(&params[1])
	if err != nil {
		return nil, err
	}
	v, err := p.expression(&params[2])
	return func(f *frame) {
		r.writes++
		if i := index(f).Uint64(); i < uint64(len(r.cells)) {
			r.cells[i] = truncated(v(f), r.bits)
		}
	}, err
}

// passed ends a pass.
func (p *simpleSwitch) passed() {
	for _, r := range p.registers {
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
func (p *simpleSwitch) hash(params []value) (func(f *frame), error) {
	at, t, err := p.field(params[0].Value)
	if err != nil {
		return nil, err
	}
	base, err := p.expression(&params[1])
	if err != nil {
		return nil, err
	}
	id, err := name(params[2])
	if err != nil {
		return nil, err
	}
	sum, ok := p.sums[id]
	if !ok {
		return nil, fmt.Errorf("no calculation %q", id)
	}
	size, err := p.expression(&params[3])
	return func(f *frame) {
		n := new(big.Int).SetUint64(checksum(sum(f)))
		n.Mod(n, size(f))
		f.assign(at, t, n.Add(n, base(f)))
	}, err
}

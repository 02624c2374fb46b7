// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"
	"math/big"
	"slices"
)

// copyTo is one copy of a frame that goes to a multicast group.
type copyTo struct{ Port, Instance uint16 }

// output is a frame that leaves the switch.
type output struct {
	Port uint16
	Data []byte
}

// mostPasses is the limit of resubmissions: bmv2 would continue for ever.
const mostPasses = 100

// process passes a frame, or a packet of the control plane, through the program. As in
// bmv2, a frame that is resubmitted comes before all others.
func (p *simpleSwitch) process(port uint16, data []byte) []output {
	f := p.ingress(port, data, nil)
	for p.passes = 1; f.again != 0; p.passes++ {
		if p.passes == mostPasses {
			return nil
		}
		f = p.ingress(port, data, f)
	}
	if group := uint16(f.get(p.group).Uint64()); group != 0 {
		var out []output
		for _, r := range p.groups[group] {
			out = append(out, p.egress(f.clone(), r.Port, r.Instance)...)
		}
		return out
	}
	to := uint16(f.get(p.egressSpec).Uint64())
	if to == dropPort {
		return nil
	}
	return p.egress(f, to, 0)
}

// ingress passes a frame through the ingress pipeline, once more after a resubmission.
func (p *simpleSwitch) ingress(port uint16, data []byte, earlier *frame) *frame {
	f := p.fresh.clone()
	if earlier != nil {
		for _, at := range p.kept[earlier.again] {
			f.headers[at.header].fields[at.field] = earlier.get(at)
		}
	} else {
		f.set(p.ingressPort, big.NewInt(int64(port)), 9) // which bmv2 does not keep
	}
	f.set(p.packetLength, big.NewInt(int64(len(data))), 32)
	p.parse(f, data)
	for _, right := range p.checks {
		if !right(f) {
			f.set(p.checksumError, one, 1)
		}
	}
	p.run("ingress", f)
	p.passed()
	return f
}

var garbage = new(big.Int).SetBytes([]byte("undefined undefined undefined"))

// loadFresh creates the initial state of all frames.
func (p *simpleSwitch) loadFresh(*configuration) error {
	p.fresh = &frame{headers: make([]header, len(p.types)), limit: -1}
	for i, t := range p.types {
		h := &p.fresh.headers[i]
		*h = header{valid: t.metadata, fields: make([]*big.Int, len(t.fields))}
		if t.metadata {
			continue
		}
		// The fields of an invalid header are undefined, so they are not 0.
		for k, ft := range t.fields {
			h.fields[k] = truncated(garbage, max(ft.bits, 0))
		}
	}
	return nil
}

// clone copies a frame. The fields of all headers are one allocation, because the race detector and
// the garbage collector see each pass of each frame.
func (f *frame) clone() *frame {
	c := *f
	c.headers = slices.Clone(f.headers)
	n := 0
	for i := range c.headers {
		n += len(c.headers[i].fields)
	}
	fields := make([]*big.Int, 0, n)
	for i := range c.headers {
		h := &c.headers[i]
		fields = append(fields, h.fields...)
		h.fields = fields[len(fields)-len(h.fields) : len(fields) : len(fields)]
	}
	return &c
}

// egress takes a frame from the ingress pipeline to a port.
func (p *simpleSwitch) egress(f *frame, port, instance uint16) []output {
	f.set(p.egressPort, big.NewInt(int64(port)), 9)
	f.set(p.egressRid, big.NewInt(int64(instance)), 16)
	f.set(p.egressSpec, zero, 9)
	p.run("egress", f)
	if f.get(p.egressSpec).Uint64() == dropPort {
		return nil
	}
	data := p.deparse(f)
	if f.limit >= 0 && f.limit < len(data) {
		data = data[:f.limit]
	}
	return []output{{port, data}}
}

func (p *simpleSwitch) run(name string, f *frame) {
	pl := p.pipelines[name]
	for at := pl.start; at != ""; {
		at = pl.nodes[at](f)
	}
}

// insert adds an entry to a table. size is the largest number of entries.
func (p *simpleSwitch) insert(name string, size int, e *tableEntry) error {
	t, err := p.table(name, e)
	if err != nil {
		return err
	}
	switch {
	case t.entries[e.identity()] != nil:
		return errExists
	case len(t.entries) >= size:
		return errTableFull
	}
	t.entries[e.identity()] = e
	return nil
}

// modify replaces the action of an entry.
func (p *simpleSwitch) modify(name string, e *tableEntry) error {
	t, err := p.table(name, e)
	if err != nil {
		return err
	}
	if t.entries[e.identity()] == nil {
		return errNoEntry
	}
	t.entries[e.identity()] = e
	return nil
}

// delete removes the entry with the key of e.
func (p *simpleSwitch) delete(name string, e *tableEntry) error {
	t, ok := p.tables[name]
	if !ok {
		return fmt.Errorf("no table %q", name)
	}
	if t.entries[e.identity()] == nil {
		return errNoEntry
	}
	delete(t.entries, e.identity())
	return nil
}

// table returns a table that has an entry's action.
func (p *simpleSwitch) table(name string, e *tableEntry) (*switchTable, error) {
	t, ok := p.tables[name]
	if !ok {
		return nil, fmt.Errorf("no table %q", name)
	}
	if t.actions[e.Action] == nil {
		return nil, fmt.Errorf("table %s has no action %q", name, e.Action)
	}
	return t, nil
}

// setGroup creates a multicast group.
func (p *simpleSwitch) setGroup(id uint16, replicas []copyTo) { p.groups[id] = replicas }

// counter returns the packet count of one cell of a counter.
func (p *simpleSwitch) counter(name string, index int) (uint64, error) {
	cells, ok := p.counters[name]
	if !ok || index < 0 || index >= len(cells) {
		return 0, fmt.Errorf("no counter %s[%d]", name, index)
	}
	return cells[index], nil
}

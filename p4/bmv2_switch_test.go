// SPDX-License-Identifier: Apache-2.0

package p4

import "fmt"

// simpleSwitch runs a program like bmv2's simple_switch, one frame at a time, with its tables,
// registers and counters: the program is compared with the model wherever Go runs.
type simpleSwitch struct {
	*switchProgram
	registers []register
	counters  [][]uint64
	tables    map[string]*switchTable
	byIndex   []*switchTable // the same, as the program numbers them
	groups    map[uint16][]copyTo

	reads, writes int // of one register in one pass, since the last call of accessed
	passes        int // of the last frame

	// What the passes of a frame use, so that they allocate nothing.
	pass, earlier, copied frame
	summed                []byte // that a checksum is over
}

type register struct {
	cells []num
	mask  num

	reads, writes int // in this pass
}

// copyTo is one copy of a frame that goes to a multicast group.
type copyTo struct{ Port, Instance uint16 }

// output is a frame that leaves the switch.
type output struct {
	Port uint16
	Data []byte
}

// loadSwitch returns a switch that runs a device configuration, with registers and counters of 0.
func loadSwitch(device []byte) (*simpleSwitch, error) {
	program, err := loadProgram(device)
	if err != nil {
		return nil, err
	}
	p := &simpleSwitch{switchProgram: program, tables: make(map[string]*switchTable), groups: make(map[uint16][]copyTo)}
	for _, r := range program.registers {
		p.registers = append(p.registers, register{cells: make([]num, r.size), mask: mask(r.bits)})
	}
	for _, size := range program.counters {
		p.counters = append(p.counters, make([]uint64, size))
	}
	for _, t := range program.tables {
		s, err := newTable(t)
		if err != nil {
			return nil, fmt.Errorf("bmv2: %w", err)
		}
		p.tables[t.name] = s
		p.byIndex = append(p.byIndex, s)
	}
	return p, nil
}

// mostPasses is the limit of resubmissions: bmv2 would continue for ever.
const mostPasses = 100

// process passes a frame, or a packet of the control plane, through the program. As in
// bmv2, a frame that is resubmitted comes before all others.
func (p *simpleSwitch) process(port uint16, data []byte) []output {
	f, earlier := &p.pass, &p.earlier
	p.ingress(f, port, data, nil)
	for p.passes = 1; f.again != 0; p.passes++ {
		if p.passes == mostPasses {
			return nil
		}
		f, earlier = earlier, f
		p.ingress(f, port, data, earlier)
	}
	if group := uint16(f.get(p.group).lo); group != 0 {
		var out []output
		for _, r := range p.groups[group] {
			p.copied.become(f)
			out = append(out, p.egress(&p.copied, r.Port, r.Instance)...)
		}
		return out
	}
	to := uint16(f.get(p.egressSpec).lo)
	if to == dropPort {
		return nil
	}
	return p.egress(f, to, 0)
}

// ingress passes a frame through the ingress pipeline, once more after a resubmission.
func (p *simpleSwitch) ingress(f *frame, port uint16, data []byte, earlier *frame) {
	f.become(&p.fresh)
	f.in = p
	if earlier != nil {
		for _, at := range p.kept[earlier.again] {
			f.fields[at] = earlier.fields[at]
		}
	} else {
		f.set(p.ingressPort, num{lo: uint64(port)}, 9) // which bmv2 does not keep
	}
	f.set(p.packetLength, num{lo: uint64(len(data))}, 32)
	p.parse(f, data)
	for _, right := range p.checks {
		if !right(f) {
			f.set(p.checksumError, one, 1)
		}
	}
	p.run("ingress", f)
	p.passed()
}

// egress takes a frame from the ingress pipeline to a port.
func (p *simpleSwitch) egress(f *frame, port, instance uint16) []output {
	f.set(p.egressPort, num{lo: uint64(port)}, 9)
	f.set(p.egressRid, num{lo: uint64(instance)}, 16)
	f.set(p.egressSpec, zero, 9)
	p.run("egress", f)
	if f.get(p.egressSpec).lo == dropPort {
		return nil
	}
	data := p.deparse(f)
	if f.limit >= 0 && f.limit < len(data) {
		data = data[:f.limit]
	}
	return []output{{port, data}}
}

func (p *simpleSwitch) run(pipeline string, f *frame) {
	for n := p.pipelines[pipeline]; n != nil; {
		n = n.run(f)
	}
}

// insert adds an entry to a table. size is the largest number of entries.
func (p *simpleSwitch) insert(name string, size int, e *tableEntry) error {
	t, err := p.table(name)
	if err != nil {
		return err
	}
	return t.insert(e, size)
}

// modify replaces the action of an entry.
func (p *simpleSwitch) modify(name string, e *tableEntry) error {
	t, err := p.table(name)
	if err != nil {
		return err
	}
	return t.modify(e)
}

// delete removes the entry with the key of e.
func (p *simpleSwitch) delete(name string, e *tableEntry) error {
	t, err := p.table(name)
	if err != nil {
		return err
	}
	return t.delete(e)
}

func (p *simpleSwitch) table(name string) (*switchTable, error) {
	t, ok := p.tables[name]
	if !ok {
		return nil, fmt.Errorf("no table %q", name)
	}
	return t, nil
}

// setGroup creates a multicast group.
func (p *simpleSwitch) setGroup(id uint16, replicas []copyTo) { p.groups[id] = replicas }

// counter returns the packet count of one cell of a counter.
func (p *simpleSwitch) counter(name string, index int) (uint64, error) {
	i, ok := p.counterIndex[name]
	if !ok || index < 0 || index >= len(p.counters[i]) {
		return 0, fmt.Errorf("no counter %s[%d]", name, index)
	}
	return p.counters[i][index], nil
}

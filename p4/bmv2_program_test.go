// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/json"
	"fmt"
	"math/big"
)

// simpleSwitch runs a program that p4c has compiled for v1model like bmv2's simple_switch, one
// frame at a time, with its tables, registers and counters: the program is compared with the model
// wherever Go runs. It supports what Libra's program uses; an error names anything else.
//
// The format is that of the device configuration, "BMv2 JSON" (docs/JSON_format.md in the
// repository of bmv2), version 2.23.
type simpleSwitch struct {
	types     []headerType
	headers   map[string]int
	errors    map[string]*big.Int
	states    map[string]*parseState
	start     *parseState
	order     []int
	registers map[string]*register
	counters  map[string][]uint64
	sums      map[string]func(f *frame) []byte
	kept      map[int][]place // field lists
	actions   map[int]*switchAction
	checks    []func(f *frame) bool // of checksums: whether they are right
	pipelines map[string]*pipeline
	tables    map[string]*switchTable
	groups    map[uint16][]copyTo
	fresh     *frame // the frame as it enters the parser

	reads, writes int // of one register in one pass, since the last call of accessed
	passes        int // of the last frame

	parserError, checksumError, packetLength, ingressPort, egressSpec, egressPort, egressRid, group place
}

type headerType struct {
	name     string
	metadata bool
	fields   []fieldType
	index    map[string]int
}

type fieldType struct {
	name   string
	bits   int // -1 if the frame has the length
	signed bool
}

type register struct {
	cells []*big.Int
	bits  int

	reads, writes int // in this pass
}

// loadSwitch compiles a device configuration.
func loadSwitch(device []byte) (*simpleSwitch, error) {
	var c configuration
	if err := json.Unmarshal(device, &c); err != nil {
		return nil, fmt.Errorf("bmv2: device configuration: %w", err)
	}
	p := &simpleSwitch{
		headers: make(map[string]int), errors: make(map[string]*big.Int), states: make(map[string]*parseState),
		registers: make(map[string]*register), counters: make(map[string][]uint64), sums: make(map[string]func(*frame) []byte),
		kept:    make(map[int][]place),
		actions: make(map[int]*switchAction), tables: make(map[string]*switchTable), pipelines: make(map[string]*pipeline), groups: make(map[uint16][]copyTo),
	}
	for _, load := range []func(*configuration) error{
		p.loadHeaders, p.loadFresh, p.loadState, p.loadCalculations, p.loadChecksums, p.loadParser, p.loadFieldLists, p.loadActions, p.loadPipelines,
	} {
		if err := load(&c); err != nil {
			return nil, fmt.Errorf("bmv2: %w", err)
		}
	}
	return p, nil
}

func (p *simpleSwitch) loadHeaders(c *configuration) error {
	kinds := make(map[string]headerType)
	for _, t := range c.HeaderTypes {
		h := headerType{index: make(map[string]int)}
		for _, f := range t.Fields {
			var ft fieldType
			if err := json.Unmarshal(f[0], &ft.name); err != nil {
				return err
			}
			if json.Unmarshal(f[1], &ft.bits) != nil {
				ft.bits = -1
			}
			if len(f) > 2 {
				if err := json.Unmarshal(f[2], &ft.signed); err != nil {
					return err
				}
			}
			h.index[ft.name] = len(h.fields)
			h.fields = append(h.fields, ft)
		}
		kinds[t.Name] = h
	}
	for _, h := range c.Headers {
		t := kinds[h.Type]
		t.name, t.metadata = h.Name, h.Metadata
		p.headers[h.Name] = len(p.types)
		p.types = append(p.types, t)
	}
	for _, e := range c.Errors {
		var name string
		var n int64
		if err := json.Unmarshal(e[0], &name); err != nil {
			return err
		}
		if err := json.Unmarshal(e[1], &n); err != nil {
			return err
		}
		p.errors[name] = big.NewInt(n)
	}
	for name, at := range map[string]*place{
		"parser_error": &p.parserError, "checksum_error": &p.checksumError, "packet_length": &p.packetLength, "ingress_port": &p.ingressPort,
		"egress_spec": &p.egressSpec, "egress_port": &p.egressPort, "egress_rid": &p.egressRid, "mcast_grp": &p.group,
	} {
		var err error
		if *at, err = p.find("standard_metadata", name); err != nil {
			return err
		}
	}
	return nil
}

// find returns the place of a field.
func (p *simpleSwitch) find(headerName, name string) (place, error) {
	h, ok := p.headers[headerName]
	if !ok {
		return place{}, fmt.Errorf("no header %q", headerName)
	}
	f, ok := p.types[h].index[name]
	if !ok {
		return place{}, fmt.Errorf("header %s has no field %q", headerName, name)
	}
	return place{h, f}, nil
}

// valid is the field name of a header's validity.
const valid = "$valid$"

// field returns the place and the type of a field that is written ["header", "field"].
func (p *simpleSwitch) field(raw json.RawMessage) (place, fieldType, error) {
	var names [2]string
	if err := json.Unmarshal(raw, &names); err != nil {
		return place{}, fieldType{}, fmt.Errorf("field %s: %w", raw, err)
	}
	if names[1] == valid {
		h, ok := p.headers[names[0]]
		if !ok {
			return place{}, fieldType{}, fmt.Errorf("no header %q", names[0])
		}
		return place{h, -1}, fieldType{bits: 1}, nil
	}
	at, err := p.find(names[0], names[1])
	if err != nil {
		return at, fieldType{}, err
	}
	return at, p.types[at.header].fields[at.field], nil
}

// headerOf returns a header by its name.
func (p *simpleSwitch) headerOf(raw json.RawMessage) (int, error) {
	var name string
	if err := json.Unmarshal(raw, &name); err != nil {
		return 0, err
	}
	h, ok := p.headers[name]
	if !ok {
		return 0, fmt.Errorf("no header %q", name)
	}
	return h, nil
}

// loadState creates registers and counters, all 0.
func (p *simpleSwitch) loadState(c *configuration) error {
	for _, r := range c.Registers {
		p.registers[r.Name] = &register{cells: make([]*big.Int, r.Size), bits: r.Width}
	}
	for _, n := range c.Counters {
		p.counters[n.Name] = make([]uint64, n.Size)
	}
	return nil
}

// loadFieldLists finds the fields that are preserved when a frame is resubmitted.
func (p *simpleSwitch) loadFieldLists(c *configuration) error {
	for _, l := range c.FieldLists {
		for _, e := range l.Elements {
			at, _, err := p.field(e.Value)
			if err != nil {
				return fmt.Errorf("field list %d: %w", l.ID, err)
			}
			p.kept[l.ID] = append(p.kept[l.ID], at)
		}
	}
	return nil
}

// loadCalculations compiles the lists of fields that checksums are over.
func (p *simpleSwitch) loadCalculations(c *configuration) error {
	for _, calc := range c.Calculations {
		if calc.Algo != "csum16" {
			return fmt.Errorf("calculation %s: no algorithm %q", calc.Name, calc.Algo)
		}
		var parts []func(f *frame, b *bitString)
		for _, in := range calc.Input {
			switch in.Type {
			case "field":
				at, t, err := p.field(in.Value)
				if err != nil {
					return err
				}
				parts = append(parts, func(f *frame, b *bitString) {
					h := &f.headers[at.header]
					switch {
					case !h.valid && !p.types[at.header].metadata: // the header is not valid
					case t.bits < 0:
						b.append(f.get(at), h.bits[at.field])
					default:
						b.append(truncated(f.get(at), t.bits), t.bits)
					}
				})
			case "hexstr":
				n, err := hexNumber(in.Value)
				if err != nil {
					return err
				}
				parts = append(parts, func(_ *frame, b *bitString) { b.append(n, in.Width) })
			default:
				return fmt.Errorf("calculation %s: no input of type %q", calc.Name, in.Type)
			}
		}
		p.sums[calc.Name] = func(f *frame) []byte {
			var b bitString
			for _, part := range parts {
				part(f, &b)
			}
			return b.bytes()
		}
	}
	return nil
}

// loadChecksums compiles the verification of checksums.
func (p *simpleSwitch) loadChecksums(c *configuration) error {
	for _, sum := range c.Checksums {
		at, _, err := p.field(sum.Target)
		if err != nil {
			return err
		}
		calculation, ok := p.sums[sum.Calculation]
		if !sum.Verify || sum.Condition == nil || !ok {
			return fmt.Errorf("checksum %s is not one that is verified under a condition", sum.Calculation)
		}
		condition, err := p.expression(sum.Condition)
		if err != nil {
			return err
		}
		p.checks = append(p.checks, func(f *frame) bool {
			return condition(f).Sign() == 0 || f.get(at).Uint64() == checksum(calculation(f))
		})
	}
	return nil
}

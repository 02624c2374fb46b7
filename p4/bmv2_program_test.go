// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"sync"
)

// switchProgram is a program that p4c has compiled for v1model, as functions that run like bmv2's
// simple_switch. It supports what Libra's program uses; an error names anything else. It has no
// state, so that switches share it.
//
// The format is that of the device configuration, "BMv2 JSON" (docs/JSON_format.md in the
// repository of bmv2), version 2.23.
type switchProgram struct {
	types         []headerType
	headers       map[string]int
	errors        map[string]num
	start         *parseState
	order         []int
	registers     []registerType
	registerIndex map[string]int
	counters      []int // cells of each
	counterIndex  map[string]int
	sums          map[string]func(f *frame) []byte
	kept          map[int][]place // field lists
	actions       map[int]*switchAction
	checks        []func(f *frame) bool // of checksums: whether they are right
	pipelines     map[string]*node      // by name: where they start
	tables        []*tableType
	fresh         frame // as it enters the parser

	parserError, checksumError, packetLength, ingressPort, egressSpec, egressPort, egressRid, group place
}

type headerType struct {
	name     string
	metadata bool
	fields   []fieldType
	index    map[string]int
	bits     int  // of the fields, except one of any length
	varies   bool // there is such a field
	first    place
}

type fieldType struct {
	name   string
	bits   int // -1 if the frame has the length
	signed bool
}

type registerType struct{ size, bits int }

// loadedPrograms are the programs of the process, because most tests load the same one.
var loadedPrograms struct {
	sync.Mutex
	by map[[sha256.Size]byte]*switchProgram
}

// loadProgram compiles a device configuration, once.
func loadProgram(device []byte) (*switchProgram, error) {
	l := &loadedPrograms
	l.Lock()
	defer l.Unlock()
	digest := sha256.Sum256(device)
	if p := l.by[digest]; p != nil {
		return p, nil
	}
	var c configuration
	if err := json.Unmarshal(device, &c); err != nil {
		return nil, fmt.Errorf("bmv2: device configuration: %w", err)
	}
	p := &switchProgram{
		headers: make(map[string]int), errors: make(map[string]num),
		registerIndex: make(map[string]int), counterIndex: make(map[string]int),
		sums: make(map[string]func(*frame) []byte), kept: make(map[int][]place),
		actions: make(map[int]*switchAction), pipelines: make(map[string]*node),
	}
	for _, load := range []func(*configuration) error{
		p.loadHeaders, p.loadFresh, p.loadExterns, p.loadCalculations, p.loadChecksums, p.loadParser, p.loadFieldLists, p.loadActions, p.loadPipelines,
	} {
		if err := load(&c); err != nil {
			return nil, fmt.Errorf("bmv2: %w", err)
		}
	}
	if l.by == nil {
		l.by = make(map[[sha256.Size]byte]*switchProgram)
	}
	l.by[digest] = p
	return p, nil
}

func (p *switchProgram) loadHeaders(c *configuration) error {
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
			switch {
			case ft.bits > 128 || ft.bits < 0 && h.varies:
				return fmt.Errorf("header type %s: field %s has more than 128 bits, or two have any length", t.Name, ft.name)
			case ft.bits < 0:
				h.varies = true
			default:
				h.bits += ft.bits
			}
			h.index[ft.name] = len(h.fields)
			h.fields = append(h.fields, ft)
		}
		kinds[t.Name] = h
	}
	next := place(0)
	for _, h := range c.Headers {
		t := kinds[h.Type]
		t.name, t.metadata, t.first = h.Name, h.Metadata, next
		next += place(len(t.fields))
		p.headers[h.Name] = len(p.types)
		p.types = append(p.types, t)
	}
	for _, e := range c.Errors {
		var name string
		var n uint64
		if err := json.Unmarshal(e[0], &name); err != nil {
			return err
		}
		if err := json.Unmarshal(e[1], &n); err != nil {
			return err
		}
		p.errors[name] = num{lo: n}
	}
	for name, at := range map[string]*place{
		"parser_error": &p.parserError, "checksum_error": &p.checksumError, "packet_length": &p.packetLength, "ingress_port": &p.ingressPort,
		"egress_spec": &p.egressSpec, "egress_port": &p.egressPort, "egress_rid": &p.egressRid, "mcast_grp": &p.group,
	} {
		var err error
		if *at, _, err = p.field([]any{"standard_metadata", name}); err != nil {
			return err
		}
	}
	return nil
}

// loadFresh creates the initial state of all frames.
func (p *switchProgram) loadFresh(*configuration) error {
	garbage := new(big.Int).SetBytes([]byte("undefined undefined undefined"))
	p.fresh = frame{limit: -1, valid: make([]bool, len(p.types)), rest: make([][]byte, len(p.types))}
	for i, t := range p.types {
		p.fresh.valid[i] = t.metadata
		for _, ft := range t.fields {
			v := zero
			if !t.metadata { // the fields of an invalid header are undefined, so they are not 0
				v = numOf(garbage.Bytes()).truncated(max(ft.bits, 0))
			}
			p.fresh.fields = append(p.fresh.fields, v)
		}
	}
	return nil
}

// valid is the field name of a header's validity.
const valid = "$valid$"

// field returns the place and the type of a field that is written ["header", "field"].
func (p *switchProgram) field(v any) (place, fieldType, error) {
	names, _ := v.([]any)
	if len(names) != 2 {
		return 0, fieldType{}, fmt.Errorf("field %v", v)
	}
	h, err := p.headerOf(names[0])
	if err != nil {
		return 0, fieldType{}, err
	}
	name, _ := names[1].(string)
	if name == valid {
		return validity(h), fieldType{bits: 1}, nil
	}
	t := &p.types[h]
	i, ok := t.index[name]
	if !ok {
		return 0, fieldType{}, fmt.Errorf("header %s has no field %q", t.name, name)
	}
	return t.first + place(i), t.fields[i], nil
}

// headerOf returns a header by its name.
func (p *switchProgram) headerOf(v any) (int, error) {
	name, _ := v.(string)
	h, ok := p.headers[name]
	if !ok {
		return 0, fmt.Errorf("no header %v", v)
	}
	return h, nil
}

// loadExterns numbers registers and counters.
func (p *switchProgram) loadExterns(c *configuration) error {
	for _, r := range c.Registers {
		p.registerIndex[r.Name] = len(p.registers)
		p.registers = append(p.registers, registerType{size: r.Size, bits: r.Width})
	}
	for _, n := range c.Counters {
		p.counterIndex[n.Name] = len(p.counters)
		p.counters = append(p.counters, n.Size)
	}
	return nil
}

// loadFieldLists finds the fields that are preserved when a frame is resubmitted.
func (p *switchProgram) loadFieldLists(c *configuration) error {
	for _, l := range c.FieldLists {
		for _, e := range l.Elements {
			at, t, err := p.field(e.Value)
			if err != nil || at < 0 || t.bits < 0 {
				return fmt.Errorf("field list %d: %v is not preserved (%w)", l.ID, e.Value, err)
			}
			p.kept[l.ID] = append(p.kept[l.ID], at)
		}
	}
	return nil
}

// loadCalculations compiles the lists of fields that checksums are over.
func (p *switchProgram) loadCalculations(c *configuration) error {
	for _, calc := range c.Calculations {
		if calc.Algo != "csum16" {
			return fmt.Errorf("calculation %s: no algorithm %q", calc.Name, calc.Algo)
		}
		var parts []func(f *frame, w *bitWriter)
		for _, in := range calc.Input {
			switch in.Type {
			case "field":
				at, t, err := p.field(in.Value)
				if err != nil {
					return err
				}
				h, err := p.headerOf(in.Value.([]any)[0])
				if err != nil {
					return err
				}
				parts = append(parts, func(f *frame, w *bitWriter) {
					switch {
					case !f.valid[h]:
					case t.bits < 0:
						w.putBytes(f.rest[h])
					default:
						w.put(f.get(at), t.bits)
					}
				})
			case "hexstr":
				n, err := hexNumber(in.Value)
				if err != nil {
					return err
				}
				parts = append(parts, func(_ *frame, w *bitWriter) { w.put(n, in.Width) })
			default:
				return fmt.Errorf("calculation %s: no input of type %q", calc.Name, in.Type)
			}
		}
		p.sums[calc.Name] = func(f *frame) []byte {
			w := bitWriter{data: f.in.summed[:0]}
			for _, part := range parts {
				part(f, &w)
			}
			f.in.summed = w.data
			return w.data
		}
	}
	return nil
}

// loadChecksums compiles the verification of checksums.
func (p *switchProgram) loadChecksums(c *configuration) error {
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
			return condition(f) == zero || f.get(at).lo == checksum(calculation(f))
		})
	}
	return nil
}

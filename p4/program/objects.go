// SPDX-License-Identifier: Apache-2.0

package program

import (
	_ "embed"
	"encoding/json"
	"fmt"

	config "github.com/p4lang/p4runtime/go/p4/config/v1"
)

// Kinds of objects.
const (
	KindTable         = "table"
	KindConstantTable = "constant table" // its entries are in the program
	KindRegister      = "register"
	KindCounter       = "counter"
)

// Object is a table, a register or a counter of a program, as seen by a control plane.
type Object struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	Size    int      `json:"size"`            // entries or cells
	Width   int      `json:"width,omitempty"` // bits of a cell
	Keys    []Datum  `json:"keys,omitempty"`
	Actions []Action `json:"actions,omitempty"`
	Default string   `json:"default,omitempty"` // action
}

// Datum is a key or a parameter.
type Datum struct {
	Name  string `json:"name"`
	Match string `json:"match,omitempty"` // of a key: exact or ternary
	Width int    `json:"width"`           // bits
}

// Action is an action of a table's entries.
type Action struct {
	Name string  `json:"name"`
	Data []Datum `json:"data,omitempty"`
}

// tnaTables is the description for a control plane of Tofino; a test compares it with the program.
//
//go:embed libra_tna.tables.json
var tnaTables []byte

// TNAObjects returns the objects of the program for TNA.
func TNAObjects() ([]Object, error) {
	var all []Object
	if err := json.Unmarshal(tnaTables, &all); err != nil {
		return nil, fmt.Errorf("p4: tables of the TNA program: %w", err)
	}
	return all, nil
}

// Objects returns the objects of a compiled program, from its P4Info.
func (p *Compiled) Objects() ([]Object, error) {
	const counterBits = 64
	actions := make(map[uint32]Action)
	for _, a := range p.Info.Actions {
		action := Action{Name: a.Preamble.Alias}
		for _, d := range a.Params {
			action.Data = append(action.Data, Datum{Name: d.Name, Width: int(d.Bitwidth)})
		}
		actions[a.Preamble.Id] = action
	}
	var all []Object
	for _, t := range p.Info.Tables {
		o := Object{Name: t.Preamble.Name, Kind: KindTable, Size: int(t.Size)}
		if t.IsConstTable {
			o.Kind = KindConstantTable
		}
		for _, k := range t.MatchFields {
			d := Datum{Name: k.Name, Match: "exact", Width: int(k.Bitwidth)}
			if k.GetMatchType() != config.MatchField_EXACT {
				d.Match = "ternary"
			}
			o.Keys = append(o.Keys, d)
		}
		for _, a := range t.ActionRefs {
			o.Actions = append(o.Actions, actions[a.Id])
		}
		all = append(all, o)
	}
	for _, r := range p.Info.Registers {
		width := int(r.TypeSpec.GetBitstring().GetBit().GetBitwidth())
		if width == 0 {
			return nil, fmt.Errorf("p4: register %s: cells that are no bit strings", r.Preamble.Name)
		}
		all = append(all, Object{Name: r.Preamble.Name, Kind: KindRegister, Size: int(r.Size), Width: width})
	}
	for _, c := range p.Info.Counters {
		all = append(all, Object{Name: c.Preamble.Name, Kind: KindCounter, Size: int(c.Size), Width: counterBits})
	}
	return all, nil
}

// SPDX-License-Identifier: Apache-2.0

package tofino

import (
	"fmt"
	"strings"

	"github.com/libra-ina/libra/p4/program"
	"github.com/libra-ina/libra/wire"
)

// LUT is what lut arithmetic would take of a Tofino, with the tables of the program for
// v1model: one copy, through which a frame goes once for each of its lanes, or oftener if
// an addition has more steps than a pipeline has stages.
type LUT struct {
	Tables         int `json:"tables"`
	Entries        int `json:"table_entries"`
	SRAM           int `json:"sram_blocks"`
	TCAM           int `json:"tcam_blocks"`
	Stages         int `json:"stages"`           // stages of one addition, behind the slot's register
	Passes         int `json:"passes_of_lane"`   // passes of a lane, by the number of stages
	Recirculations int `json:"recirculations"`   // recirculations of a frame with all lanes
	Copies         int `json:"entries_of_lanes"` // if each lane had its own tables
}

// lutPath is where the tables are in the program.
const lutPath = ".add_lut."

// lutSteps are those of an addition, in p4/program/v1model/lut.p4.
var lutSteps = []step{
	{name: "larger and smaller", units: 1, tables: 3},
	{name: "parts of the logarithms", after: []string{"larger and smaller"}, units: 8, tables: 1, objects: []string{
		"of_larger.epo", "of_larger.log_m", "of_larger.log_delta", "of_larger.log_mln2",
		"of_smaller.epo", "of_smaller.log_m", "of_smaller.log_delta", "of_smaller.log_mln2",
	}},
	{name: "difference of significands", after: []string{"larger and smaller"}, units: 1, tables: 2},
	{name: "keys of exp", after: []string{"parts of the logarithms"}, units: 1, tables: 2},
	{name: "leading one", after: []string{"difference of significands"}, units: 1, tables: 1, objects: []string{"norm"}},
	{name: "exp", after: []string{"keys of exp"}, units: 2, tables: 1,
		objects: []string{"of_larger.exp", "of_smaller.exp"}},
	{name: "logarithms", after: []string{"exp"}, units: 1, tables: 2},
	{name: "theta", after: []string{"logarithms"}, units: 1, tables: 2},
	{name: "octave of theta", after: []string{"theta"}, units: 1, tables: 1},
	{name: "step to the sum", after: []string{"octave of theta"}, units: 2, tables: 1, objects: []string{"mi", "sub"}},
	{name: "logarithm of the sum", after: []string{"step to the sum"}, units: 1, tables: 2},
	{name: "power of two", after: []string{"logarithm of the sum"}, units: 1, tables: 2, objects: []string{"final"}},
	{name: "sum", after: []string{"power of two", "leading one"}, units: 1, tables: 3},
}

// lut derives what lut arithmetic would take from the objects of the program for v1model.
func lut(objects []program.Object) (l LUT, err error) {
	memories := make(map[string]memory)
	for _, o := range objects {
		at := strings.Index(o.Name, lutPath)
		if at < 0 {
			continue
		}
		m := blocks(o)
		memories[o.Name[at+len(lutPath):]] = m
		l.Tables++
		l.Entries += o.Size
		l.SRAM += m.sram
		l.TCAM += m.tcam
	}
	placed, err := place(lutSteps, memories)
	if err != nil {
		return l, fmt.Errorf("tofino: lut: %w", err)
	}
	l.Stages = len(placed)
	l.Passes = ceil(l.Stages, stages)
	// The first pass is that of the checks, the last one that of the answer.
	l.Recirculations = wire.Lanes*l.Passes + 1
	l.Copies = wire.Lanes * l.Entries
	return l, nil
}

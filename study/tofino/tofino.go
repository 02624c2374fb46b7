// SPDX-License-Identifier: Apache-2.0

// Package tofino estimates what the switch programs would take of a Tofino, beside the paper's
// figures (§5.7). Sizes come from the compiled program's P4Info and from the description
// of the program for TNA; stages, blocks of memory and the header vector are derived
// from them by the rules that are written here, because no compiler for Tofino has seen
// the programs.
package tofino

import (
	"fmt"
	"strings"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/p4/program"
	"github.com/libra-ina/libra/wire"
)

// Report is what the programs take. It marshals to one JSON object.
type Report struct {
	Programs []Program `json:"programs"` // the paper's first
	Stages   []Stage   `json:"stages"`   // stages of the program for TNA
	Left     Left      `json:"left"`
	LUT      LUT       `json:"lut"` // what lut arithmetic would take beside that
}

// Program is one program's sizes. 0 means that there is no such figure.
type Program struct {
	Name           string  `json:"name"`
	Registers      int     `json:"registers"`
	RegisterBytes  float64 `json:"register_bytes"`
	Entries        int     `json:"table_entries"`
	Constant       int     `json:"constant_table_room"`
	Cells          int     `json:"counter_cells"`
	CounterBytes   float64 `json:"counter_bytes"`
	MemoryBytes    float64 `json:"memory_bytes"` // the paper's; ours: SRAM blocks
	Stages         int     `json:"stages"`
	SALUs          int     `json:"stateful_alus"`
	VLIW           int     `json:"vliw_instructions"`
	Hash           int     `json:"hash_units"`
	TCAM           int     `json:"tcam_blocks"`
	PHV            int     `json:"phv_bits"`
	Recirculations int     `json:"recirculations"` // largest number for one frame
}

// Left is what the program for TNA leaves to others in the stages of a pipeline.
type Left struct {
	Stages int `json:"stages_untouched"`
	Tables int `json:"logical_tables"`
	SALUs  int `json:"stateful_alus"`
	SRAM   int `json:"sram_blocks"`
	TCAM   int `json:"tcam_blocks"`
	PHV    int `json:"phv_bits"`
}

// paper is §5.7, for 30,000 hot parameters: at most one recirculation (§4).
var paper = Program{Name: "paper (Tofino, measured)", MemoryBytes: 656.5 * kilobyte, Stages: 9, VLIW: 37, Hash: 16,
	Recirculations: 1}

// Bits of the header vector that the program for TNA needs. An IPv6 header is read, and
// nothing of it is used.
const (
	headerBits = 112 + 32 + 160 + 64 + 96 + 64 + 1088 // Ethernet to stripe, with the ERROR's body
	laneBits   = 22 * (16 + 16)                       // row, and what is left of the slots
	stateBits  = 320                                  // job, sender, verdict, cells of counters
)

// Run computes the report.
func Run() (*Report, error) {
	compiled, err := program.Default()
	if err != nil {
		return nil, err
	}
	wide, err := compiled.Objects()
	if err != nil {
		return nil, err
	}
	narrow, err := program.TNAObjects()
	if err != nil {
		return nil, err
	}
	v1model, tna := sizes("v1model (bmv2)", wide), sizes("TNA (Tofino 1)", narrow)
	// A frame of lut arithmetic is resubmitted for each lane, to clear the row of the next
	// round, and for the answer.
	v1model.Recirculations = wire.Lanes + 2

	memories := make(map[string]memory)
	for _, o := range narrow {
		memories[o.Name[strings.LastIndex(o.Name, ".")+1:]] = blocks(o)
	}
	placed, err := place(steps, memories)
	if err != nil {
		return nil, err
	}
	tables, err := lut(wide)
	if err != nil {
		return nil, err
	}
	r := &Report{Stages: placed, LUT: tables, Left: Left{
		Stages: max(stages-len(placed), 0), Tables: stages * tablesOfStage, SALUs: stages * salusOfStage,
		SRAM: stages * sramOfStage, TCAM: stages * tcamOfStage, PHV: phvBits,
	}}
	sram := 0
	for _, g := range placed {
		tna.SALUs += g.SALUs
		tna.VLIW += g.Tables
		tna.TCAM += g.TCAM
		sram += g.SRAM
		r.Left.Tables -= g.Tables
	}
	tna.Stages = len(placed)
	tna.MemoryBytes = float64(sram) * blockBits / 8
	tna.Hash = tna.Registers + 6 // each register's and each counter's index
	tna.PHV = headerBits + laneBits + stateBits
	r.Left.SALUs -= tna.SALUs
	r.Left.SRAM -= sram
	r.Left.TCAM -= tna.TCAM
	r.Left.PHV -= tna.PHV
	r.Programs = []Program{paper, v1model, tna}
	return r, nil
}

// sizes adds up what a program declares.
func sizes(name string, objects []program.Object) Program {
	p := Program{Name: name}
	for _, o := range objects {
		bytes := float64(o.Size) * float64(o.Width) / 8
		switch o.Kind {
		case program.KindTable:
			p.Entries += o.Size
		case program.KindConstantTable:
			p.Constant += o.Size
		case program.KindRegister:
			p.Registers++
			p.RegisterBytes += bytes
		case program.KindCounter:
			p.Cells += o.Size
			p.CounterBytes += bytes
		}
	}
	return p
}

// blocks returns the memory of an object: cells side by side and a spare block for
// writing; rows of TCAM, with the parameters in SRAM; or a hash table of four ways,
// whose words hold key and parameters.
func blocks(o program.Object) memory {
	if o.Kind == program.KindRegister || o.Kind == program.KindCounter {
		return memory{sram: ceil(o.Size*o.Width, blockBits) + 1}
	}
	key, data, ternary := 0, 0, false
	for _, k := range o.Keys {
		key += k.Width
		ternary = ternary || k.Match == "ternary"
	}
	for _, a := range o.Actions {
		bits := 0
		for _, d := range a.Data {
			bits += d.Width
		}
		data = max(data, bits)
	}
	if ternary {
		m := memory{tcam: ceil(key, tcamRowBits) * ceil(o.Size, tcamRows)}
		m.sram = ceil(data, sramWordBits) * ceil(o.Size, sramWords)
		return m
	}
	return memory{sram: ceil(key+data, sramWordBits) * max(waysOfHashTable, ceil(o.Size, sramWords))}
}

func ceil(n, unit int) int { return (n + unit - 1) / unit }

// Print writes the report for people.
func (r *Report) Print(out *report.Printer) {
	some := func(n int) any {
		if n == 0 {
			return "–"
		}
		return n
	}
	kb := func(bytes float64) any {
		if bytes == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", bytes/kilobyte)
	}
	row := func(name, source string, value func(p Program) any) []any {
		cells := []any{name}
		for _, p := range r.Programs {
			cells = append(cells, value(p))
		}
		return append(cells, source)
	}
	header := []string{"what"}
	for _, p := range r.Programs {
		header = append(header, p.Name)
	}
	out.Table("What the switch programs take", append(header, "ours is"), [][]any{
		row("registers", "declared", func(p Program) any { return some(p.Registers) }),
		row("memory of registers, KB", "declared", func(p Program) any { return kb(p.RegisterBytes) }),
		row("table entries", "declared", func(p Program) any { return some(p.Entries) }),
		row("room in tables with constant entries", "declared", func(p Program) any { return some(p.Constant) }),
		row("counter cells", "declared", func(p Program) any { return some(p.Cells) }),
		row("memory of counters, KB", "declared", func(p Program) any { return kb(p.CounterBytes) }),
		row("on-chip memory, KB", "derived", func(p Program) any { return kb(p.MemoryBytes) }),
		row(fmt.Sprintf("stages of %d", stages), "derived", func(p Program) any { return some(p.Stages) }),
		row(fmt.Sprintf("stateful ALUs of %d", stages*salusOfStage), "derived", func(p Program) any { return some(p.SALUs) }),
		row(fmt.Sprintf("VLIW instructions of %d", stages*vliwOfStage), "derived", func(p Program) any {
			return some(p.VLIW)
		}),
		row("hash units (the paper's: of 32)", "derived", func(p Program) any { return some(p.Hash) }),
		row(fmt.Sprintf("TCAM blocks of %d", stages*tcamOfStage), "derived", func(p Program) any { return some(p.TCAM) }),
		row(fmt.Sprintf("header vector, bits of %d", phvBits), "derived", func(p Program) any { return some(p.PHV) }),
		row("recirculations or resubmissions, at most", "by construction", func(p Program) any { return p.Recirculations }),
	})
	out.Table("Stages of the program for TNA, by dependency",
		[]string{"stage", "steps", "logical tables of 16", "stateful ALUs of 4", "SRAM blocks of 80", "TCAM blocks of 24"},
		experiment.Pick(r.Stages, func(g Stage) []any {
			return []any{g.Number, strings.Join(g.Steps, "; "), g.Tables, g.SALUs, g.SRAM, g.TCAM}
		}))
	out.Note("Left for ordinary switching: %d untouched stages; in the others %d logical tables, %d stateful ALUs, %d SRAM blocks, "+
		"%d TCAM blocks; %d bits of the header vector.", r.Left.Stages, r.Left.Tables, r.Left.SALUs, r.Left.SRAM,
		r.Left.TCAM, r.Left.PHV)
	out.Note("Lut arithmetic on TNA would take %d tables with %d entries (%d if each lane had its own), %d SRAM and %d TCAM blocks, %d stages for an addition, "+
		"which makes %d passes for a lane, and %d recirculations of a frame with %d pairs. Derived; the entries are declared (v1model).",
		r.LUT.Tables, r.LUT.Entries, r.LUT.Copies, r.LUT.SRAM, r.LUT.TCAM, r.LUT.Stages, r.LUT.Passes, r.LUT.Recirculations,
		wire.Lanes)
	out.Note("Declared: read from the compiled program's P4Info (v1model) and from the description of the program (TNA). Derived: a stage for each step " +
		"that waits for another, within a stage's limits, and blocks of memory by the rules of package study/tofino; no compiler for Tofino has seen the program. " +
		"A software switch has no stages. The paper's on-chip memory is that of its tables and registers for 30,000 parameters and lut arithmetic; " +
		"its figures are measured with Intel's tools (§5.7).")
}

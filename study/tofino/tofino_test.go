// SPDX-License-Identifier: Apache-2.0

package tofino

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"
	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/p4/program"
)

func mustRun(t *testing.T) *Report {
	t.Helper()
	r, err := Run()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// What docs/p4.md says of the program for TNA.
func TestProgramFitsTofino(t *testing.T) {
	r := mustRun(t)
	if len(r.Stages) != stages {
		t.Errorf("%d stages, want all %d", len(r.Stages), stages)
	}
	salus := 0
	for _, g := range r.Stages {
		salus += g.SALUs
		if g.Tables > tablesOfStage || g.SALUs > salusOfStage || g.SRAM > sramOfStage || g.TCAM > tcamOfStage {
			t.Errorf("stage %d holds more than a stage does: %+v", g.Number, g)
		}
	}
	tna := r.Programs[2]
	if salus != 23 || tna.SALUs != 23 || tna.Registers != 23 || tna.Recirculations != 0 {
		t.Errorf("%d stateful ALUs in the stages, %+v: want one for each lane and one for the filter, and no recirculation", salus, tna)
	}
	if got, want := tna.RegisterBytes, (22*64.0+512)*kilobyte; got != want {
		t.Errorf("registers of %v bytes, want %v", got, want)
	}
	if r.Left.PHV < 0 || r.Left.SRAM < 0 || r.Left.SALUs != 25 {
		t.Errorf("left: %+v", r.Left)
	}
	if v1 := r.Programs[1]; v1.Registers != 25 || v1.RegisterBytes != (22*128+2048+96)*kilobyte+3584 || v1.Cells != 42_016 || v1.Recirculations != 24 {
		t.Errorf("v1model: %+v", v1)
	}
}

// docs/p4.md has the report's figures.
func TestPageHasTheFigures(t *testing.T) {
	text, err := os.ReadFile("../../docs/p4.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	r := mustRun(t)
	tna := r.Programs[2]
	for _, want := range []string{
		fmt.Sprintf("| stages | 9 | %d | %d |", tna.Stages, stages),
		fmt.Sprintf("| stateful ALUs | – | %d | %d |", tna.SALUs, stages*salusOfStage),
		fmt.Sprintf("| on-chip memory | 656.5 KB | %s KB | %s KB |", humanize.Comma(int64(tna.MemoryBytes/kilobyte)), humanize.Comma(stages*sramOfStage*blockBits/8/kilobyte)),
		fmt.Sprintf("| VLIW instructions | 37 | %d | %d |", tna.VLIW, stages*vliwOfStage),
		fmt.Sprintf("| TCAM blocks | – | %d | %d |", tna.TCAM, stages*tcamOfStage),
		fmt.Sprintf("| header vector | – | %s bits | %s bits |", humanize.Comma(int64(tna.PHV)), humanize.Comma(phvBits)),
		fmt.Sprintf("%d of %d SRAM blocks, %d TCAM blocks and %d of %d logical tables",
			r.Left.SRAM, stages*sramOfStage, r.Left.TCAM, r.Left.Tables, stages*tablesOfStage),
		fmt.Sprintf("%d tables with %s entries, as on bmv2: %d SRAM blocks, of %d that are left, and %d TCAM block.",
			r.LUT.Tables, humanize.Comma(int64(r.LUT.Entries)), r.LUT.SRAM, r.Left.SRAM, r.LUT.TCAM),
		fmt.Sprintf("An addition takes %d stages, so a lane takes %d passes, and a frame of 22 pairs %d recirculations.",
			r.LUT.Stages, r.LUT.Passes, r.LUT.Recirculations),
		fmt.Sprintf("A copy of the tables for each lane takes %s entries", humanize.Comma(int64(r.LUT.Copies))),
	} {
		if !strings.Contains(page, want) {
			t.Errorf("docs/p4.md has no %q", want)
		}
	}
}

func TestBlocks(t *testing.T) {
	exact := func(bits int) []program.Datum { return []program.Datum{{Match: "exact", Width: bits}} }
	for name, c := range map[string]struct {
		object program.Object
		want   memory
	}{
		"full block and the spare": {program.Object{Kind: program.KindRegister, Size: 4096, Width: 32}, memory{sram: 2}},
		"one cell more":            {program.Object{Kind: program.KindCounter, Size: 2049, Width: 64}, memory{sram: 3}},
		"four ways":                {program.Object{Kind: program.KindTable, Size: 64, Keys: exact(16)}, memory{sram: 4}},
		"two words wide": {
			program.Object{Kind: program.KindTable, Size: 64, Keys: exact(100), Actions: []program.Action{{}, {Data: exact(29)}}}, memory{sram: 8},
		},
		"eight words deep": {program.Object{Kind: program.KindTable, Size: 8192, Keys: exact(16)}, memory{sram: 8}},
		"TCAM": {
			program.Object{Kind: program.KindConstantTable, Size: 513, Keys: []program.Datum{{Match: "exact", Width: 44}, {Match: "ternary", Width: 1}}},
			memory{tcam: 4},
		},
	} {
		if got := blocks(c.object); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The steps belong to the program: one object more or less is noticed.
func TestStepsBelongToTheProgram(t *testing.T) {
	if _, err := place(steps, map[string]memory{}); err == nil || !strings.Contains(err.Error(), "the program has no destinations") {
		t.Errorf("no objects: %v", err)
	}
	all, err := program.TNAObjects()
	if err != nil {
		t.Fatal(err)
	}
	memories := map[string]memory{"mirrors": {}}
	for _, o := range all {
		memories[o.Name[strings.LastIndex(o.Name, ".")+1:]] = blocks(o)
	}
	if _, err := place(steps, memories); err == nil || !strings.Contains(err.Error(), "no step uses mirrors") {
		t.Errorf("one object too many: %v", err)
	}
}

// A step stands behind all that it waits for.
func TestStepsWait(t *testing.T) {
	r := mustRun(t)
	first, last := map[string]int{}, map[string]int{}
	for _, g := range r.Stages {
		for _, s := range g.Steps {
			if first[s] == 0 {
				first[s] = g.Number
			}
			last[s] = g.Number
		}
	}
	for _, s := range steps {
		for _, earlier := range s.after {
			if first[s.name] <= last[earlier] {
				t.Errorf("%q is in stage %d, and waits for %q in stage %d", s.name, first[s.name], earlier, last[earlier])
			}
		}
	}
}

func TestReport(t *testing.T) {
	r := mustRun(t)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, &back); diff != "" {
		t.Errorf("report changes as JSON: %s", diff)
	}
	var out strings.Builder
	if err := experiment.WriteTables(&out, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"656.5", "duplicate filter", "stateful ALUs of 48", "Left for ordinary switching", "Lut arithmetic on TNA"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("tables do not contain %q:\n%s", want, out.String())
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package tofino

import "fmt"

// Tofino 1, as the sources of p4c's Tofino backend and the paper's §5.7 have it.
const (
	stages          = 12
	tablesOfStage   = 16 // logical tables
	salusOfStage    = 4  // stateful ALUs
	vliwOfStage     = 32
	sramOfStage     = 80 // blocks of 1,024 words of 128 bits
	tcamOfStage     = 24 // blocks of 512 rows of 44 bits
	phvBits         = 4096
	sramWords       = 1024
	sramWordBits    = 128
	tcamRows        = 512
	tcamRowBits     = 44
	kilobyte        = 1024
	blockBits       = sramWords * sramWordBits
	waysOfHashTable = 4
)

// step is a part of the program for TNA that waits for others: a stage reads what
// earlier stages wrote. It has units of some logical tables each, which may be in
// different stages.
type step struct {
	name    string
	after   []string
	units   int
	tables  int      // logical tables of a unit: tables, and branches that write something
	salus   int      // stateful ALUs of a unit
	objects []string // objects of the program; %d stands for the unit
}

// steps are those of p4/program/libra_tna.p4. They are in the order in which they are
// given room.
var steps = []step{
	{name: "whose frame it is", units: 1, tables: 1, objects: []string{"destinations"}},
	{name: "job and sender", units: 1, tables: 2, objects: []string{"jobs", "senders"}},
	{name: "ranks against limits", units: 1, tables: 1, objects: []string{"limits"}},
	{name: "pairs, low half", units: 1, tables: 1, objects: []string{"low_pairs"}},
	{name: "length it should have", units: 1, tables: 1},
	{name: "verdict on header and body", after: []string{"job and sender"}, units: 1, tables: 15},
	{name: "length it lacks", after: []string{"length it should have"}, units: 1, tables: 1},
	{
		name: "forward, or damaged", units: 1, tables: 6, objects: []string{"hosts", "homes"},
		after: []string{"whose frame it is", "length it lacks", "verdict on header and body"},
	},
	{name: "rows", after: []string{"job and sender"}, units: 1, tables: 1},
	{name: "pairs, high half", after: []string{"pairs, low half"}, units: 1, tables: 1, objects: []string{"high_pairs"}},
	{name: "lanes that are not used", after: []string{"ranks against limits"}, units: 22, tables: 1},
	{name: "first fault", after: []string{"lanes that are not used"}, units: 1, tables: 1, objects: []string{"faults"}},
	{name: "duplicate filter", after: []string{"first fault", "forward, or damaged"}, units: 1, tables: 2, salus: 1,
		objects: []string{"seen"}},
	{name: "lanes", after: []string{"duplicate filter", "rows"}, units: 22, tables: 3, salus: 1,
		objects: []string{"slots%d"}},
	{name: "refusal of a rank", after: []string{"duplicate filter"}, units: 1, tables: 1},
	{name: "answer's headers", after: []string{"refusal of a rank"}, units: 1, tables: 4},
	{name: "what is counted", after: []string{"refusal of a rank", "pairs, high half"}, units: 1, tables: 3},
	{name: "counters", after: []string{"what is counted"}, units: 6, tables: 1, objects: []string{
		"events", "job_events", "applied", "saturated", "sender_events", "sender_applied",
	}},
}

// Stage is what one stage of the pipeline holds.
type Stage struct {
	Number int      `json:"number"` // number of the stage, from 1 on
	Steps  []string `json:"steps"`
	Tables int      `json:"logical_tables"`
	SALUs  int      `json:"stateful_alus"`
	SRAM   int      `json:"sram_blocks"`
	TCAM   int      `json:"tcam_blocks"`
}

// memory is how many blocks an object takes.
type memory struct{ sram, tcam int }

// place gives each step the first stages that are behind those that it waits for and
// have room. It takes the objects of the steps out of memories.
func place(steps []step, memories map[string]memory) ([]Stage, error) {
	var all []Stage
	last := make(map[string]int) // stage of a step's last unit, from 1 on
	for _, s := range steps {
		first := 1
		for _, earlier := range s.after {
			if last[earlier] == 0 {
				return nil, fmt.Errorf("tofino: step %q waits for %q, which is not before it", s.name, earlier)
			}
			first = max(first, last[earlier]+1)
		}
		for unit := range s.units {
			at := first
			var need memory
			for _, name := range s.unit(unit) {
				m, ok := memories[name]
				if !ok {
					return nil, fmt.Errorf("tofino: the program has no %s, which step %q uses", name, s.name)
				}
				delete(memories, name)
				need.sram += m.sram
				need.tcam += m.tcam
			}
			for at <= len(all) && !all[at-1].fits(s, need) {
				at++
			}
			for len(all) < at {
				all = append(all, Stage{Number: len(all) + 1})
			}
			all[at-1].add(s, need)
			last[s.name] = max(last[s.name], at)
		}
	}
	for name := range memories {
		return nil, fmt.Errorf("tofino: no step uses %s of the program", name)
	}
	return all, nil
}

// unit returns the names of the objects that a unit of a step uses.
func (s step) unit(i int) []string {
	switch {
	case s.units == 1:
		return s.objects
	case len(s.objects) == s.units:
		return s.objects[i : i+1]
	case len(s.objects) == 1:
		return []string{fmt.Sprintf(s.objects[0], i)}
	}
	return nil
}

func (g *Stage) fits(s step, need memory) bool {
	return g.Tables+s.tables <= tablesOfStage && g.SALUs+s.salus <= salusOfStage &&
		g.SRAM+need.sram <= sramOfStage && g.TCAM+need.tcam <= tcamOfStage
}

func (g *Stage) add(s step, need memory) {
	if len(g.Steps) == 0 || g.Steps[len(g.Steps)-1] != s.name {
		g.Steps = append(g.Steps, s.name)
	}
	g.Tables += s.tables
	g.SALUs += s.salus
	g.SRAM += need.sram
	g.TCAM += need.tcam
}

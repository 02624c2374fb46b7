package arithmetic

import (
	"unsafe"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/retransmit"
)

// Memory is the memory of an aggregator with one job of 30,000 hot parameters, in
// bytes (libra.txt §5.7).
type Memory struct {
	Name string `json:"name"`
	// Slots is one bank of sums. Tables are those of table lookup. Control is
	// the rest: duplicate filter, admission and counters.
	Slots   int `json:"slots"`
	Tables  int `json:"tables"`
	Control int `json:"control"`
	// Spare is the second bank, which is harvested while the first one fills.
	Spare int `json:"spare_bank"`
}

// Total returns the sum of all.
func (m Memory) Total() int { return m.Slots + m.Tables + m.Control + m.Spare }

// hotParameters is the number of hot parameters of libra.txt §5.7.
const hotParameters = 30_000

const kilobyte = 1024

// paperMemory is libra.txt §5.7.
var paperMemory = Memory{Name: "paper", Slots: 118 * kilobyte, Tables: lut.PaperBytes, Control: 130 * kilobyte}

// memory accounts for one job, by arithmetic.
func memory(c Config, tables lut.Budget) []Memory {
	perSender := int(unsafe.Sizeof(retransmit.Filter{}) +
		unsafe.Sizeof(aggregator.SenderConfig{}) + unsafe.Sizeof(aggregator.SenderCounters{}))
	control := c.Senders*perSender +
		int(unsafe.Sizeof(aggregator.JobConfig{})+unsafe.Sizeof(aggregator.JobCounters{})+unsafe.Sizeof(aggregator.Counters{}))
	rows := []Memory{paperMemory}
	add := func(a Arithmetic, slot, tables int) {
		bank := hotParameters * slot
		rows = append(rows, Memory{Name: string(a), Slots: bank, Tables: tables, Control: control, Spare: bank})
	}
	add(LUT, 4, tables.Total)
	add(Fixed, 4, 0)
	add(Exact, 8, 0)
	return rows
}

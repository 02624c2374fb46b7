// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/libra-ina/libra/simulation/world"
)

// Traffic counts the frames of lives.
type Traffic = world.Traffic

// Result is the summary of a life.
type Result struct {
	Lives     int           `json:"lives"`
	Steps     int64         `json:"steps"`         // turns of goroutines and events
	Virtual   time.Duration `json:"virtual_ns"`    // duration of the life in virtual time
	Digest    uint64        `json:"digest,string"` // of the trace
	Workers   int           `json:"workers"`       // lives of workers
	Crashes   int           `json:"crashes"`       // crashes of workers
	Evictions int           `json:"evictions"`
	Pauses    int           `json:"pauses"`
	Cancelled int           `json:"cancelled"` // calls that callers gave up
	Short     int           `json:"short"`     // calls of links that did less than they could
	Calls     int           `json:"calls"`
	Pushes    int           `json:"pushes"`
	Applied   int           `json:"applied"` // frames, once each
	Denied    int           `json:"denied"`  // frames refused for what a receiver held, once each
	Harvests  int           `json:"harvests"`
	Renumbers int           `json:"renumbers"` // renumberings of the store's rows
	ByNumber  int           `json:"by_number"` // frames with row numbers, once each
	Coded     int           `json:"coded"`     // frames with codes, once each
	Traffic   Traffic       `json:"traffic"`
}

// Add adds the summary of another life.
func (r *Result) Add(o Result) {
	r.Lives += o.Lives
	r.Steps += o.Steps
	r.Virtual += o.Virtual
	r.Digest ^= o.Digest
	r.Workers += o.Workers
	r.Crashes += o.Crashes
	r.Evictions += o.Evictions
	r.Pauses += o.Pauses
	r.Cancelled += o.Cancelled
	r.Short += o.Short
	r.Calls += o.Calls
	r.Pushes += o.Pushes
	r.Applied += o.Applied
	r.Denied += o.Denied
	r.Harvests += o.Harvests
	r.Renumbers += o.Renumbers
	r.ByNumber += o.ByNumber
	r.Coded += o.Coded
	r.Traffic.Add(o.Traffic)
}

// SPDX-License-Identifier: Apache-2.0

package simulation

import "time"

// AgentsResult is the summary of lives of agents.
type AgentsResult struct {
	Lives    int           `json:"lives"`
	Steps    int64         `json:"steps"`
	Virtual  time.Duration `json:"virtual_ns"`
	Digest   uint64        `json:"digest,string"` // of the trace
	Agents   int           `json:"agents"`        // starts of agents
	Parties  int           `json:"parties"`       // sessions
	Kills    int           `json:"kills"`         // of any process
	Stops    int           `json:"stops"`
	Pauses   int           `json:"pauses"`
	Restarts int           `json:"restarts"` // of servers
	Pushes   int           `json:"pushes"`
	Reduced  int           `json:"reduced"` // REDUCEs that returned sums
	Met      int           `json:"met"`     // BARRIERs that ended a step
	Dropped  int           `json:"dropped"` // answers that a step was dropped
	Gone     int           `json:"gone"`    // answers that a party had gone
	Framed   int           `json:"framed"`  // STEP frames
	Coded    int           `json:"coded"`   // COLD and COLD_AT frames with codes
	Pulled   int           `json:"pulled"`  // PULLs whose rows were compared
	Fences   int           `json:"fences"`  // servers that went on without their aggregator
	Rewinds  int           `json:"rewinds"` // agents that vanished while parties took steps, which went on
	Lost     int           `json:"lost"`    // acknowledged pushes whose hot rows two deaths may have taken
	Broken   int           `json:"broken"`  // control connections
	Traffic  Traffic       `json:"traffic"`
}

// Add adds the summary of another life.
func (r *AgentsResult) Add(o AgentsResult) {
	r.Lives += o.Lives
	r.Steps += o.Steps
	r.Virtual += o.Virtual
	r.Digest ^= o.Digest
	r.Agents += o.Agents
	r.Parties += o.Parties
	r.Kills += o.Kills
	r.Stops += o.Stops
	r.Pauses += o.Pauses
	r.Restarts += o.Restarts
	r.Pushes += o.Pushes
	r.Reduced += o.Reduced
	r.Met += o.Met
	r.Dropped += o.Dropped
	r.Gone += o.Gone
	r.Framed += o.Framed
	r.Coded += o.Coded
	r.Pulled += o.Pulled
	r.Fences += o.Fences
	r.Rewinds += o.Rewinds
	r.Lost += o.Lost
	r.Broken += o.Broken
	r.Traffic.Add(o.Traffic)
}

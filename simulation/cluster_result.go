// SPDX-License-Identifier: Apache-2.0

package simulation

import "time"

// ClusterResult is the summary of a cluster's life.
type ClusterResult struct {
	Lives       int           `json:"lives"`
	Steps       int64         `json:"steps"`
	Virtual     time.Duration `json:"virtual_ns"`
	Digest      uint64        `json:"digest,string"` // of the trace
	Trainings   int           `json:"trainings"`     // completed trainings
	Starts      int           `json:"starts"`        // starts of processes
	Kills       int           `json:"kills"`
	PowerLosses int           `json:"power_losses"`
	Resumes     int           `json:"resumes"`     // continuations of a training from a checkpoint
	Connections int           `json:"connections"` // control connections
	Broken      int           `json:"broken"`      // broken connections
	Stops       int           `json:"stops"`
	Pauses      int           `json:"pauses"`
	Strangers   int           `json:"strangers"`   // programs that call services of other jobs
	Wrong       int           `json:"wrong"`       // processes with a wrong configuration
	Guests      int           `json:"guests"`      // workers with their own program
	Neighbours  int           `json:"neighbours"`  // trainings that another job on the switch has completed
	Divided     int           `json:"divided"`     // of these, with a hot set that was divided among several switches
	Timed       int           `json:"timed"`       // of neighbours, without barriers, and of a known result
	Changes     int           `json:"changes"`     // of plans of neighbours, while these train
	Interrupted int           `json:"interrupted"` // deaths of neighbours' processes while an operator changes their plan
	Unclosed    int           `json:"unclosed"`    // others between a worker's adoption of the plan and the end of the change
	Busy        int           `json:"busy"`        // calls refused because the data plane was busy
	Outages     int           `json:"outages"`
	Fences      int           `json:"fences"`   // trainings that went on without their aggregator
	Moves       int           `json:"moves"`    // trainings that went on at another aggregator
	Drains      int           `json:"drains"`   // of them and of those without one, as an operator wanted it
	Rewinds     int           `json:"rewinds"`  // steps that all workers began again, because one was lost
	Restarts    int           `json:"restarts"` // deaths of servers in the middle of a training, which went on
	Taken       int           `json:"taken"`    // gradients that the lost aggregator had acknowledged, and no harvest had
	Coded       int           `json:"coded"`    // frames of cold rows with codes, once each
	Traffic     Traffic       `json:"traffic"`
}

// Add adds the summary of another life.
func (r *ClusterResult) Add(o ClusterResult) {
	r.Lives += o.Lives
	r.Steps += o.Steps
	r.Virtual += o.Virtual
	r.Digest ^= o.Digest
	r.Trainings += o.Trainings
	r.Starts += o.Starts
	r.Kills += o.Kills
	r.PowerLosses += o.PowerLosses
	r.Resumes += o.Resumes
	r.Connections += o.Connections
	r.Broken += o.Broken
	r.Stops += o.Stops
	r.Pauses += o.Pauses
	r.Strangers += o.Strangers
	r.Wrong += o.Wrong
	r.Guests += o.Guests
	r.Neighbours += o.Neighbours
	r.Divided += o.Divided
	r.Timed += o.Timed
	r.Changes += o.Changes
	r.Interrupted += o.Interrupted
	r.Unclosed += o.Unclosed
	r.Busy += o.Busy
	r.Outages += o.Outages
	r.Fences += o.Fences
	r.Moves += o.Moves
	r.Drains += o.Drains
	r.Rewinds += o.Rewinds
	r.Restarts += o.Restarts
	r.Taken += o.Taken
	r.Coded += o.Coded
	r.Traffic.Add(o.Traffic)
}

// SPDX-License-Identifier: Apache-2.0

package simulation

import "time"

// ClusterResult is what happened in the life of a cluster.
type ClusterResult struct {
	Lives       int           `json:"lives"`
	Steps       int64         `json:"steps"`
	Virtual     time.Duration `json:"virtual_ns"`
	Digest      uint64        `json:"digest,string"` // of the trace
	Trainings   int           `json:"trainings"`     // that were completed
	Starts      int           `json:"starts"`        // of processes
	Kills       int           `json:"kills"`
	PowerLosses int           `json:"power_losses"`
	Resumes     int           `json:"resumes"`     // of a training, from a checkpoint
	Connections int           `json:"connections"` // of control
	Broken      int           `json:"broken"`      // of them
	Stops       int           `json:"stops"`
	Pauses      int           `json:"pauses"`
	Strangers   int           `json:"strangers"`  // programs that call services of a job that is not theirs
	Wrong       int           `json:"wrong"`      // processes with another configuration
	Guests      int           `json:"guests"`     // workers with a program of their own
	Neighbours  int           `json:"neighbours"` // trainings that another job on the switch has completed
	Busy        int           `json:"busy"`       // calls that the data plane was too busy for
	Traffic     Traffic       `json:"traffic"`
}

// Add adds what happened in another life.
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
	r.Busy += o.Busy
	r.Traffic.add(o.Traffic)
}

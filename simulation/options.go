// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"io"
	"time"

	"github.com/libra-ina/libra/simulation/world"
)

// Options selects a life.
type Options struct {
	// Seed decides everything that Kinds allows.
	Seed uint64 `json:"seed"`
	// Kinds are the kinds of trouble of the life.
	Kinds Kinds `json:"kinds"`
	// Cut makes the life smaller than the seed's.
	Cut Cut `json:"cut"`
	// Trace gets a line for each step and each frame. Nil: none.
	Trace io.Writer `json:"-"`

	fault fault
	// changes gives each life a neighbour with a plan that changes while its worker trains.
	changes bool
}

// What all lives have in common.
const (
	// job is the number of the lives' job.
	job = 7
	// framePort is the port of the links.
	framePort = 7000
	// learningRate is that of the stores of lives of workers.
	learningRate = 0.5
	// bound is how long calls may take once the trouble has ended, in virtual time: some of the
	// longest retransmission timeouts for each waiting window.
	bound = 60 * time.Second
	// clusterBound is how long the training of a cluster may take once the trouble has ended.
	clusterBound = 5 * time.Minute
)

// violation returns what is wrong in a world, nil if nothing is.
func violation(o Options, w *world.World) error {
	f := w.Failure()
	if f == nil {
		return nil
	}
	return &Violation{Options: o, Step: f.Step, At: f.At, What: f.What}
}

// SPDX-License-Identifier: Apache-2.0

// Package node has one function for each process of a cluster: [RunSwitch],
// [RunServer], [RunWorker]. Each takes the cluster's configuration, runs until
// its work is done or its context ends, and leaves nothing behind.
package node

import (
	"log/slog"
	"time"

	"github.com/libra-ina/libra/internal/cluster"
)

// startLimit is how long a process waits at its start for the others.
const startLimit = 30 * time.Second

// Env is what every process is given.
type Env struct {
	Config *cluster.Config
	Log    *slog.Logger
	// Server is the index of the server that RunServer is.
	Server int
	// Step, if set, is that of the checkpoint that the server begins with.
	Step *uint64
	// Ready, if set, is called once when the process can serve or has begun
	// its work.
	Ready func()
	// Evaluated, if set, is called with each evaluation of a server's weights.
	Evaluated func(Evaluation)
	// Machine is what the process runs on; the zero value is this one.
	Machine Machine
}

func (e *Env) ready() {
	if e.Ready != nil {
		e.Ready()
	}
}

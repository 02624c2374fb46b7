// SPDX-License-Identifier: Apache-2.0

// Package node has one function for each process of a cluster: [RunSwitch], [RunServer],
// [RunWorker]. Each runs with the cluster's configuration until its work is done or its context
// ends, and leaves nothing behind.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package node

import (
	"log/slog"
	"time"

	"github.com/libra-ina/libra/cluster"
)

// startLimit is how long a starting process waits for the others.
const startLimit = 30 * time.Second

// Env is the environment of every process.
type Env struct {
	Config *cluster.Config
	Log    *slog.Logger
	// Server is the index of the server that RunServer runs.
	Server int
	// Step, if set, is the step of the checkpoint from which the server starts.
	Step *uint64
	// Ready, if set, is called once when the process can serve or has started its work.
	Ready func()
	// Evaluated, if set, is called with each evaluation of a server's weights.
	Evaluated func(Evaluation)
	// Machine is the machine of the process; the zero value is this one.
	Machine Machine
}

func (e *Env) ready() {
	if e.Ready != nil {
		e.Ready()
	}
}

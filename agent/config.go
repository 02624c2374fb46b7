// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

// Config describes an agent.
type Config struct {
	// Socket is the path of the Unix socket; "" means /run/libra/agent.sock. A socket that
	// an agent has left behind there is replaced.
	Socket string
	// Mode of the socket; 0 means 0666: who may use a job is decided by the job.
	Mode fs.FileMode
	Jobs []Job
	// Log gets what clients cause, less of it where that comes in floods; nil means slog.Default.
	Log *slog.Logger
}

// Job is what a host takes part in.
type Job struct {
	// Name is what clients ask for.
	Name string
	// Worker sends for all clients of the job. It has no other feed ([transport.Worker.Attach]).
	Worker *transport.Worker
	// Why tells clients why the worker was closed. If it is nil, or returns nil, the worker's own error does.
	Why func() error
	// What the worker was admitted to, as in its transport.WorkerConfig.
	Number     uint16
	HotSet     *packer.HotSet // nil if there is none
	Dim        int
	Mode       aggregator.Mode
	Arithmetic aggregator.Arithmetic
	Exp        int

	// Barrier meets the job's other workers at the end of a step. nil means that the host is
	// alone: then its clients meet each other.
	Barrier func(ctx context.Context, step uint64) error
	// Reduce is Barrier, and returns the sums of the step, the same on all hosts. nil means that the job has no sums of steps.
	// The error of either is a *DroppedError if the step was dropped; then the next one is due.
	Reduce func(ctx context.Context, step uint64, a Arrival) (Sums, error)
	// SumsInFrames has the worker ask the job's server for the sums of a step ([transport.Worker.EndStep]), and Reduce
	// be called only where frames do not give them.
	SumsInFrames bool
	NextStep     uint64 // of the first barrier

	// Separate has no pushes of its clients added up before they are sent (docs/agent.md, sums on the host).
	Separate bool

	// Users and Groups may use the job, and so may the agent's own user.
	Users, Groups []uint32
	Limits        Limits
}

// Limits are what one client of a job may have. Zeros mean the defaults.
type Limits struct {
	// Clients is the number of clients at a time, by default 64. As many more may be gone while what they have pushed is on
	// its way; further ones are refused until then.
	Clients int
	// UserClients is how many of these one user may have, by default all.
	UserClients int
	// Memory is the size of a client's shared memory, by default 64 MiB. The agent holds
	// that much again for pushes on their way.
	Memory uint64
	// Prepared bounds what a client's prepared batches are charged, by default 64 MiB.
	Prepared uint64
}

// Defaults of Limits.
const (
	DefaultClients  = 64
	DefaultMemory   = 64 << 20
	DefaultPrepared = 64 << 20
)

// complete fills in what was left out, and checks the rest.
func (c *Config) complete() error {
	if c.Socket == "" {
		c.Socket = agentproto.DefaultSocket
	}
	if c.Mode == 0 {
		c.Mode = 0o666
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if len(c.Jobs) == 0 {
		return errors.New("there is no job to serve")
	}
	names, workers := map[string]bool{}, map[*transport.Worker]bool{}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		switch {
		case j.Name == "" || len(j.Name) > 63:
			return fmt.Errorf("jobs[%d]: the name %q has %d bytes: 1 to 63 are possible", i, j.Name, len(j.Name))
		case names[j.Name]:
			return fmt.Errorf("jobs[%d]: another job has the name %q", i, j.Name)
		case j.Worker == nil:
			return fmt.Errorf("job %s: it has no worker", j.Name)
		case workers[j.Worker]:
			return fmt.Errorf("job %s: another job has the same worker", j.Name)
		}
		names[j.Name], workers[j.Worker] = true, true
		if j.Dim == 0 && j.HotSet != nil {
			j.Dim = j.HotSet.Dim()
		}
		if j.Dim < 1 {
			return fmt.Errorf("job %s: rows of dimension %d", j.Name, j.Dim)
		}
		l := &j.Limits
		if l.Clients == 0 {
			l.Clients = DefaultClients
		}
		if l.UserClients == 0 {
			l.UserClients = l.Clients
		}
		if l.Memory == 0 {
			l.Memory = DefaultMemory
		}
		if l.Prepared == 0 {
			l.Prepared = DefaultPrepared
		}
		if least := agentproto.LayoutOf(agentproto.MinEntries, 1).Total; l.Memory < least {
			return fmt.Errorf("job %s: %d bytes of memory for each client: at least %d are needed", j.Name, l.Memory, least)
		}
	}
	return nil
}

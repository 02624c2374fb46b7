// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

// Config describes an agent.
type Config struct {
	// Socket is the path of the Unix socket; "" means /run/libra/agent.sock. A socket left
	// behind by an agent is replaced.
	Socket string
	// Mode of the socket; 0 means 0666, since each job checks its users.
	Mode fs.FileMode
	Jobs []Job
	// Ranges are served besides Jobs. With ranges, the agent goes on when all jobs have ended.
	Ranges []Range
	// Log receives messages about clients, rate-limited; nil means slog.Default.
	Log *slog.Logger
	// Turn belongs to a simulation and is nil otherwise. A goroutine that several events may have
	// woken passes it before it affects others, so that the simulation decides the order. With it
	// there is no socket: clients come by [Agent.Admit]. Nor does the agent poll: in a simulation,
	// time stands still while code runs.
	Turn func(what string)
}

// Job describes a job that the host takes part in.
type Job struct {
	// Name identifies the job to clients.
	Name string
	// Worker sends for all clients of the job. No other feed may be attached to it
	// ([transport.Worker.Attach]).
	Worker *transport.Worker
	// Why explains to clients why the worker was closed. If it is nil, or returns nil, the worker's
	// own error does.
	Why func() error
	// The worker's admission, as in its transport.WorkerConfig.
	Number     uint16
	HotSet     *packer.HotSet // may be nil
	Dim        int
	Mode       aggregator.Mode
	Arithmetic aggregator.Arithmetic
	Exp        int

	// NoWeights is that of the worker's transport.WorkerConfig.
	NoWeights bool

	// Instance distinguishes the successive jobs of a number, of a [Range]: it is that of the [Owner].
	Instance uint64

	// NoServer is that of the worker's transport.WorkerConfig; a job of a [Range] always has it.
	NoServer bool

	// Barrier meets the job's other workers at the end of a step. Nil means that the host is
	// the only one: its clients meet only each other.
	Barrier func(ctx context.Context, step uint64) error
	// Reduce is Barrier, and returns the sums of the step, the same on all hosts. Nil means that
	// the job has no sums of steps. The error of either is a *DroppedError if the step was dropped;
	// then the next one is due. It wraps agentproto.JobEnded if the host's part in the job has ended,
	// so that it is not known whether the step has ended.
	Reduce func(ctx context.Context, step uint64, a Arrival) (Sums, error)
	// SumsInFrames makes the worker ask the job's server for the sums of a step
	// ([transport.Worker.EndStep]), and calls Reduce only if frames do not deliver them.
	SumsInFrames bool
	NextStep     uint64 // of the first barrier

	// Separate disables adding up pushes of several clients (docs/agent.md, sums on the host).
	Separate bool

	// Record, if not nil, returns where the pushes of a client are recorded, a process with a name
	// for itself.
	Record func(process int, name string) Recording

	// Users and Groups may use the job, as may the agent's own user.
	Users, Groups []uint32
	Limits        Limits
}

// Recording gets what a client pushes. The job's worker calls it, which waits for it.
type Recording interface {
	// Push is called for each push that is sent. It may not keep the slices.
	Push(keys []uint64, grads []float32)
	// EndStep is called when the client has come to the end of a step.
	EndStep()
	// Close is called when the client has ended, unless the agent ends first.
	Close()
}

// Limits bound each client of a job. Zeros mean the defaults.
type Limits struct {
	// Clients is the number of clients at a time, by default 64. As many more may have left with
	// pushes in flight; further ones are refused until these are settled.
	Clients int
	// UserClients is the number of clients of one user, by default all.
	UserClients int
	// Memory is the size of a client's shared memory, by default 64 MiB. The agent holds
	// that much again for pushes in flight.
	Memory uint64
	// Prepared bounds the memory charged for a client's prepared batches, by default 64 MiB.
	Prepared uint64
}

// Defaults of [Limits].
const (
	DefaultClients  = 64
	DefaultMemory   = 64 << 20
	DefaultPrepared = 64 << 20
)

// complete fills in defaults, and checks the rest.
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
	if len(c.Jobs)+len(c.Ranges) == 0 {
		return errors.New("no job to serve is configured")
	}
	names, workers := map[string]bool{}, map[*transport.Worker]bool{}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		switch {
		case j.Name == "" || len(j.Name) > 63:
			return fmt.Errorf("jobs[%d]: the name %q is %d bytes long: it must be 1 to 63", i, j.Name, len(j.Name))
		case names[j.Name]:
			return fmt.Errorf("jobs[%d]: the name %q is used twice", i, j.Name)
		case j.Worker == nil:
			return fmt.Errorf("job %s: no worker is set", j.Name)
		case workers[j.Worker]:
			return fmt.Errorf("job %s: its worker also serves another job", j.Name)
		}
		names[j.Name], workers[j.Worker] = true, true
		if j.Dim == 0 && j.HotSet != nil {
			j.Dim = j.HotSet.Dim()
		}
		if j.Dim < 1 {
			return fmt.Errorf("job %s: rows of dimension %d", j.Name, j.Dim)
		}
		if err := j.Limits.complete("job " + j.Name); err != nil {
			return err
		}
	}
	for i := range c.Ranges {
		r := &c.Ranges[i]
		if err := r.complete(); err != nil {
			return err
		}
		if names[r.Name] {
			return fmt.Errorf("range %s: the name is used twice", r.Name)
		}
		names[r.Name] = true
	}
	return nil
}

// complete fills in defaults, and checks the rest. of is the job or range that has the limits.
func (l *Limits) complete(of string) error {
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
		return fmt.Errorf("%s: %d bytes of memory for each client: at least %d are needed", of, l.Memory, least)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/trace"
	"github.com/libra-ina/libra/ps"
)

// RunAgent joins the jobs of an agent's file, each as the worker that the file names, and serves
// clients until ctx ends or all jobs have ended. In a job that is still running, the host may then
// come back, unless the file says that it has finished. ready is called when clients can connect.
func RunAgent(ctx context.Context, cfg *cluster.Agent, log *slog.Logger, ready func()) error {
	return runAgent(ctx, cfg, log, ready, sys.DropCapabilities)
}

// runAgent is RunAgent; drop is sys.DropCapabilities.
func runAgent(ctx context.Context, cfg *cluster.Agent, log *slog.Logger, ready func(), drop func() error) error {
	return AgentMachine{drop: drop}.RunAgent(ctx, cfg, log, ready)
}

// AgentMachine is the machine of a simulated agent.
type AgentMachine struct {
	Machine
	// Agent receives the agent before ready is called. There is no socket: its clients come by
	// [agent.Agent.Admit].
	Agent func(*agent.Agent)
	// Job, if not nil, may change a job that the agent has joined, so that a simulation can check that
	// it finds a fault.
	Job func(*agent.Job)
	// SumsInFrames makes the sums of steps arrive in frames, as on an AF_XDP link.
	SumsInFrames bool

	drop func() error // gives up what the agent may do as root; nil: nothing
}

// RunAgent is [RunAgent] on this machine.
func (on AgentMachine) RunAgent(ctx context.Context, cfg *cluster.Agent, log *slog.Logger, ready func()) (err error) {
	served := agent.Config{Socket: cmp.Or(cfg.Socket, agentproto.DefaultSocket), Log: log}
	if on.Agent != nil {
		served.Turn = on.Turn
	} else if err := agent.TrySocket(served.Socket); err != nil {
		return err
	}
	var joined []*joinedJob
	var ranges []*openRange
	var recorders []*trace.Recorder
	var a *agent.Agent
	defer func() {
		finishes := err == nil
		for _, j := range joined {
			if a != nil {
				j.openStep, j.torn = a.OpenStep(j.Name)
			}
			err = errors.Join(err, j.leaveJob(finishes && j.from.Finish))
		}
		for _, r := range ranges {
			err = errors.Join(err, r.closeRange())
		}
		for _, r := range recorders {
			err = errors.Join(err, r.Close())
		}
	}()
	for i := range cfg.Jobs {
		if from := &cfg.Jobs[i]; len(from.Workers) > 0 {
			r, err := on.readRange(from, log)
			if err != nil {
				return fmt.Errorf("range %s: %w", from.Name, err)
			}
			ranges, served.Ranges = append(ranges, r), append(served.Ranges, r.describeRange())
			continue
		}
		j, err := on.joinJob(ctx, &cfg.Jobs[i], log)
		if err != nil {
			return fmt.Errorf("job %s: %w", cfg.Jobs[i].Name, err)
		}
		if cfg.Record != "" {
			recorder := trace.NewRecorder(cfg.Record, int(j.self.ID), j.Dim)
			j.Record = func(process int, name string) agent.Recording { return recorder.Client(process, name) }
			recorders = append(recorders, recorder)
		}
		if on.Job != nil {
			on.Job(&j.Job)
		}
		j.endpoint.departure.Unused = true // until clients can push
		joined = append(joined, j)
		served.Jobs = append(served.Jobs, j.Job)
	}
	shown, err := newShownAgent(joined, ranges)
	if err != nil {
		return err
	}
	if a, err = agent.Listen(served); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	endShowing, err := shown.startShowing(a, log)
	if err != nil {
		return err
	}
	defer endShowing()
	if on.Agent != nil {
		on.Agent(a)
	} else if err := on.drop(); err != nil {
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		log.Warn("the agent keeps its capabilities: build libra with CGO_ENABLED=0", "error", err)
	}
	for _, j := range joined {
		j.endpoint.departure.Unused = false
		log.Info("agent serves", "socket", served.Socket, "job", j.Name, "worker", j.self.ID, "backend",
			j.env.Config.Backend, "dimension", j.Dim,
			"hot rows", j.HotSet.Len(), "users", strings.Join(j.from.Users, ","), "groups", strings.Join(j.from.Groups, ","))
	}
	for _, r := range ranges {
		log.Info("agent serves", "socket", served.Socket, "range", r.from.Name, "jobs", len(r.jobs),
			"backend", r.env.Config.Backend, "dimension", r.hot.Dim(), "hot rows", r.hot.Len(),
			"users", strings.Join(r.from.Users, ","), "groups", strings.Join(r.from.Groups, ","))
	}
	ready()
	return a.Serve(ctx)
}

// joinedJob is a job that the host has joined.
type joinedJob struct {
	agent.Job
	env      Env
	from     *cluster.AgentJob
	self     cluster.Worker
	endpoint *endpoint
	lost     context.Context // ends with the admission
	cancel   context.CancelCauseFunc
	unwatch  func() bool
	openStep uint64 // due when the agent has ended
	torn     bool   // parties pushed in that step and have ended before its end
}

// joinJob joins a job as one of its workers.
func (on AgentMachine) joinJob(ctx context.Context, from *cluster.AgentJob, log *slog.Logger) (*joinedJob, error) {
	c, err := cluster.Read(from.Cluster)
	if err != nil {
		return nil, err
	}
	if n := len(c.AllServers()); n > 1 {
		return nil, fmt.Errorf("%s has %d servers, but agents only serve jobs with one, because clients get all sums from it: list one server there, or run 'libra worker'", from.Cluster, n)
	}
	j := &joinedJob{env: Env{Config: c, Log: log.With("job", from.Name), Machine: on.Machine}, from: from}
	if j.self, err = c.Worker(from.Worker); err != nil {
		return nil, err
	}
	model, err := Model(c.Model)
	if err != nil {
		return nil, err
	}
	// ctx ends only joining: clients' pushes must be acknowledged even after it.
	j.lost, j.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { j.cancel(context.Cause(ctx)) })
	j.endpoint, err = openEndpoint(j.lost, j.cancel, j.env, j.self, model.Dim(), nil)
	if !stop() && err == nil {
		j.endpoint.departure.Unused = true
		err = errors.Join(context.Cause(ctx), j.endpoint.closeEndpoint())
	}
	if err != nil {
		return nil, err
	}
	// The end of an admission ends the worker, which ends the job's clients.
	j.unwatch = context.AfterFunc(j.lost, func() {
		log.Error("the job has ended", "job", from.Name, "reason", context.Cause(j.lost))
		_ = j.endpoint.Worker.Close()
	})
	users, err1 := from.UserIDs()
	groups, err2 := from.GroupIDs()
	if err := errors.Join(err1, err2); err != nil {
		j.endpoint.departure.Unused = true
		return nil, errors.Join(err, j.leaveJob(false))
	}
	m := j.endpoint.members
	j.Job = agent.Job{
		Name: from.Name, Worker: j.endpoint.Worker, Why: func() error {
			return context.Cause(j.lost)
		}, Number: c.Job.ID, HotSet: j.endpoint.hot, Dim: model.Dim(),
		Mode: m.Mode, Arithmetic: m.Arithmetic, Exp: m.Exp, NextStep: m.NextStep,
		NoWeights: c.Model.Optimizer == ps.None.String(),
		Users:     users, Groups: groups, Separate: from.Separate,
		Limits: limitsOf(from),
	}
	j.Barrier = func(ctx context.Context, step uint64) error { return meetingError(m, m.Barrier(ctx, step)) }
	if c.Job.Sync {
		// Over UDP sockets the system calls for frames cost more than those of a connection, and
		// the buffers hold fewer of them.
		j.SumsInFrames = c.Backend == cluster.BackendAFXDP || on.SumsInFrames
		j.Reduce = func(ctx context.Context, step uint64, a agent.Arrival) (agent.Sums, error) {
			sums, err := m.Reduce(ctx, step, model.Dim(), (*control.DroppedError)(a.Refused),
				control.HotFrames{Sent: a.HotSent, Answered: a.HotAnswered})
			return agent.Sums(sums), meetingError(m, err)
		}
	}
	return j, nil
}

// limitsOf returns the limits of a job or range.
func limitsOf(from *cluster.AgentJob) agent.Limits {
	return agent.Limits{Clients: from.Clients, UserClients: from.ClientsPerUser, Memory: uint64(from.MemoryMiB) << 20,
		Prepared: uint64(from.PreparedMiB) << 20}
}

// readRange reads the cluster file of a range, and opens its links.
func (on AgentMachine) readRange(from *cluster.AgentJob, log *slog.Logger) (*openRange, error) {
	c, err := cluster.ReadAny(from.Cluster)
	if err != nil {
		return nil, err
	}
	if !c.Serverless() {
		return nil, fmt.Errorf("%s has a parameter server, a model or data, but the jobs of a range have none: leave server, servers, model and data out there, or give worker instead of workers", from.Cluster)
	}
	return on.openRange(from, Env{Config: c, Log: log.With("range", from.Name), Machine: on.Machine})
}

// meetingError returns the agent's error of a meeting with the job's other workers.
func meetingError(m *control.Membership, err error) error {
	var why *control.DroppedError
	switch {
	case errors.As(err, &why):
		return (*agent.DroppedError)(why)
	case err != nil && (m.Err() != nil || errors.Is(err, control.ErrRewound)): // the service may have ended the step
		return fmt.Errorf("%w: %w", agentproto.JobEnded, err)
	}
	return err
}

// leaveJob leaves the job. The host has finished its part in it, or may come back; a host whose
// pushes are not all acknowledged, or that cannot say which step is torn, counts as lost.
func (j *joinedJob) leaveJob(finished bool) (err error) {
	j.unwatch()
	if j.lost.Err() == nil && j.endpoint.Worker.Err() == nil && !j.endpoint.departure.Unused {
		err = j.endPart(finished)
	}
	err = errors.Join(err, j.endpoint.closeEndpoint())
	j.cancel(nil)
	return err
}

// endPart reports that the host has finished its part in the job, or leaves and may come back.
func (j *joinedJob) endPart(finished bool) error {
	if err := j.commitAll(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(j.lost, leaveLimit)
	defer cancel()
	m := j.endpoint.members
	if j.torn && j.env.Config.Job.Sync {
		if err := m.Tear(ctx, j.openStep); err != nil {
			return err
		}
	}
	if finished {
		return m.Done(ctx)
	}
	m.LeaveAs(control.Departure{Back: true})
	return nil
}

// commitAll waits until the server has all that clients pushed without steps. While the aggregator
// is out of reach that takes until the server has given it up, and this host has settled.
func (j *joinedJob) commitAll() error {
	c := j.env.Config
	if c.Job.Sync {
		return nil
	}
	limit := leaveLimit
	if j.endpoint.members.KeepsLog {
		limit = max(limit, c.Silence+max(c.Silence, c.Switch.Silence)) // as for a push
	}
	ctx, cancel := context.WithTimeout(j.lost, limit)
	defer cancel()
	// A report harvests. The next harvest may be due in an hour.
	if err := j.endpoint.members.Report(ctx, 0, 0, false); err != nil {
		return err
	}
	return awaitCommits(ctx, j.endpoint, j.env)
}

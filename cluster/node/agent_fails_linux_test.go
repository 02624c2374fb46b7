// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// An agent that cannot begin says why, by job, and leaves the jobs that it has joined as if it had
// not: they go on, and take it when it can. It looks at its socket before it joins any.
func TestAgentCannotBegin(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, c *cluster.Config) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := c.Write(path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	sharded := newCluster(t, 1)
	shard(t, sharded, 2)
	absent := filepath.Join(dir, "absent.yaml")
	several := cluster.AgentJob{Name: "several", Cluster: write("several.yaml", sharded), Worker: 1}
	free, taken := filepath.Join(dir, "free.sock"), filepath.Join(dir, "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		socket string
		jobs   []cluster.AgentJob // after one that can be joined
		want   string
		joins  bool
	}{
		"a file is there":    {taken, []cluster.AgentJob{{Name: "absent", Cluster: absent}}, "socket " + taken + ": the file is not a socket", false},
		"a job of several":   {free, []cluster.AgentJob{several}, "job several: " + several.Cluster + " has 2 servers, but agents only serve jobs with one", true},
		"no file of a job":   {free, []cluster.AgentJob{{Name: "absent", Cluster: absent}}, "job absent: cluster configuration: open " + absent, true},
		"a worker not there": {free, []cluster.AgentJob{{Name: "ninth", Cluster: several.Cluster, Worker: 9}}, "job ninth: ", true},
	} {
		t.Run(name, func(t *testing.T) {
			var log lines
			jobs := c.jobs
			var served servedJob
			if c.joins {
				var from *cluster.AgentJob
				from, served = agentJob(t, &log)
				jobs = append([]cluster.AgentJob{*from}, jobs...)
			}
			err := RunAgent(t.Context(), &cluster.Agent{Socket: c.socket, Jobs: jobs}, log.logger(), func() { t.Error("it serves") })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if !c.joins || t.Failed() { // the server may wait for its worker
				return
			}
			served.goesOn(t, &log)
			if err := agent.TrySocket(c.socket); err != nil {
				t.Errorf("the socket is not free: %v", err)
			}
		})
	}
}

// askedLink calls a function when it is asked for the path to a peer, which a host does once it is
// admitted.
type askedLink struct {
	link.Link
	asked func() error
}

func (l askedLink) Path(ctx context.Context, to wire.Endpoint) (link.Path, error) {
	if err := l.asked(); err != nil {
		return nil, err
	}
	return l.Link.Path(ctx, to)
}

// A host that is admitted, and then cannot begin or is told to end, leaves as if it had not joined:
// the job goes on, and takes it later.
func TestHostIsAdmittedAndDoesNotBegin(t *testing.T) {
	why := errors.New("not today")
	for name, asked := range map[string]func(end context.CancelCauseFunc) error{
		"told to end":      func(end context.CancelCauseFunc) error { end(why); return nil },
		"no way to a peer": func(context.CancelCauseFunc) error { return why },
	} {
		t.Run(name, func(t *testing.T) {
			var log lines
			from, served := agentJob(t, &log)
			ctx, end := context.WithCancelCause(t.Context())
			defer end(nil)
			on := AgentMachine{Machine: Machine{Link: func(at netip.AddrPort) (link.Link, error) {
				l, err := link.OpenUDP(at)
				return askedLink{l, func() error { return asked(end) }}, err
			}}}
			if j, err := on.joinJob(ctx, from, log.logger()); j != nil || !errors.Is(err, why) {
				t.Errorf("joined %v: %v", j, err)
			}
			j, err := (AgentMachine{}).joinJob(t.Context(), from, log.logger())
			if err != nil {
				t.Fatal(err)
			}
			if err := j.leaveJob(false); err != nil {
				t.Error(err)
			}
			served.goesOn(t, &log)
		})
	}
}

// A step of which a host's gradient was refused is dropped at the service, and the next one goes
// on. A step that is not due is another error.
func TestHostDropsAStep(t *testing.T) {
	var log lines
	from, served := agentJob(t, &log)
	j, err := (AgentMachine{}).joinJob(t.Context(), from, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	refused := agent.DroppedError{Key: 9, KeyKnown: true}
	var dropped *agent.DroppedError
	if _, err := j.Reduce(t.Context(), 0, agent.Arrival{Refused: &refused}); !errors.As(err, &dropped) || *dropped != refused {
		t.Errorf("the step of a refused gradient: %v", err)
	}
	if err := j.Barrier(t.Context(), 1); err != nil {
		t.Errorf("the next step: %v", err)
	}
	if _, err := j.Reduce(t.Context(), 2, agent.Arrival{}); err != nil {
		t.Errorf("the one after it: %v", err)
	}
	if err := errors.Join(j.leaveJob(true), <-served.ended); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
)

// servedJob is a job that a server runs.
type servedJob struct {
	stop  context.CancelFunc // of the server
	ended chan error         // how it ended
}

// goesOn reports an error unless the job is still there, for a worker that may come back, and ends
// it.
func (j servedJob) goesOn(t *testing.T, log *lines) {
	t.Helper()
	if text := log.String(); strings.Contains(text, "lost a worker") {
		t.Errorf("the server has logged %q", text)
	}
	j.stop()
	if err := <-j.ended; err == nil || !strings.Contains(err.Error(), "workers [1] have not finished: context canceled") {
		t.Errorf("the server ended with %v", err)
	}
}

// agentJob is a job that a server runs, as an agent's file names it.
func agentJob(t *testing.T, log *lines) (from *cluster.AgentJob, served servedJob) {
	t.Helper()
	c := newCluster(t, 1)
	startSwitch(t, c)
	from = &cluster.AgentJob{Name: "rows", Cluster: filepath.Join(t.TempDir(), "cluster.yaml"), Worker: 1, Users: []string{"0", "77"}, Groups: []string{"88"}, Clients: 3, MemoryMiB: 5, PreparedMiB: 7, Separate: true}
	if err := c.Write(from.Cluster); err != nil {
		t.Fatal(err)
	}
	served.ended = make(chan error, 1)
	var ctx context.Context
	ctx, served.stop = context.WithCancel(t.Context())
	t.Cleanup(served.stop)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: log.logger()})
		served.ended <- err
	}()
	return from, served
}

// A host that ends has finished only if it says so; otherwise it may come back. If something has
// broken, the job has lost it. It is not reported as lost by the host itself when it leaves.
func TestHostHasFinishedOnlyIfItSaysSo(t *testing.T) {
	withdrawn := errors.New("withdrawn")
	for name, c := range map[string]struct {
		end  func(j *joinedJob) error
		lost string // what is logged of it
		left bool   // what the server says
		back bool   // it may come back
	}{
		"finished":               {end: func(j *joinedJob) error { return j.leaveJob(true) }},
		"not finished":           {end: func(j *joinedJob) error { return j.leaveJob(false) }, back: true},
		"its endpoint has ended": {end: func(j *joinedJob) error { return errors.Join(j.endpoint.Worker.Close(), j.leaveJob(true)) }, left: true},
		"its admission has ended": {end: func(j *joinedJob) error {
			j.cancel(withdrawn)
			<-j.endpoint.Done()
			return j.leaveJob(true)
		}, left: true, lost: `msg="the job has ended" job=rows reason=withdrawn`},
	} {
		t.Run(name, func(t *testing.T) {
			var log, hosts lines
			from, served := agentJob(t, &log)
			j, err := (AgentMachine{}).joinJob(t.Context(), from, hosts.logger())
			if err != nil {
				t.Fatal(err)
			}
			if l := j.Limits; j.Name != "rows" || j.Number != 5 || l.Clients != 3 || l.Memory != 5<<20 || l.Prepared != 7<<20 || len(j.Users) != 2 || j.Users[1] != 77 || len(j.Groups) != 1 || j.Groups[0] != 88 || !j.Separate {
				t.Errorf("the job is %+v", j.Job)
			}
			if err := c.end(j); err != nil {
				t.Errorf("the end: %v", err)
			}
			if j.lost.Err() == nil || j.endpoint.Err() == nil {
				t.Errorf("at the end, the admission is %v, the endpoint %v", j.lost.Err(), j.endpoint.Err())
			}
			if c.back {
				if text := log.String(); !strings.Contains(text, `msg="a worker has left, and may come back" worker=1`) {
					t.Errorf("the server has logged %q", text)
				}
				served.goesOn(t, &log)
				return
			}
			err = <-served.ended
			if left := err != nil && strings.Contains(err.Error(), "worker 1 left before it had finished"); left != c.left || !left && err != nil {
				t.Errorf("the server ended with %v", err)
			}
			if text := hosts.String(); strings.Contains(text, "the job has ended") != (c.lost != "") || !strings.Contains(text, c.lost) {
				t.Errorf("the host has logged %q, want %q", text, c.lost)
			}
		})
	}
}

// A job that a host cannot take part in is left again as if it had not been joined, with the
// reason.
func TestHostDoesNotJoin(t *testing.T) {
	var log lines
	from, served := agentJob(t, &log)
	given, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	cancel(why)
	if j, err := (AgentMachine{}).joinJob(given, from, log.logger()); j != nil || !errors.Is(err, why) {
		t.Errorf("interrupted: %v, %v", j, err)
	}
	for field, wrong := range map[string]cluster.AgentJob{
		"unknown user no-such-user":   {Cluster: from.Cluster, Worker: 1, Users: []string{"no-such-user"}},
		"no worker 7":                 {Cluster: from.Cluster, Worker: 7},
		"open /nowhere/cluster.yaml:": {Cluster: "/nowhere/cluster.yaml", Worker: 1},
	} {
		if j, err := (AgentMachine{}).joinJob(t.Context(), &wrong, log.logger()); j != nil || err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v, %v", field, j, err)
		}
	}
	if t.Failed() {
		return // the server may wait for its worker
	}
	served.goesOn(t, &log)
}

// An agent that fails to drop its capabilities does not serve; one whose build has no way to drop
// them logs that.
func TestAgentDropsItsCapabilities(t *testing.T) {
	for name, c := range map[string]struct {
		dropped error
		serves  bool
		says    string
	}{
		"refused":     {dropped: syscall.EPERM},
		"unsupported": {dropped: errors.ErrUnsupported, serves: true, says: "the agent keeps its capabilities"},
		"dropped":     {serves: true},
	} {
		t.Run(name, func(t *testing.T) {
			var log, hosts lines
			from, job := agentJob(t, &log)
			cfg := &cluster.Agent{Socket: filepath.Join(t.TempDir(), "agent.sock"), Jobs: []cluster.AgentJob{*from}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			served := false
			ready := func() { served = true; cancel() }
			err := runAgent(ctx, cfg, hosts.logger(), ready, func() error { return c.dropped })
			if served != c.serves || served && err != nil || !served && !errors.Is(err, c.dropped) {
				t.Errorf("serves: %v, %v", served, err)
			}
			if text := hosts.String(); strings.Contains(text, "capabilities") != (c.says != "") || !strings.Contains(text, c.says) {
				t.Errorf("the agent has logged %q, want %q", text, c.says)
			}
			job.goesOn(t, &log)
		})
	}
}

// A host that ends a step by frames gets the sums in frames: its server knows whose step it is.
func TestHostEndsStepsInFrames(t *testing.T) {
	var log lines
	from, served := agentJob(t, &log)
	j, err := (AgentMachine{}).joinJob(t.Context(), from, log.logger())
	if err != nil {
		t.Fatal(err)
	}
	job := j.Job
	job.SumsInFrames, job.Users = true, nil
	job.Reduce = func(context.Context, uint64, agent.Arrival) (agent.Sums, error) {
		return agent.Sums{}, errors.New("the service was asked")
	}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	a, err := agent.Listen(agent.Config{Socket: socket, Jobs: []agent.Job{job}, Log: log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	serves := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { serves <- a.Serve(ctx) }()
	client, err := agentclient.Dial(ctx, socket, agentproto.Hello{Job: job.Name, Parties: 1, BufferBytes: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const key = 1 << 40
	if _, err := client.Push(ctx, []uint64{key}, []float32{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	if keys, sums, err := client.Reduce(ctx, 0); err != nil || !slices.Equal(keys, []uint64{key}) || !slices.Equal(sums, []float32{1, 2, 3, 4}) {
		t.Errorf("keys %v, sums %v: %v", keys, sums, err)
	}
	cancel()
	if err := errors.Join(<-serves, a.Close(), j.leaveJob(true), <-served.ended); err != nil {
		t.Error(err)
	}
}

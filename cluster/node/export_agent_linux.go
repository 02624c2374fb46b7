// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/export"
	"github.com/libra-ina/libra/transport"
)

// shownAgent is what an agent shows: all its jobs, at each address and port that their cluster
// files give.
type shownAgent struct {
	agent  *agent.Agent
	joined []*joinedJob
	labels map[string]string // of jobs, by name
	at     []shownAt
}

// shownAt is one of the places where an agent shows itself.
type shownAt struct {
	at    netip.AddrPort
	tls   cluster.TLS
	from  string // the job whose cluster file gives the port
	id    uint16 // of the host's worker there
	oneIn int
}

// newShownAgent returns what an agent with these jobs and ranges shows.
func newShownAgent(joined []*joinedJob, ranges []*openRange) (*shownAgent, error) {
	s := &shownAgent{joined: joined, labels: map[string]string{}}
	numbers := map[uint16]string{}
	label := func(name string, job uint16) {
		s.labels[name] = fmt.Sprint(job)
		if first, twice := numbers[job]; twice { // at two switches
			s.labels[name], s.labels[first] = name, first
			return
		}
		numbers[job] = name
	}
	var err error
	for _, j := range joined {
		label(j.Name, j.env.Config.Job.ID)
		err = errors.Join(err, s.addPlace(j.env.Config, j.Name, j.self))
	}
	for _, r := range ranges {
		for i := range r.jobs {
			label(fmt.Sprintf("%s/%d", r.from.Name, i), r.env.Config.Job.ID+uint16(i))
		}
		if len(r.jobs) > 0 {
			err = errors.Join(err, s.addPlace(r.env.Config, r.from.Name, r.jobs[0].worker))
		}
	}
	return s, err
}

// addPlace adds the place that a job's cluster file gives to the host's worker.
func (s *shownAgent) addPlace(c *cluster.Config, job string, self cluster.Worker) error {
	p := shownAt{at: c.Telemetry.At(self.Address), tls: c.TLS, from: job, id: self.ID, oneIn: c.Telemetry.OneIn()}
	if !p.at.IsValid() {
		return nil
	}
	for _, other := range s.at {
		if other.at == p.at && other.tls != p.tls {
			return fmt.Errorf("telemetry.port: the cluster files of %s and %s both make the agent listen at %v, and have different tls sections: give them the same, or different ports",
				other.from, job, p.at)
		}
		if other.at == p.at {
			return nil
		}
	}
	s.at = append(s.at, p)
	return nil
}

// startShowing begins to show the agent; the returned function ends that.
func (s *shownAgent) startShowing(a *agent.Agent, log *slog.Logger) (end func(), err error) {
	s.agent = a
	var all []*export.Exporter
	end = func() {
		for _, e := range all {
			e.Close()
		}
	}
	for _, p := range s.at {
		security, err := access.LoadSecurity(p.tls.CA, p.tls.Cert, p.tls.Key)
		if err != nil {
			end()
			return nil, err
		}
		var watch export.Watch[agentLook]
		all = append(all, export.Start(export.Config{
			At: p.at, Security: security, Log: log, Process: fmt.Sprint("worker ", p.id), Side: export.WorkerSide,
			Sample:    p.oneIn,
			Watch:     func(ctx context.Context) { watch.Run(ctx, s.askAgent) },
			Collect:   func(set *export.Set) time.Duration { return s.collectMetrics(set, &watch) },
			Recorders: s.listRecorders,
		}))
	}
	return end, nil
}

// agentLook is what an agent has counted.
type agentLook struct {
	agent   agent.Stats
	workers []transport.WorkerStats // of the joined jobs
}

// askAgent asks all of the agent.
func (s *shownAgent) askAgent(ctx context.Context) (l agentLook, err error) {
	l.agent = s.agent.Stats()
	for _, j := range s.joined {
		st, failed := j.endpoint.Stats(ctx)
		l.workers, err = append(l.workers, st), errors.Join(err, failed)
	}
	return l, err
}

func (s *shownAgent) collectMetrics(set *export.Set, watch *export.Watch[agentLook]) time.Duration {
	l, age, ok := watch.Latest()
	workers := map[string]bool{}
	for i, j := range s.joined {
		workers[j.Name] = true
		var stats *transport.WorkerStats
		if ok {
			stats = &l.workers[i]
		}
		set.AddWorker(s.labels[j.Name], j.self.ID, stats, j.endpoint.Recorder())
	}
	if ok {
		set.AddAgent(&l.agent, func(name string) (job string, added bool) { return s.labels[name], workers[name] })
	}
	return age
}

func (s *shownAgent) listRecorders() (all []*telemetry.Recorder) {
	for _, j := range s.joined {
		all = append(all, j.endpoint.Recorder())
	}
	return all
}

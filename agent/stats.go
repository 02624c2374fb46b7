// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/telemetry"
)

// counters are one client's.
type counters struct {
	pushes, acknowledged, failed, keysPushed atomic.Uint64
	pulls, keysPulled                        atomic.Uint64
	bytesRead                                atomic.Uint64
	wakesReceived, wakesSent                 atomic.Uint64
}

// tally counts by code.
type tally struct {
	mu    sync.Mutex
	count map[Code]uint64
}

func (t *tally) addCode(code agentproto.Code) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count == nil {
		t.count = map[Code]uint64{}
	}
	t.count[Code(code)]++
}

func (t *tally) readCounts() map[Code]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.count)
}

// Stats returns the counters.
func (a *Agent) Stats() Stats {
	s := Stats{Refused: a.refused.readCounts()}
	jobs := slices.Concat(slices.Collect(maps.Values(a.jobs)), a.openJobs())
	slices.SortFunc(jobs, func(x, y *job) int { return strings.Compare(x.cfg.Name, y.cfg.Name) })
	for _, j := range jobs {
		s.Jobs = append(s.Jobs, j.jobStats())
	}
	return s
}

func (j *job) jobStats() JobStats {
	var clients []ClientStats
	learning := 0
	j.runInWorker(func() { clients, learning = j.clientStats(), len(j.learners) })
	sent, _ := j.cfg.Worker.Stats(context.Background()) // final ones, if the worker has ended
	return JobStats{
		Name: j.cfg.Name, Memory: j.memory.Load(), Ended: j.ends.readCounts(), Clients: clients,
		PairsSent: sent.PairsHot, PairsAdded: sent.PairsAdded, Vanished: sent.Vanished, Learning: learning,
		LogBytes: sent.LogBytes, LogWaits: sent.LogWaits, Settled: sent.Settled,
		Latencies: telemetry.Summaries(j.cfg.Worker.Recorder().Series()),
	}
}

// clientStats runs in the worker's goroutine.
func (j *job) clientStats() (all []ClientStats) {
	for _, s := range j.sessions {
		c := &s.counters
		s.mu.Lock()
		charged := s.charged
		s.mu.Unlock()
		all = append(all, ClientStats{
			Client: s.number, Name: s.name, User: s.who.Uid, Process: s.who.Pid,
			Memory: s.layout.Total, InFlight: s.charge.Load(), Prepared: charged,
			Pushes: c.pushes.Load(), Acknowledged: c.acknowledged.Load(), Failed: c.failed.Load(),
			KeysPushed: c.keysPushed.Load(),
			FailedBy:   maps.Clone(s.failedBy),
			Pulls:      c.pulls.Load(), KeysPulled: c.keysPulled.Load(),
		})
	}
	return all
}

// writeStats writes the answer to STATS into the client's memory.
func (s *session) writeStats(ctx context.Context, at uint64) error {
	job, err := s.job.cfg.Worker.Stats(ctx)
	if err != nil {
		return err
	}
	c := &s.counters
	s.mu.Lock()
	charged := s.charged
	s.mu.Unlock()
	arrived, parties := s.job.barrier.partiesArrived()
	copy(s.mem.Words(at, agentproto.StatsLen/8), []uint64{
		c.pushes.Load(), c.acknowledged.Load(), c.failed.Load(), c.keysPushed.Load(), c.pulls.Load(), c.keysPulled.Load(),
		c.bytesRead.Load(), charged, c.wakesReceived.Load(), c.wakesSent.Load(),
		job.Hot.Sent + job.Cold.Sent, job.Hot.Retransmitted + job.Cold.Retransmitted,
		uint64(job.Hot.SRTT), uint64(job.Cold.SRTT), arrived, parties,
	})
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// timing accumulates durations.
type timing struct {
	count     uint64
	last, max time.Duration
	total     time.Duration
}

func (t *timing) addDuration(d time.Duration) {
	t.count++
	t.last, t.max = d, max(t.max, d)
	t.total += d
}

func (t *timing) toMessage() *pb.Timing {
	m := &pb.Timing{Count: t.count, LastNs: uint64(t.last), MaxNs: uint64(t.max)}
	if t.count > 0 {
		m.MeanNs = uint64(t.total) / t.count
	}
	return m
}

// Stats implements the service. With TLS, servers and workers see only their own jobs, switches and
// operators all jobs.
func (a *Aggregator) Stats(ctx context.Context, _ *pb.StatsRequest) (*pb.AggregatorStats, error) {
	caller := access.CallerOf(ctx)
	c, err := a.cfg.Plane.Counters()
	if err != nil {
		return nil, planeError(err)
	}
	a.mu.Lock()
	slots, places := a.used()
	jobs := slices.Collect(maps.Values(a.jobs))
	a.mu.Unlock()
	out := &pb.AggregatorStats{
		Counters: globalCounters(&c),
		Slots:    uint64(a.cfg.Slots), SlotsUsed: uint64(slots),
		Senders: uint64(a.cfg.Senders), SendersUsed: uint64(places),
		Daemon: a.run,
	}
	for _, j := range jobs {
		if !caller.Sees(uint32(j.cfg.ID)) {
			continue
		}
		stats, err := j.jobStats()
		if errors.Is(err, aggregator.ErrNoJob) {
			continue // it is being created or removed
		}
		if err != nil {
			return nil, planeError(err)
		}
		stats.MemoryBytes = a.cfg.JobMemory(j.cfg.Slots) / 2 * uint64(j.cfg.Banks())
		out.MemoryBytes += stats.MemoryBytes
		out.Jobs = append(out.Jobs, stats)
	}
	slices.SortFunc(out.Jobs, func(a, b *pb.JobStats) int { return cmp.Compare(a.Job, b.Job) })
	return out, nil
}

// jobStats returns everything except the job's memory.
func (j *job) jobStats() (*pb.JobStats, error) {
	c, err := j.plane.JobCounters(j.cfg.ID)
	if err != nil {
		return nil, err
	}
	times, err := j.plane.JobTimes(j.cfg.ID)
	if err != nil {
		return nil, err
	}
	senders := j.roster.admissionCount()
	j.mu.Lock()
	defer j.mu.Unlock()
	return &pb.JobStats{
		Job:             uint32(j.cfg.ID),
		Epoch:           uint32(j.cfg.Epoch),
		Mode:            j.spec.Mode,
		Arithmetic:      j.spec.Arithmetic,
		Exponent:        int32(j.cfg.Exp),
		Workers:         uint32(j.cfg.Workers),
		Slots:           uint32(j.cfg.Slots),
		Senders:         uint32(senders),
		Counters:        jobCounters(&c),
		Harvests:        j.number,
		HarvestPeriodUs: j.spec.HarvestPeriodUs,
		HarvestFrames:   j.spec.HarvestFrames,
		HarvestInterval: j.interval.toMessage(),
		HarvestHeld:     j.held.toMessage(),
		GradientAge:     j.age.toMessage(),
		Instance:        j.instance,
		Owner:           j.creator.String(),
		Held:            j.owner.isConnected(),
		LeaseMs:         uint32(j.leaseLeft().Milliseconds()),
		SendersReserved: uint32(j.places),
		Latencies:       LatencyMessages(aggregatorTimes(times)),
		Children:        j.childStats(),
	}, nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/telemetry"
)

// timeTable is the program's map of the times of jobs' frames, mapped into this process.
type timeTable struct {
	mem  []byte
	jobs *[aggregator.MaxJobs]aggregateTimes
}

func openTimeTable(o *aggregateObjects) (timeTable, error) {
	mem, err := mapMemory(o.JobTimes, int(unsafe.Sizeof(*timeTable{}.jobs)))
	if err != nil {
		return timeTable{}, err
	}
	return timeTable{mem: mem, jobs: (*[aggregator.MaxJobs]aggregateTimes)(unsafe.Pointer(&mem[0]))}, nil
}

func (t *timeTable) unmapTable() error { return unix.Munmap(t.mem) }

// forgetJob discards the times of a job's predecessor.
func (t *timeTable) forgetJob(id uint16) { t.jobs[id] = aggregateTimes{} }

// JobTimes implements [aggregator.Plane].
func (a *Aggregator) JobTimes(id uint16) (telemetry.Distribution, error) {
	p, err := a.placeOf(id)
	if err != nil {
		return telemetry.Distribution{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.lockedJob(id); err != nil {
		return telemetry.Distribution{}, err
	}
	t := &a.times.jobs[id]
	return telemetry.DistributionOf(atomic.LoadUint64(&t.Sum), len(t.Counts), func(i int) uint64 {
		return atomic.LoadUint64(&t.Counts[i])
	}), nil
}

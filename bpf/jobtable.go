// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/aggregator"
)

// jobTable is the program's map of jobs, mapped into this process.
type jobTable struct {
	mem  []byte
	jobs *[aggregator.MaxJobs]aggregateJob
}

func openJobTable(o *aggregateObjects) (jobTable, error) {
	mem, err := mapMemory(o.Jobs, int(unsafe.Sizeof(*jobTable{}.jobs)))
	if err != nil {
		return jobTable{}, err
	}
	return jobTable{mem: mem, jobs: (*[aggregator.MaxJobs]aggregateJob)(unsafe.Pointer(&mem[0]))}, nil
}

func (t *jobTable) unmapTable() error { return unix.Munmap(t.mem) }

// The lowest bit of a job's lock, and the number of swaps above it; see lock.h.
const (
	locked  = 1
	oneSwap = 2
)

// startJob makes a job visible to the program.
func (t *jobTable) startJob(id uint16, value aggregateJob) {
	e := &t.jobs[id]
	slots := value.Slots
	value.Slots = 0
	*e = value
	atomic.StoreUint32(&e.Slots, slots)
}

// stopJob makes the program refuse further frames of a job.
func (t *jobTable) stopJob(id uint16) { atomic.StoreUint32(&t.jobs[id].Slots, 0) }

// turnBanks makes a job's other bank the current one.
func (t *jobTable) turnBanks(id uint16) {
	lock := &t.jobs[id].Lock
	for {
		word := atomic.LoadUint32(lock)
		if atomic.CompareAndSwapUint32(lock, word, word+oneSwap) {
			return
		}
	}
}

// swapsOf returns the number of swaps of a job's banks, modulo 2^31.
func (t *jobTable) swapsOf(id uint16) uint32 { return atomic.LoadUint32(&t.jobs[id].Lock) / oneSwap }

// awaitFree waits until the job's lock is free. Then no program uses the bank that was current
// before turnBanks: a program that takes the lock later sees the other bank. It takes a few
// microseconds.
func (t *jobTable) awaitFree(id uint16, limit time.Duration) error {
	lock := &t.jobs[id].Lock
	deadline := time.Now().Add(limit)
	for atomic.LoadUint32(lock)&locked != 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: a program has been using the bank for %v", aggregator.ErrBusy, limit)
		}
		runtime.Gosched()
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Each CPU counts for itself; what is read is the sum over all of them.
func TestCountersAreOfAllCPUs(t *testing.T) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	d := open(t)
	d.failures.start(d.objects.Aggregate) // and no interface has it, so that no frame is counted
	counts, failed := make([]aggregateCounters, cpus), make([]failuresFailures, cpus)
	want := aggregator.Counters{}
	for i := range cpus {
		n := uint64(i + 1)
		counts[i] = aggregateCounters{
			Passed: n, Forwarded: 2 * n, Truncated: 3 * n, BadChecksum: 4 * n, PartialChecksum: 5 * n,
			TooShort: 6 * n, Unexpected: 7 * n, Unanswered: 8 * n,
		}
		counts[i].Refused[wire.CodeWrongEpoch] = 9 * n
		failed[i] = failuresFailures{Answers: 10 * n, Redirects: 11 * n}
	}
	n := uint64(cpus * (cpus + 1) / 2)
	want.Passed, want.Forwarded, want.Truncated, want.BadChecksum, want.PartialChecksum = n, 2*n, 3*n, 4*n, 5*n
	want.Short, want.Unexpected, want.Unanswered = 6*n, 7*n, 8*n
	want.Refused[wire.CodeWrongEpoch] = 9 * n
	if err := d.objects.Counts.Put(uint32(0), counts); err != nil {
		t.Fatal(err)
	}
	if d.CountsFailures() == nil {
		want.UnsentAnswers, want.UnsentRedirects = 10*n, 11*n
		if err := d.failures.objects.Failed.Put(uint32(0), failed); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := d.Counters(); err != nil || got != want {
		t.Errorf("counters %+v, %v, want %+v", got, err, want)
	}
}

// A job has two banks, and with rounds an entry for each group of slots that a frame
// may hold, the last of them shorter.
func TestMemoryOfAJob(t *testing.T) {
	d := open(t)
	if want := 2 * uint64(d.inner.bank.ValueSize); JobMemory != want {
		t.Errorf("a job takes %d bytes, its banks %d", JobMemory, want)
	}
	const group = 3 * wire.Lanes
	for id, slots := range []int{1, group - 1, group, group + 1, 2 * group, 2*group + 1} {
		err := d.AddJob(aggregator.JobConfig{ID: uint16(id), Slots: slots, MaxStripes: 3, Mode: aggregator.Sync, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		want := uint32(1)
		for want*group < uint32(slots) {
			want++
		}
		if got := d.places[id].job.groups.MaxEntries(); got != want {
			t.Errorf("%d slots have %d groups, want %d", slots, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"reflect"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// Each CPU has its own counters; reading returns the sum over all of them.
func TestCountersAreOfAllCPUs(t *testing.T) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	d := open(t)
	d.failures.startCounting(d.objects.Aggregate) // and no interface has it, so that no frame is counted
	counts, failed := make([]aggregateCounters, cpus), make([]failuresFailures, cpus)
	want := aggregator.Counters{}
	for i := range cpus {
		n := uint64(i + 1)
		counts[i] = aggregateCounters{
			Passed: n, Forwarded: 2 * n, Truncated: 3 * n, BadChecksum: 4 * n, PartialChecksum: 5 * n,
			TooShort: 6 * n, Unexpected: 7 * n, Unanswered: 8 * n, OutOfBounds: 12 * n,
		}
		counts[i].Refused[wire.CodeWrongEpoch] = 9 * n
		failed[i] = failuresFailures{Answers: 10 * n, Redirects: 11 * n}
	}
	n := uint64(cpus * (cpus + 1) / 2)
	want.Passed, want.Forwarded, want.Truncated, want.BadChecksum, want.PartialChecksum = n, 2*n, 3*n, 4*n, 5*n
	want.Short, want.Unexpected, want.Unanswered, want.OutOfBounds = 6*n, 7*n, 8*n, 12*n
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

// A frame that cannot take the job's lock is dropped and counted, and changes nothing.
func TestHeldLockDropsFrames(t *testing.T) {
	for name, job := range map[string]aggregator.JobConfig{
		"hot":   {ID: 5, Mode: aggregator.Combine, Slots: 100},
		"scale": {ID: 6, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Workers: conformance.Senders, Slots: 100},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			if err := conformance.StartJob(d, job); err != nil {
				t.Fatal(err)
			}
			frame := numbered(nil, hotFrames(t, job, 1, job.Slots, 0)[0], wire.FirstSeq)
			if name == "scale" {
				frame = scaleFrame(t, job.ID, 0)
			}
			entry := &d.table.jobs[job.ID]
			entry.Lock |= 1
			before := stateOf(t, d.Aggregator, job.ID)
			v, _, err := d.Process(frame, make([]byte, aggregator.MaxReply))
			if err != nil || v.Action != aggregator.Drop {
				t.Errorf("%v, %v with the lock held, want a drop", v, err)
			}
			if !reflect.DeepEqual(stateOf(t, d.Aggregator, job.ID), before) {
				t.Error("the job has changed")
			}
			if c, err := d.JobCounters(job.ID); err != nil || c != (aggregator.JobCounters{Raced: 1}) {
				t.Errorf("counters %+v, %v, want one race", c, err)
			}
			entry.Lock &^= 1
			if v, _, err := d.Process(frame, make([]byte, aggregator.MaxReply)); err != nil || v.Action != aggregator.Reply {
				t.Errorf("%v, %v with the lock free, want an answer", v, err)
			}
		})
	}
}

// An answer to all senders of a job that is being removed, whose set of ports is gone already, is
// dropped and counted.
func TestAnswerWithoutPortsIsCounted(t *testing.T) {
	d := open(t)
	job := aggregator.JobConfig{ID: 7, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Workers: conformance.Senders, Slots: 100}
	if err := conformance.StartJob(d, job); err != nil {
		t.Fatal(err)
	}
	if err := d.objects.PortSets.Delete(uint32(job.ID)); err != nil {
		t.Fatal(err)
	}
	report := func(from int) aggregator.Action {
		t.Helper()
		v, _, err := d.Process(scaleFrame(t, job.ID, from), make([]byte, aggregator.MaxReply))
		if err != nil {
			t.Fatal(err)
		}
		return v.Action
	}
	const last = conformance.Senders - 1
	for from := range last {
		if got := report(from); got != aggregator.Reply {
			t.Errorf("%v of worker %d's report, want an answer", got, from)
		}
	}
	if got := report(last); got != aggregator.Drop {
		t.Errorf("%v of the last report, want a drop", got)
	}
	if c, err := d.Counters(); err != nil || c != (aggregator.Counters{Unanswered: 1}) {
		t.Errorf("counters %+v, %v, want one frame without an answer", c, err)
	}
	if c, err := d.JobCounters(job.ID); err != nil || c != (aggregator.JobCounters{Scales: 1}) {
		t.Errorf("counters of the job %+v, %v, want one scale", c, err)
	}
	if got := report(last); got != aggregator.Reply { // to its sender alone
		t.Errorf("%v of the repeated report, want an answer", got)
	}
}

// scaleFrame returns a worker's report for the first iteration.
func scaleFrame(t *testing.T, job uint16, from int) []byte {
	t.Helper()
	e, err := wire.NewEnvelope(conformance.Host(from), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.ScaleLen)
	wire.PutScale(frame[e.Len():], wire.Header{Job: job, Sender: conformance.Sender(from).ID}, wire.ScaleReport{Exponent: 130})
	e.Seal(frame)
	return frame
}

// A job has two banks, and with rounds an entry for each group of slots that a frame
// may hold, the last of them shorter.
func TestMemoryOfAJob(t *testing.T) {
	d := open(t)
	for slots, pages := range map[int]int{1: 1, aggregator.PageSlots: 1, aggregator.PageSlots + 1: 2, 5*aggregator.PageSlots - 1: 5} {
		if err := d.AddJob(aggregator.JobConfig{ID: 200, Slots: slots}); err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		for _, b := range d.places[200].job.banks {
			want += uint64(b.m.MaxEntries()) * uint64(b.m.ValueSize())
			if b.blocks != nil {
				want += uint64(b.blocks.MaxEntries()) * uint64(b.blocks.ValueSize())
			}
			if int(b.m.MaxEntries()) != pages || len(b.slots) != pages*aggregator.PageSlots {
				t.Errorf("a bank of %d slots has %d pages, and %d slots in memory; want %d pages", slots, b.m.MaxEntries(), len(b.slots), pages)
			}
		}
		if got := JobMemory(slots); got != want {
			t.Errorf("a job of %d slots takes %d bytes, its banks %d", slots, got, want)
		}
		if err := d.RemoveJob(200); err != nil {
			t.Fatal(err)
		}
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

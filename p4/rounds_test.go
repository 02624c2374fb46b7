// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// A result leaves by all ports with hosts of the job, including the ingress port of the last
// contribution, and without the bytes after that frame.
func TestResultsGoToAllPorts(t *testing.T) {
	f, target, _ := startFake(t)
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP, Ports: []uint32{1, 2, 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	job := aggregator.JobConfig{ID: 5, Epoch: 2, Mode: aggregator.Sync, Workers: 1, Slots: 22}
	if err := p.AddJob(job); err != nil {
		t.Fatal(err)
	}
	s := conformance.Sender(0)
	s.Epoch = job.Epoch
	if err := p.AddSender(job.ID, s); err != nil {
		t.Fatal(err)
	}
	frame := onesFrame(t, job, wire.FirstSeq)
	out := f.Process(2, append(bytes.Clone(frame), "padding"...))
	ports := make(map[uint16]bool)
	for _, o := range out {
		ports[o.Port] = true
		if !toAll(o.Data) || len(o.Data) != len(frame) {
			t.Errorf("port %d: %x", o.Port, o.Data)
		}
	}
	if len(out) != 3 || len(ports) != 3 {
		t.Errorf("the result goes to %v", out)
	}
	if c, err := p.JobCounters(job.ID); err != nil || c.Rounds != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Jobs with rounds have no harvest, and admit as many senders as they have places.
func TestRoundsHaveNoHarvest(t *testing.T) {
	d := openSimulated(t, nil)
	if err := d.AddJob(aggregator.JobConfig{ID: 5, Mode: aggregator.Sync, Workers: aggregator.MaxWorkers, Slots: 22}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Swap(5); !errors.Is(err, aggregator.ErrMode) {
		t.Errorf("swap: %v", err)
	}
	if err := d.Clear(&aggregator.Bank{Job: 5}); !errors.Is(err, aggregator.ErrMode) {
		t.Errorf("clear: %v", err)
	}
	for i := range aggregator.MaxWorkers + 1 {
		s := conformance.Sender(0)
		s.ID = uint16(i)
		err := d.AddSender(5, s)
		if i < aggregator.MaxWorkers && err != nil {
			t.Fatal(err)
		}
		if i == aggregator.MaxWorkers && !errors.Is(err, aggregator.ErrTooManySenders) {
			t.Errorf("one sender too many: %v", err)
		}
	}
	if err := d.RemoveSender(5, 0); err != nil {
		t.Fatal(err)
	}
	s := conformance.Sender(0)
	s.ID = 0
	if err := d.AddSender(5, s); !errors.Is(err, aggregator.ErrTooManySenders) {
		t.Errorf("in the place of a sender that has left: %v", err)
	}
}

// A job starts without another one's state under its number: neither a report nor a decision is
// left.
func TestScalesBeginWithTheJob(t *testing.T) {
	d := openSimulated(t, nil)
	job := aggregator.JobConfig{ID: 6, Epoch: 2, Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Workers: conformance.Senders, Slots: wire.Lanes, MaxStripes: 1, Layouts: aggregator.Aligned}
	p := pair(t, d, []aggregator.JobConfig{job})
	begin := func() {
		t.Helper()
		for _, plane := range []aggregator.Plane{d, p.Model} {
			if err := plane.RemoveJob(job.ID); err != nil {
				t.Fatal(err)
			}
			if err := conformance.StartJob(plane, job); err != nil {
				t.Fatal(err)
			}
		}
	}
	seq := uint32(wire.FirstSeq)
	// report sends a report and returns the switch's decision, if any.
	report := func(sender int, iteration uint32, exponent uint8) (decided *wire.ScaleReport) {
		t.Helper()
		e, err := wire.NewEnvelope(conformance.Host(sender), conformance.Aggregator)
		if err != nil {
			t.Fatal(err)
		}
		frame, reply := make([]byte, e.Len()+wire.ScaleLen), make([]byte, aggregator.MaxReply)
		wire.PutScale(frame[e.Len():], wire.Header{Job: job.ID, Sender: conformance.Sender(sender).ID, Epoch: job.Epoch, Seq: seq},
			wire.ScaleReport{Iteration: iteration, Exponent: exponent})
		e.Seal(frame)
		seq++
		if _, err := p.Process(frame); err != nil { // the model decides otherwise
			t.Error(err)
		}
		_, n, err := d.ProcessFrom(0, frame, reply) // once more, for the answer: a repetition also gets it
		if err != nil {
			t.Fatal(err)
		}
		answer, err := wire.ParseFrame(reply[:n], conformance.Host(sender).Port)
		if err != nil {
			t.Fatal(err)
		}
		h, err := wire.ParseHeader(answer.Payload)
		if err != nil || h.Type != wire.TypeAck {
			t.Fatalf("answered with %+v, %v", h, err)
		}
		if h.Flags&wire.FlagSum == 0 {
			return nil
		}
		r, err := wire.ParseScale(answer.Payload)
		if err != nil {
			t.Fatal(err)
		}
		return &r
	}
	for _, reported := range []int{0, 1, conformance.Senders} { // by the previous job
		for sender := range reported {
			report(sender, 0, 100)
		}
		begin()
		seq = wire.FirstSeq
		for sender := range conformance.Senders {
			got, last := report(sender, 0, uint8(50+sender)), sender == conformance.Senders-1
			if (got != nil) != last || last && got.Exponent != 50+conformance.Senders-1 {
				t.Errorf("behind a job with %d reports: report %d is answered with %+v", reported, sender, got)
			}
		}
		begin()
		seq = wire.FirstSeq
	}
}

// A sender whose admission has failed half-way leaves nothing in the switch after its job has
// ended.
func TestFailedAdmissionLeavesNoPlace(t *testing.T) {
	d := openSimulated(t, nil)
	job := aggregator.JobConfig{ID: 5, Mode: aggregator.Sync, Workers: 2, Slots: 22}
	if err := d.AddJob(job); err != nil {
		t.Fatal(err)
	}
	d.fake.mu.Lock()
	d.fake.fail, d.fake.writesLeft = codes.Unavailable, 1 // the entry in table participants
	d.fake.mu.Unlock()
	if err := d.AddSender(job.ID, conformance.Sender(0)); !errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	if err := d.AddSender(job.ID, conformance.Sender(1)); err != nil {
		t.Error(err)
	}
	if err := d.RemoveJob(job.ID); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"LibraIngress.participation.participants", "LibraIngress.check.admission.senders"} {
		d.fake.mu.Lock()
		table := d.fake.program.tables[name]
		d.fake.mu.Unlock()
		if table == nil || table.len() != 0 {
			t.Errorf("table %s: %v", name, table)
		}
	}
}

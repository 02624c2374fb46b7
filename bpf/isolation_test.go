// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// waitsFor makes a program seem to hold a job's lock until the function that it
// returns is called.
func (d *device) waitsFor(job uint16) (release func()) {
	word := &d.table.jobs[job].Lock
	atomic.OrUint32(word, locked)
	return func() { atomic.AndUint32(word, ^uint32(locked)) }
}

// A call for one job may have to wait: for the kernel, until no program runs that
// has seen what was taken away, or for the program that holds the job's lock. No
// call for another job waits for that, and neither do harvests and counters of the
// same job, if they need not.
func TestJobsDoNotWaitForEachOther(t *testing.T) {
	const slow, other = 3, 4
	config := func(id uint16) aggregator.JobConfig { return aggregator.JobConfig{ID: id, Slots: 1000} }
	type call struct {
		name string
		do   func(d *device) error
	}
	counters := func(id uint16) []call {
		return []call{
			{"JobCounters", func(d *device) error { _, err := d.JobCounters(id); return err }},
			{"SenderCounters", func(d *device) error { _, err := d.SenderCounters(id, conformance.Sender(0).ID); return err }},
		}
	}
	harvest := func(id uint16) []call {
		return append(counters(id), call{"Swap and Clear", func(d *device) error {
			b, err := d.Swap(id)
			if err != nil {
				return err
			}
			return d.Clear(b)
		}})
	}
	admission := func(id uint16) []call {
		return []call{
			{"AddSender", func(d *device) error { return d.AddSender(id, conformance.Sender(1)) }},
			{"RemoveSender", func(d *device) error { return d.RemoveSender(id, conformance.Sender(1).ID) }},
		}
	}
	for _, c := range []struct {
		call
		held bool   // a program holds the lock of the job
		own  []call // of the same job, that go on
	}{
		{call{"AddJob", func(d *device) error { return d.AddJob(config(slow + 10)) }}, false, nil},
		{call{"RemoveJob", func(d *device) error { return d.RemoveJob(slow) }}, false, nil},
		{call{"RemoveSender", func(d *device) error { return d.RemoveSender(slow, conformance.Sender(2).ID) }}, false, harvest(slow)},
		{call{"Swap", func(d *device) error { _, err := d.Swap(slow); return err }}, true, append(counters(slow), admission(slow)...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := open(t)
			for _, id := range []uint16{slow, other} {
				if err := conformance.StartJob(d, config(id)); err != nil {
					t.Fatal(err)
				}
				if err := d.RemoveSender(id, conformance.Sender(1).ID); err != nil {
					t.Fatal(err)
				}
			}
			waiting, released := make(chan struct{}), make(chan struct{})
			var later atomic.Bool
			release := func() { close(released) }
			if c.held {
				d.patience = time.Hour
				release = d.waitsFor(slow)
				close(released)
			}
			d.waits = func(id uint16) {
				if id%10 == slow && !later.Swap(true) { // also the job that AddJob adds
					close(waiting)
					<-released
				}
			}
			result := make(chan error, 1)
			go func() { result <- c.do(d) }()
			<-waiting
			at := make(chan string, 1)
			done := make(chan error, 1)
			go func() {
				all := append(append(harvest(other), admission(other)...),
					call{"AddJob", func(d *device) error { return d.AddJob(config(9)) }},
					call{"RemoveJob", func(d *device) error { return d.RemoveJob(9) }},
					call{"Counters", func(d *device) error { _, err := d.Counters(); return err }},
				)
				for _, o := range append(all, c.own...) {
					at <- o.name
					if err := o.do(d); err != nil {
						done <- err
						return
					}
					<-at
				}
				done <- nil
			}()
			select {
			case err := <-done:
				if err != nil {
					t.Error(<-at, err)
				}
			case <-time.After(eventLimit):
				t.Errorf("%s waits for a %s of another job", <-at, c.name)
			}
			select {
			case err := <-result:
				t.Errorf("%s did not wait: %v", c.name, err)
			default:
			}
			release()
			if err := <-result; err != nil {
				t.Errorf("%s, after it waited: %v", c.name, err)
			}
		})
	}
}

// A Swap that fails because a program holds the job's lock for too long leaves the
// job as it was: the next one returns all that was added, also what was added while
// the first one waited.
func TestSwapThatTimesOut(t *testing.T) {
	d := open(t)
	job := aggregator.JobConfig{ID: 6, Slots: 2}
	if err := conformance.StartJob(d, job); err != nil {
		t.Fatal(err)
	}
	seq := uint32(0)
	push := func(rank int, value float32) {
		t.Helper()
		seq++
		p := make([]byte, wire.HotLen(1))
		wire.Header{Type: wire.TypeHot, Flags: wire.FlagDense, Job: job.ID, Sender: conformance.Sender(0).ID, Seq: seq}.Put(p)
		s := wire.StripeAt(p, 0)
		s.SetMask(1)
		s.SetSlot(0, uint16(rank))
		s.SetValue(0, value)
		e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
		if err != nil {
			t.Fatal(err)
		}
		frame := append(make([]byte, e.Len()), p...)
		e.Seal(frame)
		if v, n, err := d.Process(frame, make([]byte, aggregator.MaxReply)); err != nil || v.Action != aggregator.Reply || n != wire.EnvelopeLen+wire.HeaderLen {
			t.Fatalf("frame %d: %v, answer of %d bytes, %v; want an ACK", seq, v, n, err)
		}
	}
	push(0, 5)
	d.patience = 10 * time.Millisecond
	release := d.waitsFor(job.ID)
	d.waits = func(uint16) { // the banks are exchanged, and the program has not left the old one
		release()
		push(1, 100)
		release = d.waitsFor(job.ID)
	}
	if b, err := d.Swap(job.ID); err == nil {
		t.Fatalf("a bank is returned, %v, although a program may be adding to it", b.Slots)
	}
	d.waits = nil
	release()
	push(0, 7)
	for i, want := range [][2]int64{{5, 0}, {7, 100}, {}, {}} { // then both banks are clear
		b, err := d.Swap(job.ID)
		if err != nil {
			t.Fatalf("the next Swap: %v", err)
		}
		if sums := [2]int64(b.Slots); sums != want || (want == [2]int64{}) != (b.Frames == 0 && b.Pairs == 0) {
			t.Errorf("harvest %d afterwards has %v of %d frames and %d pairs, want %v", i, sums, b.Frames, b.Pairs, want)
		}
		if err := d.Clear(b); err != nil {
			t.Fatal(err)
		}
	}
}

// A program that runs while its sender is withdrawn may still write the sender's
// entry. So no other sender gets the entry before such programs have ended.
func TestEntryIsNotReusedWhileProgramsRun(t *testing.T) {
	a := openWith(t, Options{Address: conformance.Aggregator.IP, MaxSenders: 1})
	for id := range uint16(2) {
		if err := a.AddJob(aggregator.JobConfig{ID: id, Slots: 1}); err != nil {
			t.Fatal(err)
		}
	}
	s := conformance.Sender(0)
	remove := map[string]func() error{
		"RemoveSender": func() error { return a.RemoveSender(0, s.ID) },
		"RemoveJob":    func() error { return a.RemoveJob(0) },
	}
	for _, name := range []string{"RemoveSender", "RemoveJob"} {
		if err := a.AddSender(0, s); err != nil {
			t.Fatal(err)
		}
		waiting, ended := make(chan struct{}), make(chan struct{})
		a.waits = func(uint16) { close(waiting); <-ended }
		result := make(chan error, 1)
		go func() { result <- remove[name]() }()
		<-waiting
		if err := a.AddSender(1, s); !errors.Is(err, aggregator.ErrTooManySenders) {
			t.Errorf("%s waits for programs; a sender that comes meanwhile gets %v, want ErrTooManySenders", name, err)
		}
		close(ended)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		a.waits = nil
		if err := errors.Join(a.AddSender(1, s), a.RemoveSender(1, s.ID)); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// A program may find an entry just before its sender is withdrawn and read it when
// the memory where it found it is another's. What it reads then names another
// sender, and the frame is refused, even if both are on one host.
func TestStaleIndexIsRefused(t *testing.T) {
	d := open(t)
	for id := range uint16(2) {
		if err := conformance.StartJob(d, aggregator.JobConfig{ID: id, Slots: 1}); err != nil {
			t.Fatal(err)
		}
	}
	twin := conformance.Sender(0)
	twin.ID = 7
	if err := d.AddSender(0, twin); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: 0, Sender: conformance.Sender(0).ID, Seq: 1}.Put(p)
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	frame, reply := append(make([]byte, e.Len()), p...), make([]byte, aggregator.MaxReply)
	e.Seal(frame)
	for name, other := range map[string]member{
		"same sender of another job": d.places[1].job.senders[conformance.Sender(0).ID],
		"another sender of the job":  d.places[0].job.senders[twin.ID],
	} {
		key := aggregateSenderKey{Job: 0, Sender: conformance.Sender(0).ID}
		if err := d.objects.Admissions.Put(key, other.index); err != nil {
			t.Fatal(err)
		}
		before, err := d.JobCounters(0)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.Process(frame, reply); err != nil {
			t.Fatal(err)
		}
		after, err := d.JobCounters(0)
		if err != nil {
			t.Fatal(err)
		}
		if after.Refused[wire.CodeUnknownSender] != before.Refused[wire.CodeUnknownSender]+1 || after.Applied != 0 {
			t.Errorf("%s: the job has counted %+v", name, after)
		}
	}
}

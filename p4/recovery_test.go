// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/p4/program"
	"github.com/libra-ina/libra/wire"
)

// wantFailed waits for the error after which a plane is unusable.
func wantFailed(t *testing.T, p *Plane, target error) {
	t.Helper()
	select {
	case err := <-p.Failed():
		if !errors.Is(err, target) {
			t.Errorf("the plane has failed with %v, want %v", err, target)
		}
	case <-time.After(30 * time.Second):
		t.Errorf("the plane has not failed within half a minute, want %v", target)
	}
}

// Another switch daemon loads the same program while the connection is broken: the jobs are gone.
func TestNoticesThatTheProgramWasLoadedAgain(t *testing.T) {
	t.Parallel()
	f, target, stop := startFake(t)
	o := Options{Target: target, Address: conformance.Aggregator.IP, Election: 5}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	stop()
	path := t.TempDir() + "/p4rt"
	stop = f.serve(t, path)
	o.Target, o.Election = "unix:"+path, 4
	q, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	stop()
	f.serve(t, target[len("unix:"):])
	wantFailed(t, p, ErrStateLost)
}

// A switch that cannot report at once which program it runs is asked until it can.
func TestAsksASlowSwitchAgain(t *testing.T) {
	f, target, stop := startFake(t)
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	stop()
	f.restart()
	f.deaf = 3
	f.serve(t, target[len("unix:"):])
	wantFailed(t, p, ErrStateLost)
}

func TestElectionIDIsTaken(t *testing.T) {
	f, target, _ := startFake(t)
	f.unique = true
	o := Options{Target: target, Address: conformance.Aggregator.IP}
	p, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := Open(o); !errors.Is(err, ErrNotPrimary) || !strings.Contains(err.Error(), "--p4-election") {
		t.Errorf("the election ID of another controller: %v", err)
	}
	if err := p.AddJob(aggregator.JobConfig{ID: 1, Slots: 100}); err != nil {
		t.Errorf("the primary after another's attempt: %v", err)
	}
}

func TestRefusedProgram(t *testing.T) {
	_, target, _ := startFake(t)
	broken, err := program.Default()
	if err != nil {
		t.Fatal(err)
	}
	broken.Device = []byte("of another switch")
	_, err = Open(Options{Target: target, Address: conformance.Aggregator.IP, Program: broken})
	if err == nil || !strings.Contains(err.Error(), "--p4-config") || !strings.Contains(err.Error(), "--p4-device") {
		t.Errorf("a program of another switch: %v", err)
	}
}

func TestNoRowComesBack(t *testing.T) {
	t.Parallel()
	f, target, _ := startFake(t)
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	f.mu.Lock()
	f.lose = 1 << 30
	f.mu.Unlock()
	err = p.AddJob(aggregator.JobConfig{ID: 1, Slots: 10})
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), target) || !strings.Contains(err.Error(), "--cpu-port") {
		t.Errorf("a switch that answers no request: %v", err)
	}
}

func TestTableOfHostsIsFull(t *testing.T) {
	d := openSimulated(t, nil)
	host := func(i int) [6]byte { return [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)} }
	size := int(d.names.tables[tableHosts].size)
	for i := range size {
		if err := d.AddRoute(host(i), 1); err != nil {
			t.Fatal(err)
		}
	}
	d.fake.mu.Lock()
	writes := d.fake.writes
	d.fake.mu.Unlock()
	if err := d.AddRoute(host(size), 1); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "1024 hosts") {
		t.Errorf("one host too many: %v", err)
	}
	d.fake.mu.Lock()
	if d.fake.writes != writes {
		t.Error("the switch is asked for what it has no room for")
	}
	d.fake.mu.Unlock()
	if err := d.AddRoute(host(7), 2); err != nil {
		t.Errorf("another port of a host that is there: %v", err)
	}
}

// An admission whose answer is lost may be in the switch. Nothing of it is left when its sender is
// admitted differently, or its job removed, and until then no other sender gets its filter.
func TestAdmissionsWithoutAnAnswerAreTakenBack(t *testing.T) {
	d := openSimulated(t, nil)
	job := aggregator.JobConfig{ID: 1, Epoch: 1, Slots: wire.Lanes}
	if err := d.AddJob(job); err != nil {
		t.Fatal(err)
	}
	lost := conformance.Sender(0)
	lost.Epoch = job.Epoch
	d.fake.mu.Lock()
	d.fake.fail, d.fake.unheard = codes.Unavailable, true
	d.fake.mu.Unlock()
	if err := d.AddSender(job.ID, lost); !errors.Is(err, ErrUnreachable) {
		t.Fatalf("an admission without an answer: %v", err)
	}
	other := conformance.Sender(1)
	other.Epoch = job.Epoch
	if err := d.AddSender(job.ID, other); err != nil {
		t.Fatal(err)
	}
	if a := d.jobs[job.ID].doubtful[lost.ID]; a == nil || a.index == d.jobs[job.ID].senders[other.ID].index {
		t.Errorf("the admission in doubt, %+v, has the filter of another", a)
	}
	if err := d.RemoveJob(job.ID); err != nil {
		t.Fatal(err)
	}
	d.fake.mu.Lock()
	defer d.fake.mu.Unlock()
	for name, table := range d.fake.program.tables {
		if strings.HasSuffix(name, "."+tableSenders) && len(table.entries) != 0 {
			t.Errorf("%d senders are in the switch, without a job", len(table.entries))
		}
	}
	if got := d.senders.next - len(d.senders.freed); got != 0 {
		t.Errorf("%d filters are in use, without a job", got)
	}
}

// A program with fewer rows would lose additions to the missing ones.
func TestRegistersHaveTheSizeThatTheControlPlaneCountsOn(t *testing.T) {
	for _, name := range []string{"slots0", "slots21", "seen"} {
		broken, err := program.Default()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range broken.Info.Registers {
			if r.Preamble.Alias == name {
				r.Size /= 2
			}
		}
		if _, err := resolve(broken.Info); err == nil || !strings.Contains(err.Error(), "register "+name+" has") {
			t.Errorf("half of %s: %v", name, err)
		}
	}
}

// A job's counters start at 0, even if another one had its number.
func TestCountersBeginWithTheJob(t *testing.T) {
	d := openSimulated(t, nil)
	job := aggregator.JobConfig{ID: 1, Epoch: 1, Slots: wire.Lanes}
	for range 2 {
		if err := conformance.StartJob(d, job); err != nil {
			t.Fatal(err)
		}
		d.fake.Process(1, onesFrame(t, job, wire.FirstSeq))
		if c, err := d.JobCounters(job.ID); err != nil || c.Applied != 1 || c.Pairs != wire.Lanes {
			t.Errorf("after one frame: %+v, %v", c, err)
		}
		if err := d.RemoveJob(job.ID); err != nil {
			t.Fatal(err)
		}
	}
}

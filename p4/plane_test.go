// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

func TestManagement(t *testing.T) { conformance.TestManagement(t, openSimulated(t, nil)) }

func TestRefusesWhatTheProgramLacks(t *testing.T) {
	d := openSimulated(t, nil)
	for name, cfg := range map[string]aggregator.JobConfig{
		"switch.stripes": {MaxStripes: 2},
		"it takes sync":  {Mode: aggregator.Acked, Workers: 2},
		"lane-aligned":   {MaxStripes: 1, Layouts: aggregator.Aligned | aggregator.Dense},
	} {
		cfg.Slots = 30
		if err := d.AddJob(cfg); !errors.Is(err, aggregator.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A job gets rows that no other job has, zeroed if another one had them before.
func TestRowsAreGivenOnce(t *testing.T) {
	t.Parallel()
	d := openSimulated(t, nil)
	g := conformance.NewGenerator(1, jobs...)
	reply := make([]byte, aggregator.MaxReply)
	push := func(k int) {
		for range 3 {
			if _, _, err := d.ProcessFrom(0, g.Valid(k, 0), reply); err != nil {
				t.Fatal(err)
			}
		}
	}
	for k := range jobs {
		if err := g.Start(d, k); err != nil {
			t.Fatal(err)
		}
		push(k)
	}
	const removed = 1 // the largest
	if err := d.RemoveJob(jobs[removed].ID); err != nil {
		t.Fatal(err)
	}
	other := jobs[removed]
	other.ID, other.Slots = 200, wire.Lanes*500
	if err := d.AddJob(other); err != nil {
		t.Fatal(err)
	}
	if got, want := d.jobs[200].first, 46; got != want {
		t.Errorf("the new job begins at row %d, want %d: the first hole", got, want)
	}
	b, err := d.Swap(200)
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(b.Slots, func(n int64) bool { return n != 0 }); i >= 0 || b.Frames != 0 {
		t.Errorf("a new job has %d in rank %d, of %d frames", b.Slots[max(i, 0)], i, b.Frames)
	}
	too := aggregator.JobConfig{ID: 201, Slots: aggregator.PageSlots}
	var full error
	for too.ID = 201; full == nil; too.ID++ {
		full = d.AddJob(too)
	}
	if !errors.Is(full, aggregator.ErrTooManySlots) {
		t.Errorf("one job too many: %v", full)
	}
}

// A failed call changes nothing, and may be repeated.
func TestFailedCallsChangeNothing(t *testing.T) {
	d := openSimulated(t, nil)
	job := aggregator.JobConfig{ID: 1, Slots: 100}
	fail := func(code codes.Code) {
		d.fake.mu.Lock()
		defer d.fake.mu.Unlock()
		d.fake.fail = code
	}
	want := func(what string, err, target error) {
		t.Helper()
		if !errors.Is(err, target) {
			t.Errorf("%s: error %v, want %v", what, err, target)
		}
	}
	fail(codes.ResourceExhausted)
	want("job into a full table", d.AddJob(job), ErrFull)
	want("job again", d.AddJob(job), nil)
	fail(codes.Unavailable)
	want("sender while the switch is away", d.AddSender(1, conformance.Sender(0)), ErrUnreachable)
	want("sender again", d.AddSender(1, conformance.Sender(0)), nil)
	fail(codes.Unavailable)
	_, err := d.Swap(1)
	want("swap while the switch is away", err, ErrUnreachable)
	b, err := d.Swap(1)
	want("swap again", err, nil)
	fail(codes.Unavailable)
	want("removal while the switch is away", d.RemoveSender(1, conformance.Sender(0).ID), ErrUnreachable)
	want("removal again", d.RemoveSender(1, conformance.Sender(0).ID), nil)
	want("clear", d.Clear(b), nil)
	fail(codes.PermissionDenied)
	want("removal by another controller's leave", d.RemoveJob(1), ErrNotPrimary)
	want("removal again", d.RemoveJob(1), nil)
}

// A harvest misses no slot although requests and responses are lost.
func TestHarvestRepeatsLostRequests(t *testing.T) {
	t.Parallel()
	d := openSimulated(t, nil)
	p := pair(t, d, jobs)
	g := conformance.NewGenerator(1, jobs...)
	for range 200 {
		for sender := range conformance.Senders {
			if _, err := p.Process(g.Valid(0, sender)); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.fake.mu.Lock()
	d.fake.lose = 30
	d.fake.mu.Unlock()
	if err := p.Harvest(jobs[0].ID); err != nil {
		t.Error(err)
	}
}

func TestTableOfSendersIsFull(t *testing.T) {
	d := openSimulated(t, nil)
	if err := d.AddJob(aggregator.JobConfig{ID: 1, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	for i := range d.senders.size {
		s := conformance.Sender(0)
		s.ID = uint16(i)
		if err := d.AddSender(1, s); err != nil {
			t.Fatalf("sender %d: %v", i, err)
		}
	}
	s := conformance.Sender(0)
	s.ID = 999
	if err := d.AddSender(1, s); !errors.Is(err, aggregator.ErrTooManySenders) {
		t.Errorf("one sender too many: %v", err)
	}
	if err := d.RemoveSender(1, 7); err != nil {
		t.Fatal(err)
	}
	if err := d.AddSender(1, s); err != nil {
		t.Errorf("a place is free, and yet: %v", err)
	}
}

// The filter's entries tell 2^23-1 admissions apart. The last one works; the next would share its
// entries with the first.
func TestAdmissionsAreUsedUp(t *testing.T) {
	d := openSimulated(t, nil)
	if err := d.AddJob(aggregator.JobConfig{ID: 1, Slots: 10}); err != nil {
		t.Fatal(err)
	}
	d.generations = lastGeneration - 1
	s := conformance.Sender(0)
	if err := d.AddSender(1, s); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveSender(1, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := d.AddSender(1, s); !errors.Is(err, aggregator.ErrTooManySenders) || !strings.Contains(err.Error(), "restart libra switch") {
		t.Errorf("one admission more than the filter can tell apart: %v", err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within half a minute", what)
		}
	}
}

// setBehind makes packets of the control plane wait for later ones.
func (f *fake) setBehind(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = n
}

// A request that was repeated because the response was late may reach the program after its call
// has ended. It must not clear later additions.
func TestRepeatedRequestsClearNothingNew(t *testing.T) {
	t.Parallel()
	d := openSimulated(t, nil)
	job := aggregator.JobConfig{ID: 1, Epoch: 1, Slots: wire.Lanes}
	if err := conformance.StartJob(d, job); err != nil {
		t.Fatal(err)
	}
	harvest := func() uint64 {
		b, err := d.Swap(job.ID)
		for errors.Is(err, ErrUnreachable) { // the machine is busy
			b, err = d.Swap(job.ID)
		}
		if err != nil {
			t.Error(err)
			return 0
		}
		for rank, sum := range b.Slots {
			if sum != int64(b.Frames) {
				t.Errorf("rank %d has %d of %d frames", rank, sum, b.Frames)
			}
		}
		for err = d.Clear(b); errors.Is(err, ErrUnreachable); err = d.Clear(b) {
		}
		if err != nil {
			t.Error(err)
		}
		return b.Frames
	}
	d.fake.setBehind(1)
	harvest() // bank 0
	d.fake.setBehind(1000)
	harvested := make(chan uint64)
	go func() { harvested <- harvest() }() // bank 1, while frames add to bank 0
	eventually(t, "the rows of bank 1 are asked for", func() bool {
		d.fake.mu.Lock()
		defer d.fake.mu.Unlock()
		last := len(d.fake.queue) - 1
		return last >= 0 && bytes.Equal(d.fake.queue[last].Metadata[1].Value, uintNumber(rowsOfBank).canonicalBytes())
	})
	d.fake.Process(1, onesFrame(t, job, wire.FirstSeq))
	d.fake.setBehind(0)
	if n := <-harvested + harvest(); n != 1 {
		t.Errorf("%d frames are harvested, want 1", n)
	}
}

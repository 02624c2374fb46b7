// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// late is a plane some of whose frames come between the counters and the swap, or after it.
type late struct {
	aggregator.Plane // nil: methods that a harvest does not call

	applied uint64
	frames  []uint64 // of the banks that it gives
}

func (l *late) JobCounters(uint16) (aggregator.JobCounters, error) {
	return aggregator.JobCounters{Applied: l.applied}, nil
}

func (l *late) Swap(uint16) (*aggregator.Bank, error) {
	b := &aggregator.Bank{Frames: l.frames[0]}
	l.frames = l.frames[1:]
	return b, nil
}

func (l *late) Clear(*aggregator.Bank) error { return nil }

// Frames that are in the other bank than the one which a harvest takes are left for the next one,
// and frames that came after the counters were read do not count twice.
func TestFramesInTheOtherBank(t *testing.T) {
	p := &late{frames: []uint64{7, 5}}
	j := &job{plane: p, spec: &pb.JobSpec{HarvestFrames: 3}, first: true}
	harvest := func() *aggregator.Bank {
		t.Helper()
		if err := j.freezeBank(); err != nil {
			t.Fatal(err)
		}
		bank := j.frozen
		if err := j.clearHarvest(); err != nil {
			t.Fatal(err)
		}
		return bank
	}
	enough := func() bool {
		t.Helper()
		is, err := j.enoughFrames()
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	p.applied = 10 // three of them in the other bank
	if harvest(); !enough() {
		t.Error("three frames are in no harvest")
	}
	if bank := harvest(); bank == nil || bank.Frames != 5 { // two of them came after the counters were read
		t.Errorf("the second bank is %+v", bank)
	}
	p.applied = 12
	if bank := harvest(); bank != nil || enough() {
		t.Errorf("a bank of nothing: %+v", bank)
	}
	p.applied = 14
	if enough() {
		t.Error("two frames are enough for three")
	}
	p.applied = 15
	if !enough() {
		t.Error("three frames are not enough for three")
	}
	if j.harvestStream() != 3 || j.interval.count != 2 || j.held.count != 3 {
		t.Errorf("%d harvests, %d intervals, held %d times", j.harvestStream(), j.interval.count, j.held.count)
	}
}

// The time between two streams is no interval of harvests, and the newest harvest is all that an
// owner may lack.
func TestResume(t *testing.T) {
	p := &late{frames: []uint64{1, 1, 1}}
	j := &job{plane: p, spec: &pb.JobSpec{}, first: true}
	for i := range uint64(2) {
		if p.applied = i + 1; j.freezeBank() != nil || j.resumeStream(i) != nil || !j.pending {
			t.Errorf("harvest %d is pending: %v", i+1, j.pending)
		}
		if err := j.resumeStream(i + 1); err != nil || j.pending || j.frozen != nil {
			t.Errorf("harvest %d was applied: %v, pending %v", i+1, err, j.pending)
		}
	}
	for _, last := range []uint64{0, 1, 3} {
		if err := j.resumeStream(last); err == nil {
			t.Errorf("an owner has applied %d of 2 harvests, and none is pending", last)
		}
	}
	if j.interval.count != 0 {
		t.Errorf("%d intervals", j.interval.count)
	}
}

// A worker that keeps no log is told no marks, of which it has no use.
func TestMarksOfAWorkerWithoutALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5)
		w := s.worker(t, 1)
		if err := w.join(t); err != nil {
			t.Fatal(err)
		}
		told := make(chan *pb.Membership, 1)
		go func() {
			if m, err := w.stream.Recv(); err == nil {
				told <- m
			}
		}()
		s.service.Applied([]aggregator.Mark{{Sender: 1, Epoch: 3, Newest: 9}})
		time.Sleep(time.Second)
		select {
		case m := <-told:
			t.Errorf("it is told %+v", m)
		default:
		}
		if marks := s.service.generation.marks; !slices.ContainsFunc(marks, func(m aggregator.Mark) bool { return m.Newest == 9 }) {
			t.Errorf("the marks are %+v", marks)
		}
	})
}

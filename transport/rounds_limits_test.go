// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"testing"
	"time"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// smallRounds is a worker with a call of three groups, none of which is sent, and windows of a
// size. The test runs it.
func smallRounds(t *testing.T, size int) *rounds {
	t.Helper()
	w, err := makeWorker(t.Context(), roundsConfig(t, newMemNet(), retransmit.Config{Size: size, Silence: time.Hour}))
	if err != nil {
		t.Fatal(err)
	}
	r := w.rounds
	for i := range r.contributions {
		r.contributions[i].round = 5
	}
	v := make([]float32, testSlots)
	r.request = roundCall{id: 7, end: r.groups, grads: v, sums: v, numbers: packer.Integers(0)}
	r.acceptCall()
	return r
}

// leave sends what fits.
func leave(t *testing.T, r *rounds) bool {
	t.Helper()
	any := r.sendContributions()
	if _, err := r.w.transmit(); err != nil {
		t.Fatal(err)
	}
	return any
}

// TestRoundLimit measures how long the windows wait for a result: RoundLimit, or
// the limit of silence if there is none.
func TestRoundLimit(t *testing.T) {
	for _, c := range []struct{ limit, silence, want time.Duration }{
		{300 * time.Millisecond, time.Hour, 300 * time.Millisecond},
		{0, 2 * time.Second, 2 * time.Second},
	} {
		cfg := roundsConfig(t, newMemNet(), retransmit.Config{Silence: c.silence})
		cfg.RoundLimit = c.limit
		w, err := makeWorker(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		waits := w.rounds.waits
		waits.Add(0, retransmit.Entry{})
		var silent *retransmit.SilentPeerError
		for range 1000 {
			now, _ := waits.NextDeadline()
			if errors.As(waits.Check(now), &silent) {
				break
			}
		}
		if silent == nil || silent.Silent != c.want {
			t.Errorf("limit %v, silence %v: given up with %+v, want %v", c.limit, c.silence, silent, c.want)
		}
	}
}

// TestRoundsKeepRoomForWhatWaits acknowledges contributions: those that wait for their result and
// unacknowledged ones share the window.
func TestRoundsKeepRoomForWhatWaits(t *testing.T) {
	for size := 1; size <= 2; size++ {
		r := smallRounds(t, size)
		if !leave(t, r) || r.next != size || r.unacked != size {
			t.Fatalf("window of %d: %d contributions sent, %d not acknowledged", size, r.next, r.unacked)
		}
		h := wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 1}
		r.contributionAcked(h, wire.PutAck(make([]byte, wire.HeaderLen), h))
		if r.contributions[0].state != waiting || r.unacked != size-1 || r.waits.Outstanding() != 1 {
			t.Fatalf("window of %d: %+v, %d not acknowledged, %d wait", size, r.contributions[0], r.unacked, r.waits.Outstanding())
		}
		if leave(t, r) || r.next != size {
			t.Errorf("window of %d: contribution %d is sent while %d wait and %d are not acknowledged", size, r.next, r.waits.Outstanding(), r.unacked)
		}
		r.settleContribution(0)
		if !leave(t, r) || r.next != size+1 {
			t.Errorf("window of %d: %d contributions are sent after the first result, want one more", size, r.next)
		}
	}
}

// TestGroupsCoverTheVector has vectors that fill their last group, and vectors that are a slot
// shorter and longer: each slot is in one group, and none is empty.
func TestGroupsCoverTheVector(t *testing.T) {
	const group = 2 * wire.Lanes
	for _, slots := range []int{1, group - 1, group, group + 1, 2*group - 1, 2 * group, 2*group + 1} {
		w, err := makeWorker(t.Context(), withSlots(t, roundsConfig(t, newMemNet(), retransmit.Config{}), slots))
		if err != nil {
			t.Fatal(err)
		}
		r, vector, covered := w.rounds, make([]float32, slots), 0
		if len(r.contributions) != r.groups+1 {
			t.Errorf("%d slots: %d contributions of %d groups and the scale", slots, len(r.contributions), r.groups)
		}
		for i := range r.groups {
			part := r.groupPart(vector, i)
			if len(part) == 0 || r.firstSlot(i)*wire.Lanes != covered {
				t.Errorf("%d slots: group %d has %d from %d on, after %d", slots, i, len(part), r.firstSlot(i)*wire.Lanes, covered)
			}
			covered += len(part)
		}
		if covered != slots {
			t.Errorf("%d slots: %d of them are in groups", slots, covered)
		}
	}
}

// withSlots gives a worker a hot set of rows of one gradient, and two stripes per group.
func withSlots(t *testing.T, cfg WorkerConfig, slots int) WorkerConfig {
	t.Helper()
	keys := make([]uint64, slots)
	for i := range keys {
		keys[i] = uint64(i)
	}
	var err error
	if cfg.HotSet, err = packer.NewHotSet(1, keys, nil, packer.Meta{}); err != nil {
		t.Fatal(err)
	}
	cfg.Stripes = 2
	return cfg
}

// TestRepeatedAcknowledgementIsASignOfLife lets the aggregator acknowledge again a contribution
// that was repeated to request its result: it is not silent, so its silence in the error counts
// from there. An acknowledgement of nothing does not count.
func TestRepeatedAcknowledgementIsASignOfLife(t *testing.T) {
	r := smallRounds(t, 2)
	leave(t, r)
	h := wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 1}
	for range 3 {
		r.w.now += retransmit.Time(time.Second)
		if v := r.contributionAcked(h, wire.PutAck(make([]byte, wire.HeaderLen), h)); v != taken {
			t.Fatalf("an acknowledgement of frame 1: %v, want %v", v, taken)
		}
		r.w.now += retransmit.Time(time.Minute)
		var missing *NoResultError
		if err := r.noResult(&retransmit.SilentPeerError{}); !errors.As(err, &missing) || missing.Silent != time.Minute {
			t.Errorf("error %v, want one of a minute's silence", err)
		}
	}
	h.Seq = 99
	if v := r.contributionAcked(h, wire.PutAck(make([]byte, wire.HeaderLen), h)); v != stray || r.w.now.Sub(r.heard) != time.Minute {
		t.Errorf("an acknowledgement of frame 99: %v, want %v; silent for %v", v, stray, r.w.now.Sub(r.heard))
	}
}

// TestRoundErrorFindsTheFirstPart stops a call with one part done, and the next one sent, waiting
// or unsent.
func TestRoundErrorFindsTheFirstPart(t *testing.T) {
	why := errors.New("why")
	for size, want := range map[int]RoundError{
		1: {Parts: 3, Done: 1, Unsent: 2, Part: 1, Round: 5, Err: why},
		2: {Parts: 3, Done: 1, Unacked: 1, Unsent: 1, Part: 1, Round: 5, Err: why},
		4: {Parts: 3, Done: 1, Unacked: 2, Part: 1, Round: 5, Err: why},
	} {
		r := smallRounds(t, size)
		leave(t, r)
		r.settleContribution(0)
		if got := r.progressError(why); *got != want {
			t.Errorf("window of %d: %+v, want %+v", size, *got, want)
		}
	}
	r := smallRounds(t, 4)
	leave(t, r)
	h := wire.Header{Job: testJob, Sender: 1, Epoch: testEpoch, Seq: 1}
	r.contributionAcked(h, wire.PutAck(make([]byte, wire.HeaderLen), h))
	if got, want := *r.progressError(why), (RoundError{Parts: 3, Waiting: 1, Unacked: 2, Round: 5, Err: why}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	scale := newRoundsTester(t, true).rounds
	if got, want := *scale.progressError(why), (RoundError{Scale: true, Parts: 1, Unacked: 1, Round: 5, Err: why}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestRoundCallIsCancelled cancels an earlier call, one of which nothing is sent, and one of which
// something is: only the last one puts the worker out of step.
func TestRoundCallIsCancelled(t *testing.T) {
	why := errors.New("why")
	r := smallRounds(t, 4)
	if r.cancelCall(6, why); !r.active || r.broken != nil {
		t.Errorf("cancelled by an earlier call: active %v, broken by %v", r.active, r.broken)
	}
	if r.cancelCall(7, why); r.active || r.broken != nil || !errors.Is(<-r.done, why) {
		t.Errorf("cancelled before anything is sent: active %v, broken by %v", r.active, r.broken)
	}
	r.cancelCall(7, why) // it has ended
	if len(r.done) != 0 || r.broken != nil {
		t.Error("a call that has ended is cancelled")
	}
	r = smallRounds(t, 4)
	leave(t, r)
	r.cancelCall(7, why)
	var e *RoundError
	if r.active || !errors.Is(r.broken, why) || !errors.As(<-r.done, &e) || e.Unacked != 3 {
		t.Errorf("cancelled after all is sent: active %v, broken by %v, %+v", r.active, r.broken, e)
	}
	r.breakRounds(errors.New("later")) // the first reason stays
	if !errors.Is(r.broken, why) {
		t.Errorf("broken by %v", r.broken)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

var errStopped = errors.New("stopped, because the other CPU has failed")

// reduce runs rounds of a job with eight workers, four on each of two CPUs, with about n
// deliveries: contributions, requests for results and late copies. It returns the differences of
// results or counters from the model's, if any.
func reduce(t *testing.T, d *device, cfg aggregator.JobConfig, n int) error {
	t.Helper()
	job := newRoundsJob(t, cfg)
	m := newModel(t)
	job.start(t, d)
	job.start(t, m)
	// All rounds repeat the contributions of the first few.
	results := job.results(t, m, variants)
	frames := make([][variants][]byte, job.Workers)
	for i := range frames {
		for v := range variants {
			frame := job.frame(i, v, 0)
			binary.BigEndian.PutUint32(frame[seqAt:], 0)
			conformance.Repair(frame)
			frames[i][v] = frame
		}
	}

	const perRound = 12 // deliveries, approximately
	rounds := n / perRound
	var sent, dropped [2]int
	var failed [2]error
	var stop atomic.Bool // without the other CPU, a CPU would wait for ever
	onEachCPU(t, d.Aggregator, func(cpu int, d *device, barrier func(int)) {
		rng := rand.New(rand.NewPCG(uint64(cpu), 3))
		reply := make([]byte, aggregator.MaxReply)
		var buf []byte
		// deliver returns the payload that answers a frame.
		deliver := func(worker, round int) ([]byte, error) {
			buf = numbered(buf, frames[worker][round%variants], uint32(wire.FirstSeq+round))
			for !stop.Load() {
				_, n, err := d.Process(buf, reply)
				sent[cpu]++
				if err != nil || n > 0 {
					return reply[wire.EnvelopeLen:n], err
				}
				dropped[cpu]++ // send it again, as a sender does
			}
			return nil, errStopped
		}
		// take tells that this CPU's workers have a result, until all workers have.
		take := func(round int) error {
			for k := 0; ; k++ {
				if k > job.Workers {
					time.Sleep(20 * time.Microsecond)
				}
				buf = job.taken(cpu*job.Workers/2+k%(job.Workers/2), round)
				_, n, err := d.Process(buf, reply)
				sent[cpu]++
				switch {
				case stop.Load():
					return errStopped
				case err != nil:
					return err
				case n == 0: // the first of its worker, or a race
					dropped[cpu]++
					continue
				}
				h, err := wire.ParseHeader(reply[wire.EnvelopeLen:n])
				if err != nil || h.Type != wire.TypeAck || h.Flags&wire.FlagTaken == 0 {
					return fmt.Errorf("CPU %d, round %d: answer to TAKEN %x", cpu, round, reply[wire.EnvelopeLen:n])
				}
				if h.Flags&wire.FlagCover == 0 {
					return nil
				}
			}
		}
		// step plays one round of this CPU's workers.
		step := func(round int) error {
			own := rng.Perm(job.Workers / 2)
			complete := false
			for k := 0; !complete; k++ {
				if k > 2*len(own) { // the other CPU does something else
					time.Sleep(20 * time.Microsecond)
				}
				worker := cpu*job.Workers/2 + own[k%len(own)] // then they ask again
				answer, err := deliver(worker, round)
				if err != nil {
					return err
				}
				h, err := wire.ParseHeader(answer)
				if err != nil {
					return err
				}
				if h.Type != wire.TypeAck {
					return fmt.Errorf("CPU %d, round %d: answer %x", cpu, round, answer)
				}
				complete = h.Flags&wire.FlagSum != 0
				want := results[round%variants][0][wire.EnvelopeLen+wire.HeaderLen:]
				if complete && !bytes.Equal(answer[wire.HeaderLen:], want) {
					return fmt.Errorf("CPU %d, round %d: result %x, want %x", cpu, round, answer[wire.HeaderLen:], want)
				}
				if round > 0 && rng.IntN(8) == 0 { // a late copy
					if _, err := deliver(worker, rng.IntN(round)); err != nil {
						return err
					}
				}
			}
			if job.Mode == aggregator.Acked {
				return take(round)
			}
			return nil
		}
		for round := range rounds {
			barrier(round)
			if failed[cpu] = step(round); failed[cpu] != nil {
				stop.Store(true)
				return
			}
		}
	})
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	got, err := d.JobCounters(job.ID)
	if err != nil {
		return err
	}
	answered, silent := sent[0]+sent[1]-dropped[0]-dropped[1], 0
	if job.Mode == aggregator.Acked { // the first TAKEN of each worker; the last of a round is answered
		silent = rounds * (job.Workers - 1)
		answered -= rounds
	}
	t.Logf("%v, %v: %d deliveries, %d dropped, %d rounds", job.Mode, job.Arithmetic, sent[0]+sent[1],
		dropped[0]+dropped[1]-silent, rounds)
	applied := uint64(rounds * job.Workers)
	want := aggregator.JobCounters{
		Applied:    applied,
		Pairs:      applied * uint64(job.Slots),
		Duplicates: uint64(answered) - applied,
		Rounds:     uint64(rounds),
		Raced:      uint64(dropped[0] + dropped[1] - silent),
	}
	if got != want {
		return fmt.Errorf("counters are %+v, want %+v", got, want)
	}
	return nil
}

// Jobs with rounds whose results do not depend on the order of frames.
var orderlessRounds = []aggregator.JobConfig{
	{ID: 50, Mode: aggregator.Sync, Exp: -46, Workers: crowd, Slots: 40, MaxStripes: 2},
	{ID: 51, Mode: aggregator.Sync, Workers: crowd, Slots: 40, MaxStripes: 2, Arithmetic: aggregator.Fixed, Exp: -20},
	{ID: 52, Mode: aggregator.Acked, Exp: -46, Workers: crowd, Slots: 40, MaxStripes: 2},
}

// Every round's result contains every contribution once.
func TestRoundsExactlyOnce(t *testing.T) {
	d := open(t)
	for _, job := range orderlessRounds {
		if err := reduce(t, d, job, *deliveries/len(orderlessRounds)); err != nil {
			t.Errorf("%v, %v: %v", job.Mode, job.Arithmetic, err)
		}
	}
}

// The test above must notice faults.
func TestRoundsExactlyOnceNoticesFaults(t *testing.T) {
	for _, fault := range []struct {
		name  string
		lines []string // of the program, disabled
		job   int
	}{
		{"no clearing", []string{"page->slots[at % PAGE_SLOTS] = 0;"}, 0},
		{"no filter", []string{"*place_of(sender, f->seq) = f->seq;"}, 0},
		{"no clearing, in mode acked", []string{"page->slots[at % PAGE_SLOTS] = 0;"}, 2},
	} {
		t.Run(fault.name, func(t *testing.T) {
			err := reduce(t, openFaulty(t, fault.lines), orderlessRounds[fault.job], 50_000)
			if err == nil {
				t.Error("nothing was noticed")
			}
			t.Log(err)
		})
	}
}

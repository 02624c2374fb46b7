// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// With Acked, an operation whose frames are lost, in any of the four steps, has its result, and so
// has the next one in its group.
func TestLostFramesOfAckedAreRepeated(t *testing.T) {
	first := func(h wire.Header) bool { return h.Flags&wire.FlagRetx == 0 }
	confirms := func(h wire.Header) bool { return h.Type == wire.TypeAck && h.Flags&wire.FlagTaken != 0 }
	for name, loses := range map[string]func(worker int, up bool, h wire.Header) bool{
		"nothing":           nil,
		"a contribution":    func(worker int, up bool, h wire.Header) bool { return up && worker == 1 && first(h) },
		"all contributions": func(_ int, up bool, h wire.Header) bool { return up && h.Type == wire.TypeHot && first(h) },
		"a result": func(worker int, _ bool, h wire.Header) bool {
			return worker == 0 && h.Flags&(wire.FlagAll|wire.FlagSum) == wire.FlagAll|wire.FlagSum
		},
		"a TAKEN": func(worker int, up bool, h wire.Header) bool {
			return up && worker == 0 && h.Type == wire.TypeTaken && first(h)
		},
		"all TAKEN": func(_ int, up bool, h wire.Header) bool { return up && h.Type == wire.TypeTaken && first(h) },
		"a confirmation": func(worker int, up bool, h wire.Header) bool {
			return worker == 1 && confirms(h) && h.Flags&wire.FlagAll != 0
		},
		"all confirmations": func(_ int, _ bool, h wire.Header) bool { return confirms(h) && h.Flags&wire.FlagAll != 0 },
		"all that is for all": func(_ int, up bool, h wire.Header) bool {
			return up && h.Type == wire.TypeTaken && first(h) || h.Flags&wire.FlagAll != 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				shape := smallAcked
				shape.InFlight = 1
				n := newNetwork[int32](t, shape, aggregator.Config{})
				all := workers[int32](t, n, shape)
				n.loses = loses
				began := time.Now()
				const ops = 4
				done := make(chan error)
				for i, r := range all {
					go func() {
						done <- addTimes(r, ops, int32(1)<<i)
					}()
				}
				if err := errors.Join(<-done, <-done); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > ops*4*maxTimeout {
					t.Errorf("it took %v", took)
				}
				if repeats := all[0].Stats().Repeats + all[1].Stats().Repeats; (repeats == 0) != (loses == nil) {
					t.Errorf("%d repetitions", repeats)
				}
				c, err := n.model.JobCounters(jobID)
				if err != nil || c.Rounds != ops || c.Applied != 2*ops || c.Refused.Total() != 0 {
					t.Errorf("%+v, %v", c, err)
				}
			})
		})
	}
}

// addTimes makes operations one after the other, and wants sums of 3.
func addTimes(r *Reducer[int32], ops int, value int32) error {
	values, sums := slices.Repeat([]int32{value}, r.cfg.Shape.Width), make([]int32, r.cfg.Shape.Width)
	for range ops {
		op, err := r.Start(values)
		if err == nil {
			err = r.Wait(op, sums)
		}
		if err == nil && sums[0] != 3 {
			err = errors.New("a sum is not 3")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// With Acked, an operation waits for those who have not taken the result of the one before, and an
// error names them.
func TestWhoHasNotTakenIsNamed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		shape := Shape{Workers: 3, Width: 8, InFlight: 2, Acked: true}
		n := newNetwork[int32](t, shape, aggregator.Config{})
		n.admit(t, shape.Workers)
		var all []*Reducer[int32]
		for i := range shape.Workers {
			cfg := n.config(i, shape)
			cfg.Limit = 300 * time.Millisecond
			cfg.Members = func(context.Context) ([]uint16, error) { return []uint16{10, 20, 30}, nil }
			all = append(all, open[int32](t, cfg))
		}
		for range shape.InFlight {
			startAll(t, all)
		}
		for op := range Op(shape.InFlight) {
			for _, r := range all[:2] {
				if err := r.Wait(op, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		began := time.Now()
		_, err := all[0].Start(make([]int32, shape.Width))
		var missing *MissingError
		if !errors.As(err, &missing) || !missing.Taken || missing.Op != 0 || !slices.Equal(missing.Missing, []uint16{30}) || missing.Silent {
			t.Errorf("%v: %+v", err, missing)
		}
		if want := "operation 0 has a result that is not at all workers after 3"; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if want := "worker 30 did not tell to have it: start all workers of the job again."; !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if took := time.Since(began); took < 300*time.Millisecond || took > 400*time.Millisecond {
			t.Errorf("told after %v", took)
		}
		if err := all[2].Poll(); err != nil { // takes both, and the others have them too
			t.Error(err)
		}
		if _, err := all[1].Start(make([]int32, shape.Width)); err != nil {
			t.Error(err)
		}
	})
}

// With Acked, an error of Config.Ended says which operation not all have.
func TestEndedBetweenOperations(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		shape := smallAcked
		shape.InFlight = 1
		n := newNetwork[int32](t, shape, aggregator.Config{})
		n.admit(t, shape.Workers)
		cfg := n.config(0, shape)
		why := errors.New("the job is over")
		cfg.Ended = func() error { return why }
		all := []*Reducer[int32]{open[int32](t, cfg), open[int32](t, n.config(1, shape))}
		startAll(t, all)
		if err := all[0].Wait(0, nil); err != nil {
			t.Fatal(err)
		}
		_, err := all[0].Start(make([]int32, shape.Width))
		if want := "not all workers have the result of operation 0: the job is over"; !errors.Is(err, why) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	})
}

// TAKEN for which the link has no room, or no buffer, is sent later.
func TestTakenWithoutRoom(t *testing.T) {
	for name, limit := range map[string]func(h *host) (restore func()){
		"room": func(h *host) func() {
			h.room = 0
			return func() { h.room = plenty }
		},
		"buffers": func(h *host) func() {
			kept := h.free
			h.free = nil
			return func() { h.free = append(h.free, kept...) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				shape := smallAcked
				shape.InFlight = 1
				n := newNetwork[int32](t, shape, aggregator.Config{})
				all := workers[int32](t, n, shape)
				startAll(t, all)
				h := n.hosts[0]
				buffers := len(h.free) + 1 // and that of the contribution
				var restore func()
				h.change(func() { restore = limit(h) })
				time.AfterFunc(10*time.Millisecond, func() { h.change(restore) })
				if name == "buffers" { // the device still reads that of the contribution
					all[0].link = slowFree{h}
				}
				if err := all[0].Wait(0, nil); err != nil {
					t.Fatal(err)
				}
				all[0].link = h
				if err := all[1].Wait(0, nil); err != nil {
					t.Fatal(err)
				}
				op := startOne(t, all[0], make([]int32, shape.Width))
				startOne(t, all[1], make([]int32, shape.Width))
				waitAll(t, all, op, make([][]int32, 2))
				for all[0].groups[0].unconfirmed {
					if err := all[0].turn(); err != nil {
						t.Fatal(err)
					}
				}
				if len(h.free) != buffers && name == "room" {
					t.Errorf("%d buffers are free of %d", len(h.free), buffers)
				}
			})
		})
	}
}

// slowFree is a link that gives no buffer back.
type slowFree struct{ *host }

func (slowFree) Free(b link.Buf) {}

// What is not the confirmation that an operation waits for changes nothing, and is counted.
func TestForgedConfirmations(t *testing.T) {
	inBubble(t, func(t *testing.T) { // a repetition would be answered
		n := newNetwork[int32](t, smallAcked, aggregator.Config{})
		all := workers[int32](t, n, smallAcked)
		r, h := all[0], n.hosts[0]
		startAll(t, all)
		if err := r.Wait(0, nil); err != nil {
			t.Fatal(err)
		}
		base := wire.Header{Job: jobID, Sender: 10, Epoch: jobEpoch, Seq: 1}
		confirm := func(change func(h *wire.Header, r *wire.TakenReport)) []byte {
			head, report := base, wire.TakenReport{}
			change(&head, &report)
			return wire.PutConfirmation(make([]byte, wire.TakenLen), head, report)
		}
		same := func(*wire.Header, *wire.TakenReport) {}
		flags := func(p []byte, f wire.Flags) []byte { p[1] |= byte(f); return p }
		takers := func(seq uint32) []byte {
			head := base
			head.Seq = seq
			return wire.PutTakers(make([]byte, wire.CoverLen), head, 1)
		}
		for name, c := range map[string]struct {
			payload []byte
			want    verdict
		}{
			"to another worker":    {confirm(func(h *wire.Header, _ *wire.TakenReport) { h.Sender = 20 }), stray},
			"of another job":       {confirm(func(h *wire.Header, _ *wire.TakenReport) { h.Job++ }), stray},
			"of another number":    {confirm(func(h *wire.Header, _ *wire.TakenReport) { h.Seq++ }), stray},
			"of another round":     {confirm(func(_ *wire.Header, r *wire.TakenReport) { r.Round++ }), stray},
			"of an idle group":     {confirm(func(_ *wire.Header, r *wire.TakenReport) { r.First = 1 }), stray},
			"of no group":          {confirm(func(_ *wire.Header, r *wire.TakenReport) { r.First = 4 }), malformed},
			"to all, but to one":   {flags(confirm(func(h *wire.Header, _ *wire.TakenReport) { h.Seq = 0 }), wire.FlagAll), stray},
			"to all, of a number":  {wire.ToAll(confirm(same), 1), stray},
			"with a tail":          {append(confirm(same), 0), malformed},
			"with sums":            {flags(confirm(same), wire.FlagSum), malformed},
			"takers of a number":   {takers(2), stray},
			"takers to all":        {flags(takers(1), wire.FlagAll), malformed},
			"a plain ACK":          {wire.PutAck(make([]byte, 64), base), stray},
			"sums, for the second": {sumsOf(base), stray},
		} {
			before := r.Stats()
			n.mu.Lock()
			h.push(switchAt, c.payload)
			n.mu.Unlock()
			if err := r.Poll(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			after := r.Stats()
			if g := r.groups[0]; !g.unconfirmed || g.answered || after.Results != 1 || (c.want == stray) != (after.Stray > before.Stray) ||
				(c.want == malformed) != (after.Malformed > before.Malformed) {
				t.Errorf("%s: %+v, then %+v", name, before, after)
			}
		}
		waitAll(t, all[1:], 0, make([][]int32, 1))
		if err := r.Poll(); err != nil || r.groups[0].unconfirmed || r.oldest != 1 {
			t.Errorf("%v, %+v", err, r.groups[0])
		}
		for _, late := range [][]byte{confirm(same), takers(1)} {
			before := r.Stats().Stray
			n.mu.Lock()
			h.push(switchAt, late)
			n.mu.Unlock()
			if err := r.Poll(); err != nil || r.Stats().Stray != before+1 {
				t.Errorf("%v, %+v", err, r.Stats())
			}
		}
	})
}

// sumsOf is a result of one stripe of group 0.
func sumsOf(h wire.Header) []byte {
	p := wire.PutSums(make([]byte, wire.HotLen(1)), h, 1)
	wire.StripeAt(p, 0).SetMask(wire.LaneMask)
	return p
}

// With Acked, waiting until all have taken a result and waiting for the next one are two waits,
// each of which may last almost as long as the limit.
func TestLimitsOfBothWaits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		shape := Shape{Workers: 2, Width: 8, InFlight: 1, Acked: true}
		all := workers[int32](t, newNetwork[int32](t, shape, aggregator.Config{}), shape)
		op := startAll(t, all)
		if err := all[0].Wait(op, nil); err != nil {
			t.Fatal(err)
		}
		const pause = DefaultLimit * 2 / 3
		late := make(chan error, 1)
		go func() { // the other worker takes the result late, and contributes later still
			time.Sleep(pause)
			err := all[1].Wait(op, nil)
			if err == nil {
				time.Sleep(pause)
				op := Op(0)
				if op, err = all[1].Start(make([]int32, shape.Width)); err == nil {
					err = all[1].Wait(op, nil)
				}
			}
			late <- err
		}()
		op, err := all[0].Start(make([]int32, shape.Width))
		if err == nil {
			err = all[0].Wait(op, nil)
		}
		if err != nil {
			t.Error(err)
		}
		if err := <-late; err != nil {
			t.Error(err)
		}
	})
}

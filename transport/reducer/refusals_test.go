// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// A refused contribution is the end, with the aggregator's reason and a remedy.
func TestRefusals(t *testing.T) {
	n := newNetwork[float32](t, small, aggregator.Config{})
	all := workers[float32](t, n, small)
	half := make([]float32, small.Width)
	half[3] = 1 << 42
	startOne(t, all[0], half)
	op := startOne(t, all[1], half)
	err := all[1].Wait(op, nil)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Refusal.Code != wire.CodeOverflow || refused.Refusal.Index != 3 || refused.Sender != 20 ||
		!errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) {
		t.Errorf("%v", err)
	}
	if err := n.model.RemoveJob(jobID); err != nil {
		t.Fatal(err)
	}
	op = startOne(t, all[0], half)
	if err = all[0].Wait(op, nil); !errors.As(err, &refused) || refused.Refusal.Code != wire.CodeUnknownJob ||
		!strings.Contains(err.Error(), wire.CodeUnknownJob.Remedy()) {
		t.Errorf("%v", err)
	}
}

// A worker whose operations are wider than the job's is refused, in both modes.
func TestUnequalWidths(t *testing.T) {
	for _, shape := range []Shape{small, smallAcked} {
		n := newNetwork[int32](t, shape, aggregator.Config{})
		n.admit(t, shape.Workers)
		wide := shape
		wide.Width = 23
		r := open[int32](t, n.config(1, wide))
		op := startOne(t, r, make([]int32, wide.Width))
		err := r.Wait(op, nil)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Refusal.Code != wire.CodeLength || refused.Refusal.Value != 1 {
			t.Errorf("%+v: %v", shape, err)
		}
	}
}

// What is not the answer of the aggregator to something that waits changes nothing, and is counted.
func TestForgedAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) { // a repetition would be answered
		n := newNetwork[int32](t, small, aggregator.Config{})
		all := workers[int32](t, n, small)
		r, h := all[0], n.hosts[0]
		startOne(t, r, make([]int32, small.Width))
		other := switchAt
		other.IP = netip.MustParseAddr("10.0.0.253")
		base := wire.Header{Type: wire.TypeAck, Flags: wire.FlagSum, Job: jobID, Sender: 10, Epoch: jobEpoch, Seq: 1}
		sums := func(change func(*wire.Header, *wire.Stripe)) []byte {
			p := make([]byte, wire.HotLen(1))
			head, s := base, wire.StripeAt(p, 0)
			s.SetMask(wire.LaneMask)
			change(&head, s)
			head.Put(p)
			return p
		}
		answer := func(f func([]byte, wire.Header) []byte, seq uint32) []byte {
			head := base
			head.Seq = seq
			return f(make([]byte, 64), head)
		}
		refusal := func(b []byte, head wire.Header) []byte {
			return wire.PutError(b, head, wire.Refusal{Code: wire.CodeUnknownJob})
		}
		rows := func(b []byte, head wire.Header) []byte {
			head.Type, head.Flags = wire.TypeRows, 0
			head.Put(b)
			return b
		}
		for name, c := range map[string]struct {
			from    wire.Endpoint
			payload []byte
			want    verdict
		}{
			"from another host":     {other, sums(func(*wire.Header, *wire.Stripe) {}), stray},
			"of another job":        {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Job++ }), stray},
			"of another epoch":      {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Epoch++ }), stray},
			"to another worker":     {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Sender = 20 }), stray},
			"of another number":     {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Seq = 2 }), stray},
			"of another round":      {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Flags |= wire.FlagAll; h.Sender = wire.AllSenders }), stray},
			"to all, but to one":    {switchAt, sums(func(h *wire.Header, _ *wire.Stripe) { h.Flags |= wire.FlagAll; h.Seq = 0 }), stray},
			"of an idle group":      {switchAt, sums(func(h *wire.Header, s *wire.Stripe) { s.SetSlot(0, 1) }), stray},
			"of no group":           {switchAt, sums(func(h *wire.Header, s *wire.Stripe) { s.SetSlot(0, 4) }), malformed},
			"with a lane missing":   {switchAt, sums(func(h *wire.Header, s *wire.Stripe) { s.SetMask(1) }), malformed},
			"with two stripes":      {switchAt, append(sums(func(*wire.Header, *wire.Stripe) {}), make([]byte, wire.StripeLen)...), malformed},
			"a refusal, cut":        {switchAt, answer(refusal, 1)[:15], malformed},
			"a refusal of others":   {switchAt, answer(refusal, 2), stray},
			"a refusal of nothing":  {switchAt, answer(refusal, 0), stray},
			"an ACK of nothing":     {switchAt, answer(wire.PutAck, 7), stray},
			"an ACK with a tail":    {switchAt, append(answer(wire.PutAck, 1), 1), malformed},
			"an answer of a server": {switchAt, answer(rows, 1), stray},
			"no header":             {switchAt, []byte{1, 2, 3}, malformed},
		} {
			before := r.Stats()
			n.mu.Lock()
			h.push(c.from, c.payload)
			n.mu.Unlock()
			if err := r.Poll(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			after := r.Stats()
			if g := r.groups[0]; g.state != waiting || g.answered || (c.want == stray) != (after.Stray > before.Stray) ||
				(c.want == malformed) != (after.Malformed > before.Malformed) {
				t.Errorf("%s: %+v, then %+v", name, before, after)
			}
		}
		got := make([]int32, small.Width)
		op := startAll(t, all[1:])
		if err := r.Wait(op, got); err != nil || got[0] != 1 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

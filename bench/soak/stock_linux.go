package soak

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// tally is what a link's ends and interfaces counted, in all or since the last
// stock.
type tally struct {
	client, server counts
	answered       uint64
	interfaces     map[string]uint64
}

func (t *tally) add(d tally) {
	t.client.add(d.client)
	t.server.add(d.server)
	t.answered += d.answered
	if t.interfaces == nil {
		t.interfaces = map[string]uint64{}
	}
	for name, n := range d.interfaces {
		t.interfaces[name] += n
	}
}

// dropped returns how many packets are in drop counters, each once.
func (t *tally) dropped() int64 {
	n := t.interfaces[nearName+transmission] + t.interfaces[farName+transmission]
	for _, sockets := range []map[string]uint64{t.client.Sockets, t.server.Sockets} {
		n += sockets[socketRxDropped] + sockets[socketRxFull]
	}
	return int64(n)
}

// lost returns how many packets have got no answer.
func (t *tally) lost() int64 { return int64(t.client.Sent - t.answered) }

// quiet is the time without a change after which a paused link counts as being
// at rest: a packet may still be on its way after the client gave it up.
const quiet = 10 * time.Millisecond

// stock waits until a paused link is at rest, counts the frames at both ends and
// returns what was counted since the last stock.
func (h *runner) stock(ctx context.Context, l *running) (t tally, err error) {
	resting, cancel := context.WithTimeoutCause(ctx, endurance*h.cfg.Bound,
		fmt.Errorf("the link is not at rest %v after the clients were paused", endurance*h.cfg.Bound))
	defer cancel()
	for {
		near, err := l.end.account(resting)
		if err != nil {
			return t, h.notAtRest(ctx, l, err)
		}
		t.client.add(near.Counts)
		far, err := l.opposite.account(resting)
		if err != nil {
			return t, h.notAtRest(ctx, l, err)
		}
		if far != nil {
			t.server.add(far.Counts)
		}
		answered := l.answers() - l.total.answered
		drops, err := l.drops()
		if err != nil {
			return t, err
		}
		drops = harness.Difference(l.total.interfaces, drops)
		if t.interfaces != nil && t.answered == answered && maps.Equal(t.interfaces, drops) {
			h.judge(l, "client", near, t.client)
			if far != nil {
				h.judge(l, "server", far, t.server)
				h.failIf(l.server.add(far.PID, far.Memory))
			}
			l.total.add(t)
			return t, nil
		}
		t.answered, t.interfaces = answered, drops
		if err := harness.Sleep(resting, quiet); err != nil {
			return t, h.notAtRest(ctx, l, err)
		}
	}
}

// notAtRest adds to an error what waits on what, unless everything was stopped.
func (h *runner) notAtRest(ctx context.Context, l *running, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w: %s", ErrFailed, err, l.describe(ctx))
}

// judge looks for leaks in an account, and for corruption and lost wake-ups in
// what was found since the last stock.
func (h *runner) judge(l *running, side string, a *account, found counts) {
	h.report.Accounts++
	if n := a.leaked(); n > 0 {
		h.report.Leaked = max(h.report.Leaked, n)
		h.report.fail("link %s, %s: %d frames leaked: %v", l.name, side, n, a)
	}
	if found.Corrupt > 0 {
		h.report.fail("link %s, %s: %d corrupt packets; the first: %s", l.name, side, found.Corrupt, found.FirstCorrupt)
	}
	if found.LostWakeups > 0 {
		h.report.fail("link %s, %s: %d times the kernel did not wake Poll for a packet; the longest wait: %v",
			l.name, side, found.LostWakeups, found.Latest)
	}
}

// failIf reports a check's error, if it is one.
func (h *runner) failIf(err error) {
	if err != nil {
		h.report.fail("%v", err)
	}
}

// explain holds a link to losing only packets that are in the kernel's drop
// counters.
func (h *runner) explain(l *running, t tally, during string) {
	lost, dropped := t.lost(), t.dropped()
	if lost == dropped {
		return
	}
	l.report.Unexplained += lost - dropped
	h.report.fail("link %s, %s: %d packets sent, %d answered, %d in drop counters (%v)", l.name, during,
		t.client.Sent, t.answered, dropped, growth(nil, t.interfaces))
}

// setCalm tells the clients that undisturbed time begins or has ended.
func (l *running) setCalm(ctx context.Context, on bool) {
	for _, c := range l.clients {
		// It only fails when everything is being stopped.
		_ = c.ask(ctx, func() { c.calm = on })
	}
}

// finish completes the report.
func (h *runner) finish() {
	r := h.report
	r.Duration = time.Since(h.began)
	r.Allocations = float64(h.allocations) / max(1, float64(h.packets))
	h.remember(&h.own)
	for _, l := range h.links {
		var both counts
		both.add(l.total.client)
		both.add(l.total.server)
		roundTrips := newHistogram()
		for _, c := range l.clients {
			roundTrips.Merge(c.roundTrip)
		}
		lr := l.report
		lr.Sent, lr.Answered, lr.Dropped = l.total.client.Sent, l.total.answered, l.total.dropped()
		lr.Destroyed = l.total.lost() - lr.Dropped - lr.Unexplained
		lr.Interfaces, lr.Sockets = growth(nil, l.total.interfaces), growth(nil, both.Sockets)
		lr.Corrupt, lr.LostWakeups = both.Corrupt, both.LostWakeups
		lr.LateArrivals, lr.Latest = both.Late, both.Latest
		lr.Rate = float64(l.packets) / max(l.flowed.Seconds(), 1e-9)
		lr.RoundTrip = summary(roundTrips)
		r.sumUp(l.name)
		h.remember(&l.server)
	}
}

// remember ends a memory watch and reports the process with most samples.
func (h *runner) remember(w *memoryWatch) {
	h.failIf(w.end())
	if w.longest.Samples > 0 {
		h.report.Memory = append(h.report.Memory, w.longest)
	}
}

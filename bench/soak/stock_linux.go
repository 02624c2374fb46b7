package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// tally is what a link's clients, interfaces and sockets have counted since the
// beginning.
type tally struct {
	sent, answered uint64
	interfaces     map[string]uint64
	// sockets are packets that the ends' sockets had no frame or entry for.
	sockets uint64
}

// dropped returns how many packets are in drop counters, each once.
func (t tally) dropped() int64 {
	return int64(t.interfaces[nearTX] + t.interfaces[farTX] + t.sockets)
}

// lost returns how many packets have got no answer.
func (t tally) lost() int64 { return int64(t.sent - t.answered) }

// Sides of a link that package afxdp serves.
const (
	clientSide = "client"
	serverSide = "server"
)

// quiet is the time without a change after which a paused link counts as being
// at rest: a packet may still be on its way after the client gave it up.
const quiet = 10 * time.Millisecond

// stock waits until a paused link is at rest, counts the frames at both ends
// and brings the link's tally up to date.
func (h *runner) stock(ctx context.Context, l *running) error {
	resting, cancel := context.WithTimeoutCause(ctx, endurance*h.cfg.Bound,
		fmt.Errorf("the link is not at rest %v after the clients were paused", endurance*h.cfg.Bound))
	defer cancel()
	found := map[string]*counts{clientSide: {}, serverSide: {}}
	for previous := (tally{}); ; {
		near, err := l.end.account(resting, l.roles())
		if err != nil {
			return h.notAtRest(ctx, l, err)
		}
		found[clientSide].add(near.Counts)
		far, err := l.opposite.account(resting)
		if err != nil {
			return h.notAtRest(ctx, l, err)
		}
		if far != nil {
			found[serverSide].add(far.Counts)
		}
		current := tally{answered: l.answers()}
		if current.interfaces, err = l.drops(); err != nil {
			return err
		}
		if previous.interfaces == nil || current.answered != previous.answered || !maps.Equal(current.interfaces, previous.interfaces) {
			previous = current
			if err := harness.Sleep(resting, quiet); err != nil {
				return h.notAtRest(ctx, l, err)
			}
			continue
		}
		h.judge(l, clientSide, near, found[clientSide])
		if far != nil {
			h.judge(l, serverSide, far, found[serverSide])
			h.failIf(l.server.add(far.PID, far.Memory))
		}
		for _, end := range l.ends {
			current.sockets += end.Sockets[socketRxDropped] + end.Sockets[socketRxFull]
		}
		current.sent = l.ends[clientSide].Sent
		l.last = current
		return nil
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
func (h *runner) judge(l *running, side string, a *account, found *counts) {
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
	l.ends[side].add(*found)
}

// failIf reports a check's error, if it is one.
func (h *runner) failIf(err error) {
	if err != nil {
		h.report.fail("%v", err)
	}
}

// explain holds a link to losing only packets that are in the kernel's drop
// counters.
func (h *runner) explain(l *running, was tally, during string) {
	lost, dropped := l.last.lost()-was.lost(), l.last.dropped()-was.dropped()
	if lost == dropped {
		return
	}
	l.report.Unexplained += lost - dropped
	h.report.fail("link %s, %s: %d packets sent, %d answered, %d in drop counters (%v)", l.name, during,
		l.last.sent-was.sent, l.last.answered-was.answered, dropped, growth(was.interfaces, l.last.interfaces))
}

// note adds an event to the report.
func (h *runner) note(l *running, was tally, ev Event) {
	ev.Sent, ev.Lost, ev.Dropped = l.last.sent-was.sent, l.last.lost()-was.lost(), l.last.dropped()-was.dropped()
	h.report.Events = append(h.report.Events, ev)
	r := l.byKind[ev.Kind]
	if r == nil {
		r = &recovery{times: newHistogram()}
		l.byKind[ev.Kind] = r
	}
	record(r.times, int64(ev.Recovery))
	r.sent += ev.Sent
	r.lost += ev.Lost
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
		l.report.Sent, l.report.Answered = l.last.sent, l.last.answered
		l.report.Interfaces = growth(nil, l.last.interfaces)
		l.report.Dropped = l.last.dropped()
		l.report.Destroyed = l.last.lost() - l.last.dropped() - l.report.Unexplained
		l.report.Rate = float64(l.packets) / max(l.flowed.Seconds(), 1e-9)
		roundTrips := newHistogram()
		for _, c := range l.clients {
			roundTrips.Merge(c.roundTrip)
		}
		l.report.RoundTrip = summary(roundTrips)
		var both counts
		for _, end := range l.ends {
			both.add(*end)
		}
		l.report.Corrupt, l.report.LostWakeups = both.Corrupt, both.LostWakeups
		l.report.LateArrivals, l.report.Latest = both.Late, both.Latest
		l.report.Sockets = growth(nil, both.Sockets)
		for _, kind := range slices.Sorted(maps.Keys(l.byKind)) {
			k := l.byKind[kind]
			r.Recoveries = append(r.Recoveries, Recovery{Link: l.name, Kind: kind, Times: summary(k.times), Sent: k.sent, Lost: k.lost})
		}
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

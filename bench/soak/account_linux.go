// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// account is where the frames of a UMEM are at a moment when nothing moves, and
// what its ports have counted since the account before.
type account struct {
	Frames int              // frames of the UMEM
	Pool   int              // free, in the pools of all ports
	Rings  afxdp.RingCounts // entries in the rings of all ports
	Census afxdp.Census     // by the state bytes
	Counts counts

	// Of the server's process only.
	Memory Memory
	PID    int
}

// counts are what the ports of an end counted.
type counts struct {
	Sent         uint64 // packets that the sockets took
	Corrupt      uint64
	FirstCorrupt string // what was wrong with the first one
	Late         uint64 // this and the next two are as in LinkReport
	LostWakeups  uint64
	Latest       time.Duration
	// Sockets are the counters of the sockets, without what a socket counted
	// between its last account and its end.
	Sockets map[string]uint64
}

func (c *counts) addCounts(d counts) {
	c.Sent += d.Sent
	c.Corrupt += d.Corrupt
	c.FirstCorrupt = cmp.Or(c.FirstCorrupt, d.FirstCorrupt)
	c.Late += d.Late
	c.LostWakeups += d.LostWakeups
	c.Latest = max(c.Latest, d.Latest)
	experiment.Add(&c.Sockets, d.Sockets)
}

// leakedFrames returns how many frames are missing or counted twice. With nothing
// moving, the program holds none either.
func (a *account) leakedFrames() int {
	rings := a.Rings
	return max(
		abs(a.Frames-a.Pool-rings.Fill-rings.Rx-rings.Tx-rings.Completion),
		abs(a.Census.Free-a.Pool),
		abs(a.Census.Filling-rings.Fill-rings.Rx),
		abs(a.Census.InFlight-rings.Tx-rings.Completion),
		a.Census.Yours,
	)
}

func abs(n int) int { return max(n, -n) }

// String gives the frames.
func (a *account) String() string {
	return fmt.Sprintf("%d frames: pools %d, fill %d, RX %d, TX %d, completion %d; by state: free %d, yours %d, filling %d, in flight %d",
		a.Frames, a.Pool, a.Rings.Fill, a.Rings.Rx, a.Rings.Tx, a.Rings.Completion,
		a.Census.Free, a.Census.Yours, a.Census.Filling, a.Census.InFlight)
}

// settleStep is the time between two looks at a port that is to come to rest.
const settleStep = time.Millisecond

// countFrames waits until nothing is on its way to or from the ports, holds them
// all, and counts. No packets may be on their way to them.
func (e *end) countFrames(ctx context.Context) (*account, error) {
	a := &account{Frames: e.umem.Frames()}
	release := make(chan struct{})
	var holding sync.WaitGroup
	defer holding.Wait()
	defer close(release)
	for _, p := range e.ports {
		if err := p.settleFrames(ctx); err != nil {
			return nil, err
		}
		held := make(chan error, 1)
		// The call returns after the census, for which all ports have to stand still.
		holding.Go(func() {
			_ = p.runOnLoop(ctx, func() {
				p.enterState(doingHold)
				held <- p.addTo(a)
				<-release
				p.enterState(doingWork)
			})
		})
		select {
		case err := <-held:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("soak: queue %d of %s cannot be stopped: %s: %w", p.queue, e.ifname, p.describePlace(),
				context.Cause(ctx))
		}
	}
	a.Census = e.umem.Census()
	return a, nil
}

func (p *port) settleFrames(ctx context.Context) error {
	for {
		var waits string // "" at rest
		if err := p.runOnLoop(ctx, func() {
			if !p.role.isSettled() {
				waits = p.role.describeWait()
			}
		}); err != nil || waits == "" {
			return err
		}
		if err := experiment.Sleep(ctx, settleStep); err != nil {
			return fmt.Errorf("soak: queue %d of %s does not come to rest: %s, %s: %w", p.queue, p.end.ifname, p.describePlace(),
				waits, err)
		}
	}
}

// Socket counters of packets that are lost: there was no frame or no entry for
// them.
const (
	socketRxDropped = "RX dropped"
	socketRxFull    = "RX ring full"
)

// addTo adds the port's share to an account. It runs on the port's goroutine.
func (p *port) addTo(a *account) error {
	s := p.sock.Load()
	rings, err := s.Rings()
	if err != nil {
		return err
	}
	st, err := s.Stats()
	if err != nil {
		return err
	}
	a.Pool += p.pool.Available()
	a.Rings.Fill += rings.Fill
	a.Rings.Rx += rings.Rx
	a.Rings.Tx += rings.Tx
	a.Rings.Completion += rings.Completion
	counters := map[string]uint64{
		"driver refused":   st.TxDropped,
		"send stalls":      st.TxStalls,
		"bad RX entries":   st.BadDescs,
		"bad completions":  st.BadCompletions,
		socketRxDropped:    st.Kernel.RxDropped,
		socketRxFull:       st.Kernel.RxRingFull,
		"fill ring empty":  st.Kernel.FillRingEmpty,
		"bad fill entries": st.Kernel.RxInvalidDescs,
		"bad TX entries":   st.Kernel.TxInvalidDescs,
	}
	p.counts.Sockets = experiment.Difference(p.reported, counters)
	p.reported = counters
	a.Counts.addCounts(p.counts)
	p.counts = counts{}
	return nil
}

// tally is what a link's ends and interfaces counted, in all or since the last
// stock.
type tally struct {
	client, server counts
	answered       uint64
	interfaces     map[string]uint64
}

func (t *tally) addTally(d tally) {
	t.client.addCounts(d.client)
	t.server.addCounts(d.server)
	t.answered += d.answered
	experiment.Add(&t.interfaces, d.interfaces)
}

// countDropped returns how many packets are in drop counters, each once.
func (t *tally) countDropped() int64 {
	n := t.interfaces[nearName+transmission] + t.interfaces[farName+transmission]
	for _, sockets := range []map[string]uint64{t.client.Sockets, t.server.Sockets} {
		n += sockets[socketRxDropped] + sockets[socketRxFull]
	}
	return int64(n)
}

func (t *tally) countLost() int64 { return int64(t.client.Sent - t.answered) }

// quiet is the time without a change after which a paused link counts as being
// at rest: a packet may still be on its way after the client gave it up.
const quiet = 10 * time.Millisecond

// takeStock waits until a paused link is at rest, counts the frames at both ends and
// returns what was counted since the last stock.
func (h *runner) takeStock(ctx context.Context, l *link) (t tally, err error) {
	resting, cancel := context.WithTimeoutCause(ctx, endurance*h.cfg.Bound,
		fmt.Errorf("the link is not at rest %v after the clients were paused", endurance*h.cfg.Bound))
	defer cancel()
	for {
		near, err := l.end.countFrames(resting)
		if err != nil {
			return t, h.notAtRest(ctx, l, err)
		}
		t.client.addCounts(near.Counts)
		far, err := l.opposite.countFrames(resting)
		if err != nil {
			return t, h.notAtRest(ctx, l, err)
		}
		if far != nil {
			t.server.addCounts(far.Counts)
		}
		answered := l.countAnswers() - l.total.answered
		drops, err := l.countDrops()
		if err != nil {
			return t, err
		}
		drops = experiment.Difference(l.total.interfaces, drops)
		if t.interfaces != nil && t.answered == answered && maps.Equal(t.interfaces, drops) {
			h.judgeAccount(l, "client", near, t.client)
			if far != nil {
				h.judgeAccount(l, "server", far, t.server)
				h.failIf(l.memory.addSample(far.PID, far.Memory))
			}
			l.total.addTally(t)
			return t, nil
		}
		t.answered, t.interfaces = answered, drops
		if err := experiment.Sleep(resting, quiet); err != nil {
			return t, h.notAtRest(ctx, l, err)
		}
	}
}

// notAtRest adds to an error what waits on what, unless everything was stopped.
func (h *runner) notAtRest(ctx context.Context, l *link, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w: %s", ErrFailed, err, l.describeStall(ctx))
}

// judgeAccount looks for leaks in an account, and for corruption and lost wake-ups in
// what was found since the last stock.
func (h *runner) judgeAccount(l *link, side string, a *account, found counts) {
	h.report.Accounts++
	if n := a.leakedFrames(); n > 0 {
		h.report.Leaked = max(h.report.Leaked, n)
		h.report.addFailure("link %s, %s: %d frames leaked: %v", l.name, side, n, a)
	}
	if found.Corrupt > 0 {
		h.report.addFailure("link %s, %s: %d corrupt packets; the first: %s", l.name, side, found.Corrupt, found.FirstCorrupt)
	}
	if found.LostWakeups > 0 {
		h.report.addFailure("link %s, %s: %d times the kernel did not wake Poll for a packet; the longest wait: %v",
			l.name, side, found.LostWakeups, found.Latest)
	}
}

func (h *runner) failIf(err error) {
	if err != nil {
		h.report.addFailure("%v", err)
	}
}

// explainLoss holds a link to losing only packets that are in the kernel's drop
// counters.
func (h *runner) explainLoss(l *link, t tally, during string) {
	lost, dropped := t.countLost(), t.countDropped()
	if lost == dropped {
		return
	}
	l.report.Unexplained += lost - dropped
	h.report.addFailure("link %s, %s: %d packets sent, %d answered, %d in drop counters (%v)", l.name, during,
		t.client.Sent, t.answered, dropped, t.interfaces)
}

func (l *link) setCalm(ctx context.Context, on bool) {
	for _, c := range l.clients {
		// It only fails when everything is being stopped.
		_ = c.runOnLoop(ctx, func() { c.calm = on })
	}
}

func (h *runner) finishReport() {
	r := h.report
	r.Duration = time.Since(h.began)
	r.Allocations = float64(h.allocations) / max(1, float64(h.packets))
	h.rememberGrowth(&h.own)
	for _, l := range h.links {
		var both counts
		both.addCounts(l.total.client)
		both.addCounts(l.total.server)
		roundTrips := newHistogram()
		for _, c := range l.clients {
			roundTrips.Merge(c.roundTrip)
		}
		lr := l.report
		lr.Sent, lr.Answered, lr.Dropped = l.total.client.Sent, l.total.answered, l.total.countDropped()
		lr.Destroyed = l.total.countLost() - lr.Dropped - lr.Unexplained
		lr.Interfaces, lr.Sockets = l.total.interfaces, both.Sockets
		lr.Corrupt, lr.LostWakeups = both.Corrupt, both.LostWakeups
		lr.LateArrivals, lr.Latest = both.Late, both.Latest
		lr.Rate = float64(l.packets) / max(l.flowed.Seconds(), 1e-9)
		lr.RoundTrip = summary(roundTrips)
		r.sumUp(l.name)
		h.rememberGrowth(&l.memory)
	}
}

// rememberGrowth ends a memory watch and reports the process with most samples.
func (h *runner) rememberGrowth(w *memoryWatch) {
	h.failIf(w.endProcess())
	if w.longest.Samples > 0 {
		h.report.Memory = append(h.report.Memory, w.longest)
	}
}

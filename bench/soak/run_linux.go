// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Times of a round.
const (
	undisturbedTime = 200 * time.Millisecond
	beforeEvent     = 50 * time.Millisecond
	afterEvent      = 50 * time.Millisecond
	minHold         = 10 * time.Millisecond
	maxHold         = 300 * time.Millisecond
)

// Run soaks. It needs root; without, the error wraps fs.ErrPermission. The
// error wraps ErrFailed where a check failed; the report has the findings. When ctx
// is done, Run returns the report until then and the cause.
//
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := errors.Join(cfg.checkFields(), child.Command(&cfg.ChildCommand, "soak")); err != nil {
		return nil, err
	}
	h := newRunner(cfg)
	running, stop := context.WithCancelCause(ctx)
	if err := h.buildLinks(running, stop); err != nil {
		stop(nil)
		err = errors.Join(err, h.closeAll())
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("soak: making network namespaces and AF_XDP sockets needs root: %w", err)
		}
		return nil, err
	}
	return h.report, h.runAll(running, stop)
}

type runner struct {
	cfg    Config
	report *Report
	began  time.Time
	thread *proc.Thread
	links  []*link
	own    memoryWatch

	allocations, packets uint64 // of undisturbed time

	mu sync.Mutex // guards report while events run at the same time
}

func newRunner(cfg Config) *runner {
	return &runner{
		cfg: cfg, report: newReport(cfg), began: time.Now(), thread: proc.NewThread(),
		own: memoryWatch{process: "clients"},
	}
}

// runAll soaks, takes everything down and completes the report.
func (h *runner) runAll(ctx context.Context, stop context.CancelCauseFunc) error {
	err := h.soakRounds(ctx)
	if err != nil && ctx.Err() != nil { // why everything was stopped, instead of what came of that
		err = fmt.Errorf("soak: stopped after %d rounds: %w", h.report.Rounds, context.Cause(ctx))
	}
	stop(nil)
	err = errors.Join(err, h.closeAll())
	h.finishReport()
	if err == nil {
		err = h.report.err()
	}
	return err
}

func (h *runner) buildLinks(ctx context.Context, stop context.CancelCauseFunc) error {
	served, reflected := &link{name: "process", queues: 2, stamps: true}, &link{name: "xdp", queues: 1}
	served.opposite = &process{link: served, command: h.cfg.ChildCommand, thread: h.thread}
	reflected.opposite = &reflector{link: reflected}
	for i, l := range []*link{served, reflected} {
		l.past, l.report = map[string]uint64{}, &LinkReport{Link: l.name, Queues: l.queues}
		l.rand = rand.New(rand.NewPCG(h.cfg.Seed, uint64(i)))
		l.memory = memoryWatch{process: "server", warmUp: 2} // the first account warms its JSON up
		h.links = append(h.links, l)
		h.report.Links = append(h.report.Links, l.report)
		if err := l.buildLink(); err != nil {
			return err
		}
		l.deck.all = disturbances(l)
		// Until everything has happened once.
		h.own.warmUp = max(h.own.warmUp, len(l.deck.all))
		if err := l.startClients(ctx, stop); err != nil {
			return err
		}
	}
	return nil
}

// soakRounds goes from round to round until the time is over, but makes one at least.
func (h *runner) soakRounds(ctx context.Context) error {
	for _, l := range h.links {
		if _, err := h.takeStock(ctx, l); err != nil {
			return err
		}
	}
	for {
		if err := h.runRound(ctx); err != nil {
			return err
		}
		h.report.Rounds++
		h.reportProgress()
		if time.Since(h.began) >= h.cfg.Duration {
			return nil
		}
	}
}

func (h *runner) reportProgress() {
	if h.cfg.Progress == nil {
		return
	}
	var answers uint64
	for _, l := range h.links {
		answers += l.countAnswers()
	}
	done := min(time.Since(h.began), h.cfg.Duration)
	h.cfg.Progress(int(done/time.Second), int(h.cfg.Duration/time.Second),
		fmt.Sprintf("%d events, %d packets answered, %d failures", len(h.report.Events), answers, len(h.report.Failures)))
}

// runRound is one as docs/benchmarks.md describes.
func (h *runner) runRound(ctx context.Context) error {
	if err := h.runUndisturbed(ctx); err != nil {
		return err
	}
	if err := h.runDisturbed(ctx); err != nil {
		return err
	}
	m, err := takeMemory()
	if err != nil {
		return err
	}
	h.failIf(h.own.addSample(os.Getpid(), m))
	return nil
}

// runUndisturbed lets packets flow and checks that they do.
func (h *runner) runUndisturbed(ctx context.Context) error {
	var before, after runtime.MemStats
	began, answered := time.Now(), make([]uint64, len(h.links))
	for i, l := range h.links {
		l.setCalm(ctx, true)
		answered[i] = l.countAnswers()
	}
	runtime.ReadMemStats(&before)
	for _, l := range h.links {
		l.setFlowing(true)
	}
	for time.Since(began) < undisturbedTime {
		if err := experiment.Sleep(ctx, undisturbedTime/10); err != nil {
			return err
		}
		for _, l := range h.links {
			if err := h.watchStall(ctx, l); err != nil {
				return err
			}
		}
	}
	runtime.ReadMemStats(&after)
	h.allocations += after.Mallocs - before.Mallocs
	for i, l := range h.links {
		l.setFlowing(false)
		l.flowed += time.Since(began)
		l.packets += l.countAnswers() - answered[i]
		h.packets += l.countAnswers() - answered[i]
	}
	for _, l := range h.links {
		t, err := h.takeStock(ctx, l)
		if err != nil {
			return err
		}
		l.setCalm(ctx, false)
		h.explainLoss(l, t, "undisturbed time")
	}
	return nil
}

// watchStall notes a stall of an undisturbed link. It gives up when one does not end.
func (h *runner) watchStall(ctx context.Context, l *link) error {
	if err := l.opposite.whyEnded(); err != nil {
		return err
	}
	stalled := func() bool {
		return slices.ContainsFunc(l.clients, func(c *client) bool { return now()-c.answered.Load() > int64(h.cfg.Bound) })
	}
	if !stalled() {
		return nil
	}
	return h.noteStall(ctx, l, "undisturbed time", func() bool { return !stalled() })
}

// endurance is how many times the bound a stall may last before the run is
// given up.
const endurance = 4

// noteStall writes a stall down and waits for its end.
func (h *runner) noteStall(ctx context.Context, l *link, during string, over func() bool) error {
	s := Stall{At: time.Since(h.began), Link: l.name, During: during, Waits: l.describeStall(ctx)}
	h.mu.Lock()
	h.report.Stalls = append(h.report.Stalls, s)
	h.report.addFailure("link %s, %s: no answer within %v: %s", l.name, during, h.cfg.Bound, s.Waits)
	h.mu.Unlock()
	for deadline := time.Now().Add(endurance * h.cfg.Bound); !over(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: link %s, %s: no answer at all any more: %s", ErrFailed, l.name, during, l.describeStall(ctx))
		}
		if err := experiment.Sleep(ctx, retry); err != nil {
			return err
		}
	}
	return nil
}

// runDisturbed makes something happen to every link while packets flow.
func (h *runner) runDisturbed(ctx context.Context) error {
	for _, l := range h.links {
		l.setFlowing(true)
	}
	if err := experiment.Sleep(ctx, beforeEvent); err != nil {
		return err
	}
	var all errgroup.Group
	for _, l := range h.links {
		l.happens = l.deck.drawNext(l.rand)
		all.Go(func() error { return h.disturbLink(ctx, l) })
	}
	if err := errors.Join(all.Wait(), experiment.Sleep(ctx, afterEvent)); err != nil {
		return err
	}
	for _, l := range h.links {
		l.setFlowing(false)
		t, err := h.takeStock(ctx, l)
		if err != nil {
			return err
		}
		if l.happens.exact {
			h.explainLoss(l, t, l.happens.kind)
		}
		l.event.Sent, l.event.Lost, l.event.Dropped = t.client.Sent, t.countLost(), t.countDropped()
		h.report.Events = append(h.report.Events, l.event)
	}
	return nil
}

func (h *runner) disturbLink(ctx context.Context, l *link) error {
	d := l.happens
	l.event = Event{At: time.Since(h.began), Link: l.name, Kind: d.kind}
	since, err := d.disturbLink(ctx, l)
	if err != nil {
		return fmt.Errorf("soak: link %s, %s: %w", l.name, d.kind, err)
	}
	mark := now()
	for _, c := range l.clients {
		c.setMark(mark, d.size)
	}
	// resumed returns when the last queue had its answer, 0 before.
	resumed := func() (last int64) {
		for _, c := range l.clients {
			at, ok := c.resumedAt(mark)
			if !ok {
				return 0
			}
			last = max(last, at)
		}
		return last
	}
	for resumed() == 0 {
		if now()-mark > int64(h.cfg.Bound) {
			if err := h.noteStall(ctx, l, d.kind, func() bool { return resumed() != 0 }); err != nil {
				return err
			}
			break
		}
		if err := errors.Join(l.opposite.whyEnded(), experiment.Sleep(ctx, time.Millisecond)); err != nil {
			return err
		}
	}
	l.event.Recovery = time.Duration(resumed() - since)
	return nil
}

// closeAll removes everything. The clients' context must be done.
func (h *runner) closeAll() error {
	defer h.thread.Close()
	return experiment.Close(h.links...)
}

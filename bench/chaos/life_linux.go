// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

const (
	// stageLimit is how long nothing may happen: no trouble, and no further step.
	stageLimit = 2 * time.Minute
	// allEnd is how long after the first process that ends with an error the others may say what they
	// know.
	allEnd = 2 * time.Second
)

// running is a life on its way.
type running struct {
	life   Life
	trace  func(string)
	self   string // this program
	path   string // of the cluster file
	begun  time.Time
	mtu    int
	cancel context.CancelCauseFunc
	ends   sync.WaitGroup // of processes and troubles

	aggregators [aggregators]*process
	server      *process
	workers     []*process
	addresses   int // given to interfaces

	mu      sync.Mutex
	news    chan struct{} // closed, and replaced, when something has happened
	step    uint64        // the last one that a worker has pushed
	stage   string
	trouble string // the last one
	changed time.Time
	holder  int // index of the aggregator that has the job, or had it last
	claimed map[string]bool
	failing bool
	report  LifeReport
}

// live lives one life. Its error is what was found, or the cause of ctx's end, or, without a
// report, why it could not be lived.
func live(ctx context.Context, l Life, trace func(string), begun func(*running)) (report *LifeReport, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &running{life: l, trace: trace, begun: time.Now(), cancel: cancel, news: make(chan struct{}),
		claimed: map[string]bool{}, report: LifeReport{Life: l, Happened: map[Kind]int{}}}
	begun(r)
	if r.self, err = os.Executable(); err != nil {
		return nil, err
	}
	r.ends.Go(func() { r.watchDog(ctx) })
	err = r.liveIn(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // which has caused it
	}
	cancel(err)
	r.ends.Wait()
	if r.report.Reference == "" {
		return nil, err
	}
	r.report.Elapsed = time.Since(r.begun)
	return &r.report, err
}

// liveIn makes the network and the files, and removes them.
func (r *running) liveIn(ctx context.Context) (err error) {
	r.enter("builds the network")
	dir, err := os.MkdirTemp("", "libra-chaos-*")
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r.mtu = testbed.DefaultMTU
	b, err := testbed.New(ctx, testbed.Config{Hosts: firstWorker + r.life.Workers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	c := r.life.config(b, dir)
	if r.path, err = r.life.prepare(c, dir); err != nil {
		return err
	}
	still := func() { r.enter("trains the reference") }
	still()
	if r.report.Reference, err = reference(ctx, c, still); err != nil {
		return err
	}
	r.occupy(b)
	if err := r.run(ctx, b); err != nil {
		return err
	}
	if w := r.report.Weights; w != r.report.Reference {
		return fmt.Errorf("%w: SHA-256 %s, the reference's %s", ErrDiffers, w, r.report.Reference)
	}
	return nil
}

// occupy gives each process its place.
func (r *running) occupy(b *testbed.Bed) {
	common := []string{"--config", r.path, "--json"}
	at := func(name string, host int, args ...string) *process {
		return &process{name: name, host: b.Host(host), args: append(args, common...)}
	}
	r.aggregators = [aggregators]*process{at("switch", 0, "switch"), at("standby", 1, "switch", "--standby", "0")}
	for _, p := range r.aggregators {
		p.service = true
	}
	r.server = at("server", serverHost, "ps")
	for i := range r.life.Workers {
		id := strconv.Itoa(i + 1)
		r.workers = append(r.workers, at("worker "+id, firstWorker+i, "worker", "--id", id))
	}
}

// all lists the places.
func (r *running) all() []*process {
	return append([]*process{r.aggregators[0], r.aggregators[1], r.server}, r.workers...)
}

// run trains.
func (r *running) run(ctx context.Context, b *testbed.Bed) (err error) {
	var around sync.WaitGroup // what needs the bed
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, p := range r.all() {
			r.signal(context.Background(), p, syscall.SIGKILL)
		}
		around.Wait()
	}()
	count := counters{last: map[string]uint64{}}
	around.Go(func() { count.watch(ctx, b.Hosts()) })
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.report.add(count.total())
	}()
	if r.life.Late > 0 || r.life.Corrupt > 0 {
		c, err := newCopier(b, &r.life)
		if err != nil {
			return err
		}
		around.Go(func() {
			defer c.close()
			if err := c.run(ctx); err != nil {
				r.fail(fmt.Errorf("copying frames: %w", err))
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.report.LateCopies, r.report.CorruptCopies = c.late, c.corrupt
		})
	}
	for _, p := range []*process{r.aggregators[0], r.aggregators[1], r.server} {
		r.enter("waits until the %s is ready", p.name)
		child, err := r.startProcess(p)
		if err != nil {
			return err
		}
		if err := child.Ready(ctx, nil); err != nil {
			return err
		}
	}
	for _, p := range r.workers {
		if _, err := r.startProcess(p); err != nil {
			return err
		}
	}
	if err := r.makeTrouble(ctx); err != nil {
		return err
	}
	r.enter("waits for the end of the training")
	return r.waitFor(ctx, func() bool {
		return !slices.ContainsFunc(r.all(), func(p *process) bool { return !p.service && !p.finished })
	})
}

// enter begins a stage.
func (r *running) enter(format string, args ...any) {
	r.mu.Lock()
	r.stage = fmt.Sprintf(format, args...)
	r.changed = time.Now()
	r.mu.Unlock()
}

// watchDog ends a life in which nothing happens any more.
func (r *running) watchDog(ctx context.Context) {
	for sleep(ctx, time.Second) {
		r.mu.Lock()
		stage, step, still := r.stage, r.step, time.Since(r.changed)
		r.mu.Unlock()
		if still > stageLimit {
			r.fail(fmt.Errorf("nothing has happened for %v: step %d is the last that was pushed, and it %s",
				stageLimit, step, stage))
			return
		}
	}
}

// waitStep waits until a step is open, or all have finished.
func (r *running) waitStep(ctx context.Context, step uint64) error {
	return r.waitFor(ctx, func() bool { return r.step >= step || r.server.finished })
}

// waitFor waits until something is true, which is asked with the mutex held.
func (r *running) waitFor(ctx context.Context, is func() bool) error {
	for {
		r.mu.Lock()
		is, news := is(), r.news
		r.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reached notes the step that a worker has pushed.
func (r *running) reached(step uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if step > r.step {
		r.step = step
		r.wake()
	}
}

// wake says that something has happened. The caller holds the mutex.
func (r *running) wake() {
	r.changed = time.Now()
	close(r.news)
	r.news = make(chan struct{})
}

// happens is traceLine for what others wait for.
func (r *running) happens(format string, args ...any) {
	r.traceLine(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = fmt.Sprintf(format, args...)
	r.wake()
}

// traceLine adds a line to the trace.
func (r *running) traceLine(format string, args ...any) {
	r.trace(fmt.Sprintf("%9.3f %s", time.Since(r.begun).Seconds(), fmt.Sprintf(format, args...)))
}

// fail ends the life.
func (r *running) fail(err error) { r.cancel(err) }

// failSoon ends the life, once the other processes that this concerns have ended, too.
func (r *running) failSoon(err error) {
	r.mu.Lock()
	first := !r.failing
	r.failing = true
	r.mu.Unlock()
	if first {
		time.AfterFunc(allEnd, func() { r.fail(err) })
	}
}

// now returns how far the life is.
func (r *running) now() Now {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Now{Seed: r.life.Seed, Step: r.step, Trouble: r.trouble}
}

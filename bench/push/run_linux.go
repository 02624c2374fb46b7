// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/libra-ina/libra/bench/baselines"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer/heat"
)

// Run measures. It needs root; without, the error wraps a
// testbed.CapabilityError. A baseline that cannot be built is reported in
// Report.Unavailable and does not end the run; a wrong sum does. When ctx is
// done, Run returns what it has and the cause.
//
// Nothing is left behind, however the process ends, but of a study of scale that SIGKILL ended: its
// control groups stay, without processes, until the next study removes them.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if len(cfg.Servers) == 0 {
		cfg.Servers = []int{1}
	}
	if len(cfg.Hot) == 0 {
		cfg.Hot = []int{HotKeys}
	}
	if err := errors.Join(cfg.checkFields(), child.Command(&cfg.ChildCommand, "push")); err != nil {
		return nil, err
	}
	if len(cfg.Traces) > 0 {
		return replay(ctx, cfg)
	}
	r := &run{cfg: cfg, progress: experiment.ProgressCounter{Progress: cfg.Progress}, report: &Report{
		Rounds: cfg.Rounds, Duration: cfg.Duration, Harvest: cfg.Harvest, Loss: cfg.Loss,
	}}
	defer func() { err = errors.Join(err, experiment.Close(r.bed), experiment.Close(r.keyValue)) }()
	if err := r.findBaselines(ctx); err != nil {
		return nil, err
	}
	r.progress.Total = len(cfg.Batches) * len(cfg.Workers) * cfg.Rounds * len(r.allVariants())
	if r.bed, err = newBed(ctx, slices.Max(cfg.Workers), slices.Max(cfg.Servers), cfg.Scale); err != nil {
		return nil, err
	}
	for _, batch := range cfg.Batches {
		if err = r.measureBatch(ctx, batch); err != nil {
			break
		}
	}
	r.report.finishReport()
	if cfg.Scale {
		r.report.addScale(&cfg)
	}
	return r.report, err
}

type run struct {
	cfg       Config
	report    *Report
	bed       *bed
	keyValue  *baselines.Executable // of ZeroMQHash and ZeroMQTable
	baselines []string              // baselines that can run
	work      *workload
	load      *sys.Shared // memory of the workload
	slots     int         // of a worker of SwitchML
	servers   int         // of the cluster that is measured
	progress  experiment.ProgressCounter
}

// findBaselines finds out which baselines can run, and builds the C++ program.
func (r *run) findBaselines(ctx context.Context) (err error) {
	for _, b := range r.cfg.Baselines {
		if !ours(b) && r.keyValue == nil {
			r.keyValue, err = baselines.KeyValue.Build(ctx)
			if missing := baselines.KeyValue.Missing(b, err); missing != nil {
				experiment.AddUnavailable(&r.report.Unavailable, *missing)
				continue
			}
			if err != nil {
				return err
			}
		}
		r.baselines = append(r.baselines, b)
	}
	return nil
}

// measureBatch makes the workload for a batch size and measures everything that uses it.
func (r *run) measureBatch(ctx context.Context, batch int) (err error) {
	h, size := drawnLayout(batch, slices.Max(r.cfg.Workers))
	return r.measureLoad(ctx, h, size, func(w *workload) { w.fillWorkload(1) }, Result{Batch: batch},
		fmt.Sprintf("batches of %d", batch))
}

// measureLoad measures each baseline with one workload. like has the fields that all its results
// have in common; what names the workload in the progress report.
func (r *run) measureLoad(ctx context.Context, h header, size int, fill func(*workload), like Result,
	what string) (err error) {
	if r.load, err = sys.NewShared("libra-bench-pushes", size); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.load.Close()) }()
	r.work = &workload{header: h, mem: r.load.Mem}
	fill(r.work)
	return r.takeTurns(ctx, like, what)
}

// variant is a baseline with a number of servers and of hot rows.
type variant struct {
	baseline     string
	servers, hot int
}

// allVariants returns all variants of the baselines, in the order of their turns: of each the first
// one has the first of all numbers.
func (r *run) allVariants() (all []variant) {
	c := r.cfg
	if len(c.Traces) > 0 {
		c.Servers, c.Hot = []int{1}, []int{r.work.hot}
	}
	for _, b := range r.baselines {
		for _, servers := range c.Servers {
			for _, hot := range c.Hot {
				if first := servers == c.Servers[0] && hot == c.Hot[0]; first || b == Libra || b == Unprepared {
					all = append(all, variant{b, servers, hot})
				}
			}
		}
	}
	return all
}

func (v variant) String() string {
	s := fmt.Sprintf("%s, %d hot", v.baseline, v.hot)
	if v.servers > 1 {
		s += fmt.Sprintf(", %d servers", v.servers)
	}
	return s
}

// takeTurns measures every number of workers with every variant once in each round, for ratios
// within rounds.
func (r *run) takeTurns(ctx context.Context, like Result, what string) error {
	var subjects []*experiment.Subject[Sample]
	var results []Result
	for _, workers := range r.cfg.Workers {
		ours := map[int]*experiment.Subject[Sample]{} // Libra with the first number of hot rows, by servers
		for _, v := range r.allVariants() {
			i := len(results)
			res := like
			res.Workers, res.Baseline, res.Servers, res.Hot = workers, v.baseline, v.servers, v.hot
			results = append(results, res)
			s := &experiment.Subject[Sample]{
				What: fmt.Sprintf("%d workers, %s, %v", workers, what, v),
				Measure: func(ctx context.Context) (Sample, error) {
					if results[i].Hot == AutoHot {
						rate := ours[v.servers].Samples[0].rateOfAll(r.cfg.Scale)
						hot, err := r.work.autoHot(heat.Auto{Workers: workers, Rate: rate / float64(workers), Period: r.cfg.Harvest,
							Numbered: v.baseline == Libra, Apart: r.cfg.Scale})
						if err != nil {
							return Sample{}, err
						}
						results[i].Hot, results[i].Auto = hot, true
					}
					results[i].HotShare = r.work.setHot(results[i].Hot)
					r.servers = v.servers
					if r.cfg.Scale {
						return r.measureScale(ctx, v.baseline, workers)
					}
					s, _, err := r.observeCluster(ctx, v.baseline, workers,
						observation{harvest: r.cfg.Harvest, lasts: r.cfg.Duration})
					return s, err
				},
			}
			subjects = append(subjects, s)
			if ours[v.servers] == nil && v.baseline == Libra {
				ours[v.servers] = s
			}
		}
	}
	err := experiment.TakeTurns(ctx, r.cfg.Rounds, &r.progress, subjects)
	if err != nil {
		err = fmt.Errorf("push: %w", err)
	}
	for i, s := range subjects {
		if len(s.Samples) > 0 {
			results[i].Samples = s.Samples
			r.report.addResult(results[i])
		}
	}
	return err
}

// observation is how pushes are measured.
type observation struct {
	harvest, lasts time.Duration
	// hold holds the processes until release; nil: they run as they like.
	hold func(*cluster) (release func() error, err error)
}

// observeCluster lets a baseline push. In a study of scale it also returns what the roles take.
func (r *run) observeCluster(ctx context.Context, baseline string, workers int, o observation) (s Sample,
	roles rolesUsage, err error) {
	c, err := r.launchCluster(ctx, baseline, workers, o.harvest)
	if err != nil {
		return s, roles, err
	}
	defer func() { err = errors.Join(err, c.killAll()) }()
	release := func() error { return nil }
	if o.hold != nil {
		if release, err = o.hold(c); err != nil {
			return s, roles, err
		}
	}
	before, after, err := r.measureWindow(ctx, c, o.lasts)
	if err := errors.Join(err, release()); err != nil {
		return s, roles, err
	}
	pushes, trip, err := c.finishWorkers(ctx, ours(baseline) && baseline != SwitchML)
	rowsOf := r.work.rowsOf
	if baseline == SwitchML { // the workers check their sums
		rowsOf = func(_ int, from, to uint64) uint64 { return uint64(r.slots) * (to - from) }
	} else if err == nil {
		err = r.work.checkSums(pushes, c.heldRows(r.work.dim), baseline == ZeroMQHash)
	}
	if err != nil {
		return s, roles, err
	}
	s, roles = newSample(baseline, before, after, workers, rowsOf)
	s.RoundTrip = trip
	return s, roles, nil
}

// measureWindow lets the workers push, and reads the counters after the warm-up and at the end.
func (r *run) measureWindow(ctx context.Context, c *cluster, lasts time.Duration) (before, after reading, err error) {
	if _, err := askAll(ctx, c.workers, opStart); err != nil {
		return before, after, err
	}
	if err := experiment.Sleep(ctx, r.cfg.WarmUp); err != nil {
		return before, after, err
	}
	return experiment.Window(ctx, lasts,
		func() (reading, error) { return r.readCounters(ctx, c) },
		func(before, after reading) bool { return after.countPushes() > before.countPushes() })
}

// reading is the state of all counters at a moment.
type reading struct {
	marks      []mark        // of the workers, the agent, if there is one, and, last, the servers
	servers    int           // how many of marks are servers'
	own        mark          // of this process, which holds the aggregator's control service
	aggregator time.Duration // CPU time of the aggregator's program
	softirq    uint64        // ns, of the threads that run what interrupts leave over
	links      []linkReading // links of the hosts, the server's first; only in the study of scale
}

func (r *run) readCounters(ctx context.Context, c *cluster) (now reading, _ error) {
	var errs [5]error
	now.servers = len(c.servers)
	now.own, errs[0] = ownMark(0)
	now.aggregator, errs[1] = r.bed.aggregator.RunTime()
	now.softirq, errs[2] = sys.SoftirqTime()
	now.links, errs[3] = r.bed.readLinks(len(c.workers))
	now.marks, errs[4] = askAll(ctx, slices.Concat(c.workers, c.agent, c.servers), opMark)
	return now, errors.Join(errs[:]...)
}

func (r *reading) countPushes() (n uint64) {
	for _, m := range r.marks {
		n += m.Pushes
	}
	return n
}

// newSample makes a sample from two readings, and in a study of scale also what the roles take.
//
// Nothing is counted twice: the aggregator's program runs in the context of
// whichever process sent a frame, or of a ksoftirqd, so its time is taken from
// the kernel's. The baselines have no aggregator; what this process needs beside
// them is the measurement's.
func newSample(baseline string, before, after reading, workers int,
	rowsOf func(worker int, from, to uint64) uint64) (_ Sample, u rolesUsage) {
	var (
		rate, squares           float64 // pairs a second, and squares of the workers' rates
		pairs, frames, repeated uint64
	)
	first := len(before.marks) - before.servers
	for i, b := range before.marks[:first] {
		a := after.marks[i]
		u.worker.addUsage(a.usageSince(b))
		rows := uint64(0) // an agent and a server push none
		if a.Pushes > b.Pushes {
			rows = rowsOf(i, b.Pushes, a.Pushes)
		}
		own := float64(rows) / (float64(a.At-b.At) / 1e9)
		rate += own
		squares += own * own
		pairs += rows
		frames += a.Frames - b.Frames
		repeated += a.Repeated - b.Repeated
	}
	for i, b := range before.marks[first:] {
		u.server.addUsage(after.marks[first+i].usageSince(b))
	}
	seconds := float64(after.own.At-before.own.At) / 1e9
	kernel := u.worker.kernel + u.server.kernel + float64(after.softirq-before.softirq)/seconds
	kernel += u.addLinks(baseline, before.links, after.links, seconds)
	own := after.own.usageSince(before.own)
	program := float64(after.aggregator-before.aggregator) / seconds
	u.sw.user = own.user + own.kernel // time of the control service
	if !ours(baseline) {
		program, u.sw.user = 0, 0
	}
	shares := FrameStats{
		Fairness:      experiment.Quotient(rate*rate, float64(workers)*squares),
		Repeated:      experiment.Quotient(float64(repeated), float64(frames)),
		PairsPerFrame: experiment.Quotient(float64(pairs), float64(frames)),
	}
	return Sample{Figures: Figures{PairsPerSecond: rate, FrameStats: shares, Cost: Cost{
		NsWorker:     experiment.Quotient(u.worker.user, rate),
		NsKernel:     experiment.Quotient(max(0, kernel-program), rate),
		NsAggregator: experiment.Quotient(program+u.sw.user, rate),
		NsServer:     experiment.Quotient(u.server.user, rate),
	}}}, u
}

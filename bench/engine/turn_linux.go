// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// sliceTime is the length of a slice. The speed of a machine that others use changes by two from
// second to second, so that programs that ran one after the other for half a second each would be
// told apart by it more than by what they do.
const sliceTime = 50 * time.Millisecond

// settleTime bounds how often the counters are looked at while the first frames of a flood are
// awaited.
const settleTime = 5 * time.Millisecond

// runsInSlices reports whether a test's programs are alive together, all but one of them stopped,
// and run in turns of a slice. A stop would be in the round-trip times of the one test, and set off
// the retransmissions of the other.
func (g group) runsInSlices() bool { return g.test != RequestResponse && g.test != Push }

// runner is a baseline in a test, on a bed of its own.
type runner struct {
	run      *run
	bed      *bed
	baseline string
	group    group
	test     Test // the test that its program runs

	samples []Sample
	err     error // why it takes no further part

	// Of a round.
	process process // nil if there is none
	undo    func() error
	tally   tally
}

func newRunner(r *run, b *bed, baseline string, g group) *runner {
	w := &runner{run: r, bed: b, baseline: baseline, group: g, test: g.test}
	if baseline == EchoInPush {
		w.test = Echo
	}
	return w
}

// beginProgram starts the program and lets it run for a while. After a failure the runner has
// no process, and err set.
func (w *runner) beginProgram(ctx context.Context) {
	w.tally = tally{}
	w.tryPart(ctx, func() (err error) {
		if w.undo, err = w.bed.prepareTest(w.test, w.baseline); err != nil {
			return err
		}
		start, program := w.run.startProgram, w.baseline
		switch w.baseline {
		case DPDK:
			start = startTestpmd
		case EchoInPush:
			program = Libra
		}
		if w.process, err = start(ctx, w.bed, program, w.test, w.group.size); err != nil {
			return err
		}
		quiet := w.floodTested()
		if err := errors.Join(experiment.Sleep(ctx, w.run.cfg.WarmUp), quiet()); err != nil {
			return err
		}
		if err := w.process.enterPhase(phaseMeasure); err != nil {
			return err
		}
		return w.signalProgram(syscall.SIGSTOP)
	})
}

// floodTested sends frames to the tested end if the test is about what arrives there. quiet ends
// it.
func (w *runner) floodTested() (quiet func() error) {
	if w.test != Receive {
		return func() error { return nil }
	}
	frame, err := buildFrame(w.bed.opposite, w.bed.tested, w.group.size)
	if err != nil {
		return func() error { return err }
	}
	return sync.OnceValue(w.bed.startGenerator(frame).stopGenerator)
}

// measureSlices measures the programs in turns; each time a different one begins.
func (r *run) measureSlices(ctx context.Context, together []*runner, sliced bool) {
	n := 1
	if sliced {
		n = max(1, int(r.cfg.Duration/sliceTime))
	}
	order := slices.Clone(together)
	for range n {
		for _, w := range order {
			w.measureSlice(ctx, r.cfg.Duration/time.Duration(n))
		}
		order = append(order[1:], order[0])
	}
}

// measureSlice measures the program for d, in which it alone runs.
func (w *runner) measureSlice(ctx context.Context, d time.Duration) {
	if w.process == nil {
		return
	}
	w.tryPart(ctx, func() (err error) {
		if err := w.signalProgram(syscall.SIGCONT); err != nil {
			return err
		}
		read := func() (reading, error) { return w.bed.readCounters(w.test, w.process) }
		moved := func(before, after reading) bool { return after.frames != before.frames }
		first, err := read()
		if err != nil {
			return err
		}
		quiet := w.floodTested()
		defer func() { err = errors.Join(err, quiet()) }()
		if w.test == Receive { // to make a flood takes the kernel tens of milliseconds
			if _, _, err := experiment.Window(ctx, settleTime, read, moved); err != nil {
				return err
			}
		}
		before, after, err := experiment.Window(ctx, d, read, moved)
		if err != nil {
			return err
		}
		// A process cannot release its socket while a flood keeps the kernel busy.
		if err := quiet(); err != nil {
			return err
		}
		last := after
		if w.test == Receive {
			if last, err = read(); err != nil {
				return err
			}
		}
		w.tally.addSlice(first, before, after, last)
		return w.signalProgram(syscall.SIGSTOP)
	})
}

// endProgram ends the program and keeps what was measured.
func (w *runner) endProgram(ctx context.Context) {
	if w.process == nil {
		return
	}
	w.tryPart(ctx, func() error {
		// testpmd answers only while it runs.
		if err := errors.Join(w.signalProgram(syscall.SIGCONT), w.process.enterPhase(phaseStop)); err != nil {
			return err
		}
		n, err := w.process.finishTest(ctx)
		if err != nil {
			return err
		}
		w.process = nil
		w.samples = append(w.samples, w.tally.sampleOf(n))
		undo := w.undo
		w.undo = nil
		return undo()
	})
}

// tryPart does a part of a round. An error ends the program, and, unless ctx is done, the
// runner's part in the group.
func (w *runner) tryPart(ctx context.Context, do func() error) {
	err := do()
	if err == nil {
		return
	}
	if w.process != nil {
		_ = w.signalProgram(syscall.SIGCONT) // else it would not see that it is to end
		w.process.killProcess()
		w.process = nil
	}
	if w.undo != nil {
		err = errors.Join(err, w.undo())
		w.undo = nil
	}
	if ctx.Err() == nil {
		w.run.progress.Done += w.run.cfg.Rounds - len(w.samples) - 1
		w.samples, w.err = nil, err
	}
}

// signalProgram stops the program, or lets it go on, if it takes turns in slices.
func (w *runner) signalProgram(sig syscall.Signal) error {
	if !w.group.runsInSlices() {
		return nil
	}
	return os.NewSyscallError("kill", syscall.Kill(-w.process.processID(), sig))
}

// A process runs the tested program.
type process interface {
	// enterPhase is called with phaseMeasure and phaseStop at the limits of the measurement, while
	// the process runs.
	enterPhase(phase uint32) error
	// countReceived returns how many frames reached the program's memory.
	countReceived() (uint64, error)
	// finishTest ends the process and returns what it noted.
	finishTest(ctx context.Context) (notes, error)
	// killProcess ends the process after an error.
	killProcess()
	// processID is that of the process, which leads a process group.
	processID() int
}

// notes are what a program knows about its measurement.
type notes struct {
	cpu       sys.Usage
	roundTrip []uint32 // ns
	drops     map[string]uint64
}

// reading is the state of the counters at a moment.
type reading struct {
	at     time.Time
	frames uint64
	cpu    sys.Usage // of this process, if it is what is tested
	napi   [2]uint64 // ns; of the tested and of the opposite end
	lost   map[string]uint64
}

func (b *bed) readCounters(test Test, p process) (r reading, err error) {
	if r.lost, err = b.countLosses(); err != nil {
		return r, err
	}
	for i, pid := range b.threads {
		if r.napi[i], err = sys.TaskTime(pid); err != nil {
			return r, err
		}
	}
	r.at = time.Now()
	if test == Transmit {
		r.frames, err = b.countArrived()
	} else {
		r.frames, err = p.countReceived()
	}
	return r, err
}

// tally adds up the slices of a program.
type tally struct {
	elapsed time.Duration
	frames  uint64 // frames in that time
	all     uint64 // frames in all of the time that the program ran, as are:
	napi    [2]uint64
	lost    map[string]uint64
}

// addSlice adds a slice: the program ran from first to last, and was measured from before to after.
func (t *tally) addSlice(first, before, after, last reading) {
	t.elapsed += after.at.Sub(before.at)
	t.frames += after.frames - before.frames
	t.all += last.frames - first.frames
	for i := range t.napi {
		t.napi[i] += last.napi[i] - first.napi[i]
	}
	experiment.Add(&t.lost, experiment.Difference(first.lost, last.lost))
}

func (t *tally) sampleOf(n notes) Sample {
	s := Sample{drops: t.lost}
	s.PPS = float64(t.frames) / t.elapsed.Seconds()
	s.Cost = Cost{
		NsUser:     experiment.Quotient(float64(n.cpu.User), float64(t.all)),
		NsKernel:   experiment.Quotient(float64(n.cpu.Kernel+t.napi[0]), float64(t.all)),
		NsOpposite: experiment.Quotient(float64(t.napi[1]), float64(t.all)),
	}
	experiment.Add(&s.drops, n.drops)
	if len(n.roundTrip) > 0 {
		s.P50ns, s.P99ns = new(float64(experiment.Quantile(n.roundTrip, 0.5))),
			new(float64(experiment.Quantile(n.roundTrip, 0.99)))
	}
	return s
}

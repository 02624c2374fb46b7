package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// A process runs the tested program.
type process interface {
	// enter is called with phaseMeasure and phaseStop at the limits of the measurement.
	enter(phase uint32) error
	// received returns how many frames reached the program's memory.
	received() (uint64, error)
	// finish ends the process and returns what it noted.
	finish(ctx context.Context) (notes, error)
	// kill ends the process after an error.
	kill()
}

// notes are what a program knows about its measurement.
type notes struct {
	cpu       harness.Usage
	roundTrip []uint32 // ns
	drops     map[string]uint64
}

// measure runs a baseline once.
func (r *run) measure(ctx context.Context, b *bed, baseline string, test Test, size int) (s Sample, err error) {
	if baseline == EchoInPush {
		baseline, test = Libra, Echo
	}
	undo, err := b.prepare(test, baseline)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, undo()) }()
	start := r.startProgram
	if baseline == DPDK {
		start = startTestpmd
	}
	p, err := start(ctx, b, baseline, test, size)
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			p.kill()
		}
	}()
	quiet := func() error { return nil }
	if test == Receive {
		frame, err := buildFrame(b.opposite, b.tested, size)
		if err != nil {
			return s, err
		}
		quiet = sync.OnceValue(b.generate(frame).stop)
		defer func() { err = errors.Join(err, quiet()) }()
	}
	if err := harness.Sleep(ctx, r.cfg.WarmUp); err != nil {
		return s, err
	}
	if err := p.enter(phaseMeasure); err != nil {
		return s, err
	}
	before, after, err := harness.Window(ctx, r.cfg.Duration,
		func() (reading, error) { return b.read(test, p) },
		func(before, after reading) bool { return after.frames != before.frames })
	if err != nil {
		return s, err
	}
	// A process cannot release its socket while a flood keeps the kernel busy.
	if err := errors.Join(p.enter(phaseStop), quiet()); err != nil {
		return s, err
	}
	n, err := p.finish(ctx)
	if err != nil {
		return s, err
	}
	return newSample(before, after, n), nil
}

// reading is the state of the counters at a moment.
type reading struct {
	at     time.Time
	frames uint64
	napi   [2]uint64 // ns; of the tested and of the opposite end
	lost   map[string]uint64
}

func (b *bed) read(test Test, p process) (r reading, err error) {
	if r.lost, err = b.losses(); err != nil {
		return r, err
	}
	for i, pid := range b.threads {
		if r.napi[i], err = harness.TaskTime(pid); err != nil {
			return r, err
		}
	}
	r.at = time.Now()
	if test == Transmit {
		r.frames, err = b.arrived()
	} else {
		r.frames, err = p.received()
	}
	return r, err
}

func newSample(before, after reading, n notes) Sample {
	frames := float64(after.frames - before.frames)
	tested := float64(after.napi[0] - before.napi[0])
	opposite := float64(after.napi[1] - before.napi[1])
	s := Sample{
		PPS: frames / after.at.Sub(before.at).Seconds(),
		Cost: Cost{
			NsUser:     float64(n.cpu.User) / frames,
			NsKernel:   (float64(n.cpu.Kernel) + tested) / frames,
			NsOpposite: opposite / frames,
		},
		drops: harness.Difference(before.lost, after.lost),
	}
	harness.Add(&s.drops, n.drops)
	if len(n.roundTrip) > 0 {
		s.P50us, s.P99us = new(float64(harness.Quantile(n.roundTrip, 0.5))/1e3), new(float64(harness.Quantile(n.roundTrip, 0.99))/1e3)
	}
	return s
}

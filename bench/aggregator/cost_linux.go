// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// warmUp is the number of frames that determine how many make a test run. The kernel
// takes tens of milliseconds to begin one, so that there is none before each
// measurement: caches are warm after a small part of it.
const warmUp = 2000

// openPlane loads the XDP program; it is attached nowhere.
func openPlane() (*bpf.Aggregator, error) { return bpf.Open(bpf.Options{Address: aggregatorEnd.IP}) }

// cost measures mode after mode. What is compared takes turns: the arithmetics
// and frame lengths of a mode with a number of hot parameters.
func (h *run) cost(ctx context.Context) (err error) {
	p, err := openPlane()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for _, m := range h.cfg.Modes {
		for _, hot := range h.cfg.Hot {
			if err := h.costGroup(ctx, p, m, hot); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *run) costGroup(ctx context.Context, p *bpf.Aggregator, m aggregator.Mode, hot int) (err error) {
	rng := rand.New(rand.NewPCG(1, uint64(hot)))
	var g group
	defer func() { err = errors.Join(err, experiment.Close(g...)) }()
	for _, a := range h.cfg.Arithmetics {
		for _, stripes := range h.cfg.Stripes {
			job := aggregator.JobConfig{Mode: m, Arithmetic: a, Slots: hot, MaxStripes: stripes}
			if err := g.add(p, frames{job: job, rng: rng, draw: func() int { return rng.IntN(hot) }}); err != nil {
				return err
			}
		}
	}
	programs, err := h.measure(ctx, g, nil, func([]*experiment.Subject[float64]) {})
	if err != nil {
		return err
	}
	for i, b := range g {
		b.result.Samples = programs[i].Samples
		h.report.add(b.result)
	}
	return nil
}

type group []*bench

// add starts a job, which has a mode, an arithmetic, slots and stripes, with what feeds it.
func (g *group) add(p *bpf.Aggregator, f frames) (err error) {
	job := &f.job
	b := &bench{plane: p, job: uint16(jobID + len(*g)), result: Result{
		Arithmetic: job.Arithmetic.String(), Mode: job.Mode.String(), Stripes: job.MaxStripes, Hot: job.Slots,
		Pairs: job.MaxStripes * wire.Lanes,
	}}
	job.ID, job.Exp = b.job, aggregator.DefaultExp(job.Arithmetic)
	senders, answer := 1, wire.EnvelopeLen+wire.HeaderLen
	switch job.Mode {
	case aggregator.Sync:
		senders, job.Workers = syncWorkers, syncWorkers
		job.Slots -= job.Slots % b.result.Pairs // whole groups
	case aggregator.FetchAdd:
		answer += job.MaxStripes * wire.StripeLen
	}
	if err := p.AddJob(*job); err != nil {
		return err
	}
	*g = append(*g, b)
	for i := range senders {
		if err := p.AddSender(job.ID, sender(i)); err != nil {
			return err
		}
	}
	all := make([][]byte, bpf.FeederFrames)
	if job.Pages() > 1 {
		all = make([][]byte, manyFrames)
	}
	for i := range all {
		if all[i], err = f.next(i); err != nil {
			return err
		}
	}
	b.feeder, err = p.NewFeeder(all, answer)
	return err
}

// manyFrames is the number of frames for a job of several pages: they name 225,000 slots, as many
// as a server's caches do not hold, either.
const manyFrames = 1024

// measure measures the program with each of the jobs, and others after them in each round. It tells
// use whose samples are of the programs before it begins, and returns them.
func (h *run) measure(ctx context.Context, g group, others []*experiment.Subject[float64],
	use func([]*experiment.Subject[float64])) (subjects []*experiment.Subject[float64], err error) {
	for _, b := range g {
		ns, err := b.measure(warmUp)
		if err != nil {
			return nil, err
		}
		count := max(warmUp, int(float64(cmp.Or(h.cfg.Duration, RunTime))/max(ns, 1)))
		subjects = append(subjects, &experiment.Subject[float64]{
			What: fmt.Sprintf("%s, %s, %d stripes, %d hot", b.result.Mode, b.result.Arithmetic, b.result.Stripes,
				b.result.Hot),
			Measure: func(context.Context) (float64, error) { return b.measure(count) },
		})
	}
	use(subjects)
	return subjects, experiment.TakeTurns(ctx, h.cfg.Rounds, &h.progress, slices.Concat(subjects, others))
}

// syncWorkers is the number of workers of a sync job. It divides
// bpf.FeederFrames.
const syncWorkers = 4

var aggregatorEnd = endpoint(254)

func sender(i int) aggregator.SenderConfig {
	end := endpoint(i)
	return aggregator.SenderConfig{ID: uint16(i), MAC: end.MAC, IP: end.IP}
}

// frames makes HOT frames for a job, of as many stripes as it takes.
type frames struct {
	job  aggregator.JobConfig
	rng  *rand.Rand
	draw func() int // a rank; not used in sync mode

	waiting map[int][]int // drawn ranks by page, fewer than fill a stripe
}

// next returns the i-th frame that the job is fed.
func (f *frames) next(i int) ([]byte, error) {
	switch f.job.Mode {
	case aggregator.Sync:
		return f.group(i)
	case aggregator.FetchAdd:
		return f.dense(wire.FlagWantSum)
	default:
		return f.dense(0)
	}
}

// build returns a frame of a sender with all lanes in use. slot names the slot of
// each lane of each stripe, in turn, and page the page of each stripe, before its slots.
func (f *frames) build(from int, flags wire.Flags, slot, page func(stripe int) int) ([]byte, error) {
	e, err := wire.NewEnvelope(endpoint(from), aggregatorEnd)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, e.Len()+wire.HotLen(f.job.MaxStripes))
	payload := frame[e.Len():]
	wire.Header{Type: wire.TypeHot, Flags: flags, Job: f.job.ID, Sender: uint16(from), Epoch: f.job.Epoch}.Put(payload)
	for k := range f.job.MaxStripes {
		s := wire.StripeAt(payload, k)
		s.SetPage(page(k), wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, uint16(slot(k)))
			s.SetBits(lane, f.number())
		}
	}
	e.Seal(frame)
	return frame, nil
}

// number returns the bits of a random number, of gradients' usual size.
func (f *frames) number() uint32 {
	if f.job.Arithmetic == aggregator.Fixed {
		return uint32(f.rng.IntN(1<<15) - 1<<14) // 2^17 of them of one sign fit
	}
	return math.Float32bits(float32(f.rng.NormFloat64()) * 1e-3)
}

// dense returns a frame of sender 0 whose ranks are drawn, different ones.
func (f *frames) dense(flags wire.Flags) ([]byte, error) {
	var ranks []int
	if f.job.Pages() > 1 {
		ranks = f.drawPages()
	} else {
		drawn := map[int]bool{}
		for len(ranks) < f.job.MaxStripes*wire.Lanes {
			if r := f.draw(); !drawn[r] {
				drawn[r] = true
				ranks = append(ranks, r)
			}
		}
	}
	next := 0
	return f.build(0, flags|wire.FlagDense, func(int) int {
		next++
		return ranks[next-1] % aggregator.PageSlots
	}, func(stripe int) int { return ranks[stripe*wire.Lanes] / aggregator.PageSlots })
}

// drawPages draws ranks for the stripes of a frame, each of one page, as a worker deals those of
// its batches.
func (f *frames) drawPages() (ranks []int) {
	if f.waiting == nil {
		f.waiting = map[int][]int{}
	}
	for len(ranks) < f.job.MaxStripes*wire.Lanes {
		r := f.draw()
		page := r / aggregator.PageSlots
		waits := f.waiting[page]
		if slices.Contains(waits, r) {
			continue
		}
		if waits = append(waits, r); len(waits) == wire.Lanes {
			ranks, waits = append(ranks, waits...), nil
		}
		f.waiting[page] = waits
	}
	return ranks
}

// group returns frame i of a sync job: the groups, each from all workers in turn. As
// many groups are used as fit, a power of two.
func (f *frames) group(i int) ([]byte, error) {
	used := bpf.FeederFrames / syncWorkers
	for used > f.job.Slots/(wire.Lanes*f.job.MaxStripes) {
		used /= 2
	}
	group := i / syncWorkers % used
	return f.build(i%syncWorkers, 0, func(stripe int) int { return group*f.job.MaxStripes + stripe },
		func(int) int { return 0 })
}

// bench is a job with what feeds it.
type bench struct {
	result Result
	plane  *bpf.Aggregator
	job    uint16
	feeder *bpf.Feeder // nil after a failure
}

// measure feeds n frames and returns the time of one in nanoseconds. Every
// frame must have been added.
func (b *bench) measure(n int) (float64, error) {
	before, err := b.plane.JobCounters(b.job)
	if err != nil {
		return 0, err
	}
	ns, _, err := b.feeder.Run(n)
	if err != nil {
		return 0, err
	}
	after, err := b.plane.JobCounters(b.job)
	if err != nil {
		return 0, err
	}
	if after.Applied-before.Applied < uint64(n) || after.Refused.Total() > 0 {
		return 0, fmt.Errorf("%s, %s, %d stripes: %d frames were fed, but the job counts %+v after %+v",
			b.result.Arithmetic, b.result.Mode, b.result.Stripes, n, after, before)
	}
	return ns, nil
}

// Close ends the job.
func (b *bench) Close() error {
	return errors.Join(experiment.Close(b.feeder), b.plane.RemoveJob(b.job))
}

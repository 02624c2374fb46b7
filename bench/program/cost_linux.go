// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/wire"
)

// warmUp is the number of frames that tell how many make a test run. The kernel
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
	defer func() { err = errors.Join(err, g.close()) }()
	for _, a := range h.cfg.Arithmetics {
		for _, stripes := range h.cfg.Stripes {
			if err := g.add(p, a, m, stripes, hot, func() int { return rng.IntN(hot) }, rng); err != nil {
				return err
			}
		}
	}
	if err := h.measure(ctx, g); err != nil {
		return err
	}
	for _, b := range g {
		h.report.add(b.result)
	}
	return nil
}

type group []*bench

func (g *group) add(p *bpf.Aggregator, a aggregator.Arithmetic, m aggregator.Mode, stripes, hot int, draw func() int, rng *rand.Rand) error {
	b, err := newBench(p, uint16(jobID+len(*g)), a, m, stripes, hot, draw, rng)
	if err != nil {
		return err
	}
	*g = append(*g, b)
	return nil
}

func (g group) close() error {
	var errs []error
	for _, b := range g {
		errs = append(errs, b.close())
	}
	return errors.Join(errs...)
}

func (h *run) measure(ctx context.Context, g group, others ...*harness.Subject[float64]) error {
	var subjects []*harness.Subject[float64]
	for _, b := range g {
		ns, err := b.measure(warmUp)
		if err != nil {
			return err
		}
		count := max(warmUp, int(float64(cmp.Or(h.cfg.Duration, RunTime))/max(ns, 1)))
		subjects = append(subjects, &harness.Subject[float64]{
			What:    fmt.Sprintf("%s, %s, %d stripes, %d hot", b.result.Mode, b.result.Arithmetic, b.result.Stripes, b.result.Hot),
			Measure: func(context.Context) (float64, error) { return b.measure(count) },
		})
	}
	if err := takeTurns(ctx, h, append(subjects, others...)); err != nil {
		return err
	}
	for i, b := range g {
		b.result.Samples = subjects[i].Samples
	}
	return nil
}

// syncWorkers is the number of workers of a sync job. It divides
// bpf.FeederFrames.
const syncWorkers = 4

var aggregatorEnd = endpoint(254)

func sender(i int) aggregator.SenderConfig {
	end := endpoint(i)
	return aggregator.SenderConfig{ID: uint16(i), MAC: end.MAC, IP: end.IP}
}

// frames makes HOT frames for a job: payloads of a number of stripes from senders.
type frames struct {
	job     aggregator.JobConfig
	stripes int
	rng     *rand.Rand
}

// build returns a frame of a sender with all lanes in use. slot names the slot of
// each lane of each stripe.
func (f *frames) build(from int, flags wire.Flags, slot func(stripe int) int) ([]byte, error) {
	e, err := wire.NewEnvelope(endpoint(from), aggregatorEnd)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, e.Len()+wire.HotLen(f.stripes))
	payload := frame[e.Len():]
	wire.Header{Type: wire.TypeHot, Flags: flags, Job: f.job.ID, Sender: uint16(from), Epoch: f.job.Epoch}.Put(payload)
	for k := range f.stripes {
		s := wire.StripeAt(payload, k)
		s.SetMask(wire.LaneMask)
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
func (f *frames) dense(flags wire.Flags, draw func() int) ([]byte, error) {
	drawn := map[int]bool{}
	return f.build(0, flags|wire.FlagDense, func(int) int {
		for {
			if r := draw(); !drawn[r] {
				drawn[r] = true
				return r
			}
		}
	})
}

// group returns frame i of a sync job: the groups, each from all workers in turn. As
// many groups are used as fit, a power of two.
func (f *frames) group(i int) ([]byte, error) {
	used := bpf.FeederFrames / syncWorkers
	for used > f.job.Slots/(wire.Lanes*f.stripes) {
		used /= 2
	}
	group := i / syncWorkers % used
	return f.build(i%syncWorkers, 0, func(stripe int) int { return group*f.stripes + stripe })
}

// bench is a job with what feeds it.
type bench struct {
	result  Result
	plane   *bpf.Aggregator
	job     uint16
	senders int
	feeder  *bpf.Feeder
}

// newBench starts a job. draw gives ranks; it is not used in sync mode.
func newBench(p *bpf.Aggregator, id uint16, a aggregator.Arithmetic, m aggregator.Mode, stripes, hot int, draw func() int, rng *rand.Rand) (_ *bench, err error) {
	b := &bench{plane: p, job: id, senders: 1, result: Result{
		Arithmetic: a.String(), Mode: m.String(), Stripes: stripes, Hot: hot, Pairs: stripes * wire.Lanes,
	}}
	job := aggregator.JobConfig{ID: id, Mode: m, Arithmetic: a, Exp: aggregator.DefaultExp(a), Slots: hot, MaxStripes: stripes}
	if m == aggregator.Sync {
		b.senders = syncWorkers
		job.Workers = syncWorkers
		job.Slots -= hot % b.result.Pairs // whole groups
	}
	if err := p.AddJob(job); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = p.RemoveJob(id) // the first error explains more
		}
	}()
	for i := range b.senders {
		if err := p.AddSender(id, sender(i)); err != nil {
			return nil, err
		}
	}
	f := frames{job: job, stripes: stripes, rng: rng}
	answer := wire.EnvelopeLen + wire.HeaderLen
	if m == aggregator.FetchAdd {
		answer += stripes * wire.StripeLen
	}
	all := make([][]byte, bpf.FeederFrames)
	for i := range all {
		switch m {
		case aggregator.Sync:
			all[i], err = f.group(i)
		case aggregator.FetchAdd:
			all[i], err = f.dense(wire.FlagWantSum, draw)
		default:
			all[i], err = f.dense(0, draw)
		}
		if err != nil {
			return nil, err
		}
	}
	b.feeder, err = p.NewFeeder(all, answer)
	return b, err
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
		return 0, fmt.Errorf("aggregator benchmark: %s, %s, %d stripes: %d frames were fed, but the job counts %+v after %+v",
			b.result.Arithmetic, b.result.Mode, b.result.Stripes, n, after, before)
	}
	return ns, nil
}

func (b *bench) close() error { return errors.Join(b.feeder.Close(), b.plane.RemoveJob(b.job)) }

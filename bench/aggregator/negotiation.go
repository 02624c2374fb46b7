// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

const (
	// firstIterations are not measured; they determine how many make a window.
	firstIterations = 5
	// stall is how long a round may take at the most.
	stall = 2 * time.Minute
)

var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

const jobID = 1

// endpoint returns the end of a worker, from 0 on, or of the aggregator in test
// runs.
func endpoint(i int) wire.Endpoint {
	return wire.Endpoint{
		MAC: [6]byte{2, 0x4c, 0x42, 0, 1, byte(i)}, IP: netip.AddrFrom4([4]byte{10, 76, 67, byte(i)}), Port: wire.DefaultPort,
	}
}

type site struct {
	plane      aggregator.Plane
	aggregator wire.Endpoint
	epoch      uint16 // epoch of the newest job
	// link opens worker i's link, and at calls fn where that works.
	link  func(i int) (link.Link, error)
	at    func(i int, fn func() error) error
	close func() error
}

// negotiateOver measures one cluster of workers after the other: two at a time would
// share the CPUs.
func (h *run) negotiateOver(ctx context.Context, b Backend) (err error) {
	open := udpSite
	if b == AFXDP {
		open = xdpSite
	}
	s, err := open(ctx, slices.Max(h.cfg.Workers))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, n := range h.cfg.Workers {
		for _, a := range h.cfg.Arithmetics {
			if err := h.delay(ctx, s, b, n, a); err != nil {
				return fmt.Errorf("%d workers over %v with %v arithmetic: %w", n, b, a, err)
			}
		}
	}
	return nil
}

// udpSite is the loopback interface with the Go model.
func udpSite(context.Context, int) (*site, error) {
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		return nil, err
	}
	l, err := link.OpenUDP(loopback)
	if err != nil {
		return nil, errors.Join(err, model.Close())
	}
	at := l.Local()
	server, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: l, Model: model})
	if err != nil {
		return nil, errors.Join(err, l.Close(), model.Close())
	}
	return &site{
		plane: model, aggregator: at,
		link:  func(int) (link.Link, error) { return link.OpenUDP(loopback) },
		at:    func(_ int, fn func() error) error { return fn() },
		close: func() error { return errors.Join(server.Close(), model.Close()) },
	}, nil
}

func (h *run) delay(ctx context.Context, s *site, b Backend, n int, a aggregator.Arithmetic) (err error) {
	c, err := newCluster(ctx, s, n, a, h.cfg.Parameters)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	start := time.Now()
	if _, err := c.iterate(ctx, firstIterations); err != nil {
		return err
	}
	once := time.Since(start) / firstIterations
	count := max(firstIterations, int(cmp.Or(h.cfg.Duration, IterationTime)/once))
	subject := &experiment.Subject[[]iteration]{
		What:    fmt.Sprintf("%v, %d workers, %v", b, n, a),
		Measure: func(ctx context.Context) ([]iteration, error) { return c.iterate(ctx, count) },
	}
	if err := experiment.TakeTurns(ctx, h.cfg.Rounds, &h.progress,
		[]*experiment.Subject[[]iteration]{subject}); err != nil {
		return err
	}
	over := func(part func(iteration) float64) experiment.Spread {
		return experiment.Over(subject.Samples, func(all []iteration) float64 {
			return experiment.Median(experiment.Pick(all, part))
		})
	}
	d := Delay{
		Backend: string(b), Workers: n, Arithmetic: a.String(), Parameters: h.cfg.Parameters,
		Iterations: count * h.cfg.Rounds,
		Reduce:     over(func(i iteration) float64 { return i.reduce }),
		Total:      over(func(i iteration) float64 { return i.negotiate + i.reduce }),
	}
	if c.negotiates {
		negotiate := func(i iteration) float64 { return i.negotiate }
		d.Negotiate = over(negotiate)
		d.Slowest = experiment.Quantile(experiment.Pick(slices.Concat(subject.Samples...), negotiate), 0.99)
	}
	h.report.Negotiations = append(h.report.Negotiations, d)
	return nil
}

type cluster struct {
	site       *site
	workers    []*transport.Worker
	grads      [][]float32
	negotiates bool
}

func newCluster(ctx context.Context, s *site, n int, a aggregator.Arithmetic, parameters int) (_ *cluster, err error) {
	s.epoch++ // frames of an earlier cluster may still be under way
	job := aggregator.JobConfig{
		ID: jobID, Epoch: s.epoch, Mode: aggregator.Sync, Arithmetic: a, Exp: aggregator.DefaultExp(a), Workers: n,
		Slots: parameters, MaxStripes: wire.DefaultStripes,
	}
	if err := s.plane.AddJob(job); err != nil {
		return nil, err
	}
	c := &cluster{site: s, negotiates: a == aggregator.Fixed}
	defer experiment.Undo(&err, c.close)
	keys := make([]uint64, parameters)
	for i := range keys {
		keys[i] = uint64(i)
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(3, 0))
	for i := range n {
		if err := s.at(i, func() error { return c.join(ctx, i, job, hot) }); err != nil {
			return nil, err
		}
		grads := make([]float32, parameters)
		for k := range grads {
			grads[k] = float32(rng.NormFloat64()) * 1e-3
		}
		c.grads = append(c.grads, grads)
	}
	return c, nil
}

func (c *cluster) join(ctx context.Context, i int, job aggregator.JobConfig, hot *packer.HotSet) error {
	l, err := c.site.link(i)
	if err != nil {
		return err
	}
	local := l.Local()
	cfg := transport.WorkerConfig{
		Link: l, Job: job.ID, Sender: uint16(i), AggregatorEpoch: job.Epoch, HotSet: hot, Stripes: job.MaxStripes,
		Mode: job.Mode, Arithmetic: job.Arithmetic, Workers: job.Workers,
		// Nothing is cold, so there is no server.
		Aggregator: c.site.aggregator, Server: wire.Endpoint{MAC: endpoint(0).MAC, IP: local.IP, Port: wire.DefaultPort},
	}
	if err := c.site.plane.AddSender(job.ID, aggregator.SenderConfig{
		ID: cfg.Sender, Epoch: job.Epoch, IP: local.IP, MAC: local.MAC, Port: local.Port,
	}); err != nil {
		return errors.Join(err, l.Close())
	}
	w, err := transport.NewWorker(ctx, cfg)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	c.workers = append(c.workers, w)
	return nil
}

func (c *cluster) close() error {
	return errors.Join(experiment.Close(c.workers...), c.site.plane.RemoveJob(jobID))
}

// iteration is how long the parts of one took, in nanoseconds.
type iteration struct{ negotiate, reduce float64 }

// iterate lets all workers reduce their vectors n times. The scale is negotiated
// by a call of its own, so that its time is known; the frames are those that
// Reduce would send, which takes the job's scale instead.
func (c *cluster) iterate(ctx context.Context, n int) ([]iteration, error) {
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	all := make([][]iteration, len(c.workers))
	working, ctx := errgroup.WithContext(ctx)
	for i, w := range c.workers {
		working.Go(func() (err error) {
			all[i], err = c.iterateOne(ctx, w, c.grads[i], n)
			return err // ends the others, which would wait for this one
		})
	}
	err := working.Wait()
	return slices.Concat(all...), err
}

func (c *cluster) iterateOne(ctx context.Context, w *transport.Worker, grads []float32, n int) (own []iteration,
	err error) {
	sums := make([]float32, len(grads))
	for range n {
		start := time.Now()
		if c.negotiates {
			if _, err := w.NegotiateScale(ctx, grads); err != nil {
				return own, err
			}
		}
		agreed := time.Now()
		if err := w.Reduce(ctx, grads, sums); err != nil {
			return own, err
		}
		own = append(own, iteration{float64(agreed.Sub(start)), float64(time.Since(agreed))})
	}
	return own, nil
}

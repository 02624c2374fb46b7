// SPDX-License-Identifier: Apache-2.0

// Package local runs a whole job in one process, without privileges: an aggregator, a parameter
// server and workers, each with a UDP socket on the loopback interface. It is for trying the
// packages, and for testing programs that use them. Frames, sums and weights are those of a cluster
// of hosts.
//
// A [Cluster] owns its sockets, its store and its workers, which Close ends. Several goroutines may
// use its workers, and one at a time may call Commit while none of them pushes. Sums are exact, in
// units of 2^-46. Errors are those of the underlying packages, such as a wire.Refusal; those of
// Open name the wrong field of the Config.
package local

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// Config describes a job.
type Config struct {
	// Dim is the number of floats in a row.
	Dim int
	// Hot are the keys of the rows that the aggregator sums, at least one, the hottest first.
	Hot []uint64
	// Workers is the number of workers; 0 means 1.
	Workers int
	// Optimizer updates the weights from a step's gradients.
	Optimizer ps.Optimizer
	// Init gives the weights of rows that were never updated.
	Init ps.Init
	// Sample is the number of frames of which one is measured; see transport.WorkerConfig.
	Sample int
	// Look is how long the server polls before it sleeps; see transport.ServerConfig.
	Look time.Duration
}

// Numbers of this package's jobs on the wire.
const (
	job   = 1
	epoch = 1
)

// Cluster is a running job.
type Cluster struct {
	model   *aggregator.Model
	agg     *transport.AggregatorServer
	store   *ps.Store
	server  *transport.Server
	workers []*transport.Worker

	keys     []uint64 // keys of the hot set, by rank
	harvests uint64   // used by the server's goroutine
}

// Open starts a job. Close ends it.
func Open(ctx context.Context, cfg Config) (_ *Cluster, err error) {
	c := &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("local: %w", err), c.Close())
		}
	}()
	if len(cfg.Hot) == 0 {
		return nil, errors.New("Config.Hot is empty: name the keys that the aggregator sums")
	}
	hot, err := packer.NewHotSet(cfg.Dim, cfg.Hot, nil, packer.Meta{})
	if err != nil {
		return nil, err
	}
	c.keys = slices.Clone(cfg.Hot)
	exp := aggregator.DefaultExp(aggregator.Exact)
	if c.model, err = aggregator.NewModel(aggregator.Config{}); err != nil {
		return nil, err
	}
	if err := c.model.AddJob(aggregator.JobConfig{ID: job, Epoch: epoch, Exp: exp, Slots: hot.Slots()}); err != nil {
		return nil, err
	}
	if c.store, err = ps.New(ps.Config{Dim: cfg.Dim, Exp: exp, Optimizer: cfg.Optimizer, Init: cfg.Init}); err != nil {
		return nil, err
	}
	toAggregator, errAggregator := open(func(l link.Link) (err error) {
		c.agg, err = transport.NewAggregatorServer(transport.AggregatorConfig{Link: l, Model: c.model})
		return err
	})
	toServer, errServer := open(func(l link.Link) (err error) {
		c.server, err = transport.NewServer(transport.ServerConfig{Link: l, Job: job, Dim: cfg.Dim, Handler: c.store,
			NoWeights: cfg.Optimizer.Method == ps.None, Sample: cfg.Sample, Look: cfg.Look})
		return err
	})
	if err := errors.Join(errAggregator, errServer); err != nil {
		return nil, err
	}
	for i := range max(cfg.Workers, 1) {
		id := uint16(i + 1)
		_, err := open(func(l link.Link) error {
			at := l.Local()
			err := errors.Join(c.model.AddSender(job, aggregator.SenderConfig{ID: id, Epoch: epoch, IP: at.IP, Port: at.Port}),
				c.server.Admit(ctx, id, netip.AddrPortFrom(at.IP, at.Port), epoch))
			if err != nil {
				return err
			}
			w, err := transport.NewWorker(ctx, transport.WorkerConfig{
				Link: l, Job: job, Sender: id, AggregatorEpoch: epoch, ServerEpoch: epoch, HotSet: hot, Dim: cfg.Dim,
				Layout: packer.Dense, Exp: exp, NoWeights: cfg.Optimizer.Method == ps.None, Sample: cfg.Sample,
				Aggregator: toAggregator.Local(), Server: toServer.Local(),
			})
			if err == nil {
				c.workers = append(c.workers, w)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// open opens a link and passes it to use, which then owns it unless it fails.
func open(use func(link.Link) error) (link.Link, error) {
	l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		return nil, err
	}
	if err := use(l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Worker returns the i-th worker, counted from 0.
func (c *Cluster) Worker(i int) *transport.Worker { return c.workers[i] }

// Server returns the parameter server's endpoint.
func (c *Cluster) Server() *transport.Server { return c.server }

// Commit ends a step: it waits until everything that the workers have pushed is acknowledged, adds
// the aggregator's sums to the server's and lets the optimiser update the weights. While it runs,
// no worker may push.
func (c *Cluster) Commit(ctx context.Context) error {
	return c.end(ctx, func(s *ps.Store) { s.Commit() })
}

// Reduce is Commit, and returns the sums of the step's pushes, as ps.Store.AppendSums does. With an
// error of that, a *ps.SumError, the step is dropped.
func (c *Cluster) Reduce(ctx context.Context) (keys []uint64, sums []float32, err error) {
	var large error
	err = c.end(ctx, func(s *ps.Store) {
		if keys, sums, large = s.AppendSums(nil, nil); large == nil {
			s.Commit()
		} else {
			keys, sums = nil, nil
			s.Drop()
		}
	})
	return keys, sums, errors.Join(err, large)
}

// Drop is Commit of a step that changes nothing.
func (c *Cluster) Drop(ctx context.Context) error { return c.end(ctx, (*ps.Store).Drop) }

// end ends a step by a call of the store, which has all gradients of the step.
func (c *Cluster) end(ctx context.Context, call func(*ps.Store)) error {
	for _, w := range c.workers {
		if err := w.Flush(ctx); err != nil {
			return err
		}
	}
	var failed error
	// All or nothing: sums harvested from the aggregator before ctx ended would be lost.
	err := c.server.Do(ctx, func() {
		if failed = c.harvest(); failed == nil {
			call(c.store)
		}
	})
	return errors.Join(err, failed)
}

// harvest adds the aggregator's sums to the store's.
func (c *Cluster) harvest() error {
	bank, err := c.model.Swap(job)
	if err != nil {
		return fmt.Errorf("local: %w", err)
	}
	c.harvests++
	_, err = c.store.ApplyHarvest(ps.Harvest{Number: c.harvests, Sums: bank.Slots}, c.keys)
	return errors.Join(err, c.model.Clear(bank))
}

// Do calls f with exclusive use of the server's store.
func (c *Cluster) Do(ctx context.Context, f func(*ps.Store)) error {
	return c.server.Do(ctx, func() { f(c.store) })
}

// Close ends the job.
func (c *Cluster) Close() error {
	var errs []error
	for _, w := range c.workers {
		errs = append(errs, w.Close())
	}
	if c.server != nil {
		errs = append(errs, c.server.Close())
	}
	if c.agg != nil {
		errs = append(errs, c.agg.Close())
	}
	return errors.Join(errs...)
}

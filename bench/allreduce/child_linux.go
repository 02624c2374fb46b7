// SPDX-License-Identifier: Apache-2.0

package allreduce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/reducer"
	"github.com/libra-ina/libra/wire"
)

// Requests to workers. Each is made to all at the same time, since operations need all.
const (
	opTimes = "times" // one operation at a time: a Sample without its rate
	opRate  = "rate"  // many in flight: a Sample with its rate
)

const (
	jobID = 1
	// warmUp operations precede the measured ones.
	warmUp = 500
	// udpPort is the port of the links of UDP: the XDP aggregator leaves it to the kernel.
	udpPort = 19700
)

// childConfig configures a worker.
type childConfig struct {
	harness.HostConfig
	Baseline   string
	Number     int // from 0 on
	Shape      reducer.Shape
	Operations int
}

// RunChild is a worker of Libra, on a host of the test bed. It is of no use by itself.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c childConfig) error {
		runtime.GOMAXPROCS(1) // it shares its CPU
		if err := c.run(ctx); err != nil {
			return fmt.Errorf("allreduce: %w", err)
		}
		return nil
	})
}

// operations are how a worker makes all-reduces of its values.
type operations struct {
	one    func(values, sums []float32) error
	many   func(n int, values func(k int) []float32, check func(k int, sums []float32) error) error // nil: it cannot
	resent func() uint64
	close  func() error
}

func (c *childConfig) run(ctx context.Context) (err error) {
	job, err := reducer.Job[float32](c.Shape)
	if err != nil {
		return err
	}
	if c.Baseline == Reduce {
		job.Slots = c.Shape.Width
	}
	job.ID = jobID
	rounds, err := c.JoinRounds(ctx, job, c.Number, fmt.Sprintf("%s of %+v", c.Baseline, c.Shape))
	if err != nil {
		return err
	}
	defer rounds.Leave()
	o, err := c.open(ctx, rounds, job)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	values, sums := make([]float32, c.Shape.Width), make([]float32, c.Shape.Width)
	return child.Serve(ctx, func(ctx context.Context, op string, _ json.RawMessage) (any, error) {
		switch {
		case op == opTimes:
			return c.measureTimes(o, values, sums)
		case op == opRate && o.many != nil:
			return c.measureRate(o, values)
		}
		return nil, child.Unknown(op)
	})
}

// open starts the worker's end.
func (c *childConfig) open(ctx context.Context, rounds *control.Rounds, job aggregator.JobConfig) (*operations, error) {
	if c.Baseline == Reduce {
		return c.openWorker(ctx, rounds, job)
	}
	l, err := c.openLink()
	if err != nil {
		return nil, err
	}
	o, err := c.openReducer(ctx, l, rounds)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return o, nil
}

func (c *childConfig) openLink() (link.Link, error) {
	if c.Baseline == UDP {
		return link.OpenUDP(netip.AddrPortFrom(c.Self.IP, c.Self.Port))
	}
	return c.OpenLink()
}

func (c *childConfig) openReducer(ctx context.Context, l link.Link, rounds *control.Rounds) (*operations, error) {
	r, err := reducer.New[float32](ctx, reducer.Config{
		Link: l, Job: jobID, Sender: uint16(c.Number), Epoch: rounds.Epoch, Aggregator: c.Aggregator, Shape: c.Shape,
		Members: rounds.Members,
	})
	if err != nil {
		return nil, err
	}
	sums := make([]float32, c.Shape.Width)
	return &operations{
		one: func(values, sums []float32) error {
			op, err := r.Start(values)
			if err != nil {
				return err
			}
			return r.Wait(op, sums)
		},
		many: func(n int, values func(k int) []float32, check func(k int, sums []float32) error) error {
			ops := make([]reducer.Op, c.Shape.InFlight)
			for k := range n + len(ops) {
				at := k % len(ops)
				if k >= len(ops) {
					if err := errors.Join(r.Wait(ops[at], sums), check(k-len(ops), sums)); err != nil {
						return err
					}
				}
				if k < n {
					var err error
					if ops[at], err = r.Queue(values(k)); err != nil {
						return err
					}
				}
			}
			return nil
		},
		resent: func() uint64 { return r.Stats().Repeats + r.Stats().Hurried },
		close:  r.Close,
	}, nil
}

func (c *childConfig) openWorker(ctx context.Context, rounds *control.Rounds,
	job aggregator.JobConfig) (*operations, error) {
	w, err := c.StartReducing(ctx, rounds, job, c.Number)
	if err != nil {
		return nil, err
	}
	return &operations{
		one: func(values, sums []float32) error { return w.Reduce(ctx, values, sums) },
		resent: func() uint64 {
			s, err := w.Stats(ctx)
			if err != nil {
				return 0
			}
			return s.Hot.Retransmitted
		},
		close: w.Close,
	}, nil
}

// fill writes a worker's values of an operation.
func (c *childConfig) fill(values []float32, k int) {
	for i := range values {
		values[i] = float32(k%1000 + c.Number)
	}
}

// check compares sums with those of all workers' values.
func (c *childConfig) check(sums []float32, k int) error {
	n := c.Shape.Workers
	want := float32(n*(k%1000) + n*(n-1)/2)
	for i, sum := range sums {
		if sum != want {
			return fmt.Errorf("operation %d: sum %d is %v, want %v", k, i, sum, want)
		}
	}
	return nil
}

// measureTimes makes operations one at a time.
func (c *childConfig) measureTimes(o *operations, values, sums []float32) (s Sample, err error) {
	times := make([]time.Duration, c.Operations)
	var before uint64
	var total time.Duration
	for k := -warmUp; k < c.Operations; k++ {
		if k == 0 {
			before = o.resent()
		}
		c.fill(values, k+warmUp)
		begin := time.Now()
		if err := o.one(values, sums); err != nil {
			return s, err
		}
		took := time.Since(begin)
		if err := c.check(sums, k+warmUp); err != nil {
			return s, err
		}
		if k >= 0 {
			times[k] = took
			total += took
		}
	}
	slices.Sort(times)
	quantile := func(q float64) float64 { return float64(experiment.Quantile(times, q)) }
	return Sample{
		P1: quantile(0.01), P50: quantile(0.5), P99: quantile(0.99), Mean: float64(total) / float64(len(times)),
		Repeated: float64(o.resent()-before) / float64(len(times)),
	}, nil
}

// measureRate makes operations with many in flight.
func (c *childConfig) measureRate(o *operations, values []float32) (s Sample, err error) {
	n := 4 * c.Operations
	begin := time.Now()
	err = o.many(n, func(k int) []float32 {
		c.fill(values, k)
		return values
	}, func(k int, sums []float32) error { return c.check(sums, k) })
	return Sample{Rate: float64(n) / time.Since(begin).Seconds()}, err
}

// aggregatorAt is where the aggregator of UDP is on a bed's switch.
func aggregatorAt(ip netip.Addr) wire.Endpoint { return wire.Endpoint{IP: ip, Port: udpPort} }

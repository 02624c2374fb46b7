// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// endpoint is a worker's part in a job: its admission, link and sender.
type endpoint struct {
	*transport.Worker
	members *control.Membership
	hot     *packer.HotSet

	link       link.Link
	endCapture func() error
	departure  control.Departure // how it leaves
	keeping    sync.WaitGroup    // of its log
}

// openEndpoint joins a job as one of its workers; one with admissions, which may be nil, opens
// another endpoint after a rewind. If the admission ends before the endpoint is closed, cancel is
// called with the reason.
func openEndpoint(ctx context.Context, cancel context.CancelCauseFunc, env Env, self cluster.Worker,
	dim int, all *admissions) (_ *endpoint, err error) {
	c := env.Config
	e := &endpoint{}
	if e.hot, err = loadHotSet(c, dim); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.departure.Unused = true
			err = errors.Join(err, e.closeEndpoint())
		}
	}()
	// The link is opened before the admission: a worker that cannot open it must not count as one
	// that joined and left.
	e.link, err = awaitInterface(ctx, env.Log, all.hasJoined(), func() (link.Link, error) {
		return openWorkerLink(env, self.Host)
	})
	if err != nil {
		return nil, err
	}
	if e.endCapture, err = offerCapture(env, e.link, fmt.Sprintf("worker %d", self.ID), self.Host); err != nil {
		return nil, err
	}
	shares, err := allot(c, e.hot, false)
	if err != nil {
		return nil, err
	}
	if e.members, err = join(ctx, cancel, env, self, e.hot, &shares, e.link.Local(), all); err != nil {
		return nil, reason(ctx, err)
	}
	servers := c.AllServers()
	var more []transport.Peer
	for i, s := range servers[1:] {
		more = append(more, transport.Peer{At: wire.Endpoint{IP: s.Address, Port: c.Port},
			Epoch: e.members.MoreEpochs[i]})
	}
	m, replay, full := e.members, 0, make(chan struct{}, 1)
	if m.NoAggregator {
		env.Machine.settled()
		m.Arithmetic, m.Exp = c.Job.Config().Arithmetic, c.Job.Config().Exp
		m.Stripes, m.Dense = c.Switch.Stripes, !c.Switch.LaneAligned // of an aggregator that may come
	}
	if m.KeepsLog {
		replay = c.Job.ReplayMiB << 20
	}
	at := c.Aggregators()[m.Aggregator].Address
	if shares.at != nil {
		at = shares.at[0].Address
	}
	var jobs []transport.Share
	if shares.Division != nil {
		jobs = transportShares(c, &shares, append([]uint16{m.AggregatorEpoch}, m.MoreShares...))
	}
	e.Worker, err = transport.NewWorker(ctx, transport.WorkerConfig{
		Link:            e.link,
		Gate:            env.Machine.Gate,
		Job:             c.Job.ID,
		Sender:          self.ID,
		AggregatorEpoch: e.members.AggregatorEpoch, ServerEpoch: e.members.ServerEpoch,
		HotSet:     e.hot,
		Shares:     shares.Division,
		Jobs:       jobs,
		Dim:        dim,
		Layout:     layout(e.members),
		Stripes:    e.members.Stripes,
		Mode:       e.members.Mode,
		Arithmetic: e.members.Arithmetic,
		Exp:        e.members.Exp,
		Workers:    e.members.Workers,
		Codec:      c.Codec.Config(),
		NoWeights:  c.Model.Optimizer == ps.None.String(),
		Vanish: func(key uint64, gradient float32) {
			env.Log.Warn("gradients are rounded to 0, as they are below half of the job's unit: "+
				"lower job.exponent, or scale them up",
				"key", key, "gradient", fmt.Sprint(gradient), "unit", fmt.Sprintf("2^%d", e.members.Exp))
		},
		Aggregator: wire.Endpoint{IP: at, Port: c.Port},
		Server:     wire.Endpoint{IP: servers[0].Address, Port: c.Port}, MoreServers: more,
		Replay: replay, LogFull: full, NoAggregator: m.NoAggregator, LossNotice: c.Switch.Silence,
		Sample: c.Telemetry.OneIn(),
		Flow:   retransmit.Config{MinRTO: minRTO, Silence: c.Silence},
	})
	if err == nil && c.Job.Plan != "" {
		e.keeping.Go(func() {
			m.FollowPlan(ctx, func(ctx context.Context, p *pb.Plan, epochs []uint16) error {
				var next allotment
				if err := next.takeMessage(c, e.hot, p); err != nil {
					return err
				}
				return e.Divide(ctx, next.Division, transportShares(c, &next, epochs))
			})
		})
	}
	if err == nil && m.KeepsLog {
		e.keeping.Go(func() {
			failed := m.KeepLog(ctx, keptLog{e.Worker, m, env}, full)
			if failed != nil && !errors.Is(failed, transport.ErrClosed) {
				cancel(failed) // also of a call that waits for the settlement
			}
		})
	}
	return e, err
}

// transportShares lists a worker's admissions to shares, with their epochs.
func transportShares(c *cluster.Config, shares *allotment, epochs []uint16) (all []transport.Share) {
	for i, epoch := range epochs {
		at := wire.Endpoint{IP: shares.switchOf(c, i).Address, Port: c.Port}
		all = append(all, transport.Share{Job: shares.ids[i], Epoch: epoch, At: at})
	}
	return all
}

// keptLog is the log of a worker or agent.
type keptLog struct {
	*transport.Worker
	members *control.Membership
	env     Env
}

// Enter goes on at another aggregator, and says so.
func (l keptLog) Enter(ctx context.Context, at control.Admission) error {
	c, m := l.env.Config, l.members
	if at.Stripes < m.Stripes || m.Dense && !at.Dense {
		return fmt.Errorf("the aggregator at %v takes frames of %d stripes (dense: %v), and this worker makes them of %d (dense: %v): give all aggregators of a job the same switch.stripes and switch.lane_aligned",
			c.Aggregators()[at.Aggregator].Control, at.Stripes, at.Dense, m.Stripes, m.Dense)
	}
	to := c.Aggregators()[at.Aggregator].Address
	err := l.Worker.Enter(ctx, transport.Peer{At: wire.Endpoint{IP: to, Port: c.Port}, Epoch: at.Epoch})
	if err == nil {
		l.env.Log.Info("the job goes on at an aggregator again", "address", to)
	}
	return err
}

// Settle settles, and says so.
func (l keptLog) Settle(ctx context.Context, ask func(context.Context, uint32) (aggregator.Mark, error)) error {
	err := l.Worker.Settle(ctx, ask)
	if err == nil {
		l.env.Log.Warn("the job goes on without its aggregator: hot rows go to the server")
		l.env.Machine.settled()
	}
	return err
}

// minRTO is more than a server's commit takes for the rows of one harvest period. The server
// answers nothing meanwhile, and a frame that is retransmitted because of that is already in its
// queue.
const minRTO = 10 * time.Millisecond

// layout is the layout of the hot frames of an admission.
func layout(m *control.Membership) packer.Layout {
	if m.Dense {
		return packer.Dense
	}
	return packer.LaneAligned
}

// closeEndpoint ends the admission, the sending and the link, as far as they were started.
func (e *endpoint) closeEndpoint() (err error) {
	switch {
	case e.Worker != nil:
		err = e.Worker.Close()
	case e.link != nil: // the link has no owner yet
		err = e.link.Close()
	}
	if e.members != nil {
		e.members.LeaveAs(e.departure)
		e.keeping.Wait()
	}
	if e.endCapture != nil {
		err = errors.Join(err, e.endCapture())
	}
	return err
}

// awaitCommits waits until the server has all that the aggregator has acknowledged to an endpoint
// that leaves. Of steps that all take together it has those that have ended, and what was pushed in
// an open one is dropped.
func awaitCommits(ctx context.Context, e *endpoint, env Env) error {
	if env.Config.Job.Sync {
		return nil
	}
	return e.AwaitCommits(ctx)
}

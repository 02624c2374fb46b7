// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// openLimit bounds the wait of a client for a job of a range: for its owner, the end of an earlier
// owner's lease, or the switch. It is less than clients wait for the agent.
const openLimit = 3 * time.Second

// openRange is a range of jobs without a parameter server, whose links are open. Jobs are created
// and joined later, when clients ask for them, and when the agent no longer may open links.
type openRange struct {
	from     *cluster.AgentJob
	env      Env
	hot      *packer.HotSet
	security access.Security
	users    []uint32
	groups   []uint32
	jobs     []rangeLink // by index
}

// rangeLink is this host's part in one job of a range, joined or not.
type rangeLink struct {
	worker     cluster.Worker
	link       *link.Kept
	endCapture func() error
}

// openRange opens the links of a range.
func (on AgentMachine) openRange(from *cluster.AgentJob, env Env) (_ *openRange, err error) {
	c := env.Config
	r := &openRange{from: from, env: env}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.closeRange())
		}
	}()
	if c.Job.HotSet == "" {
		return nil, fmt.Errorf("job.hot_set: %s names none, and jobs of agents need one: give the path of a hot-set file (make one with 'libra hotset build')",
			from.Cluster)
	}
	if r.hot, err = packer.LoadHotSet(c.Job.HotSet); err != nil {
		return nil, err
	}
	if r.hot, err = loadHotSet(c, r.hot.Dim()); err != nil {
		return nil, err
	}
	if last := int(c.Job.ID) + len(from.Workers) - 1; last >= aggregator.MaxJobs {
		return nil, fmt.Errorf("%d jobs from job.id %d on end at %d, and jobs at %d: lower job.id in %s, or list fewer workers", len(from.Workers),
			c.Job.ID, last, aggregator.MaxJobs-1, from.Cluster)
	}
	if r.security, err = access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
		return nil, err
	}
	var err1, err2 error
	r.users, err1 = from.UserIDs()
	r.groups, err2 = from.GroupIDs()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	for i, id := range from.Workers {
		one, err := r.openRangeLink(i, id)
		if err != nil {
			return nil, fmt.Errorf("workers[%d]: %w", i, err)
		}
		r.jobs = append(r.jobs, one)
	}
	return r, nil
}

// openRangeLink opens the link of one job.
func (r *openRange) openRangeLink(index int, id uint16) (one rangeLink, err error) {
	c := *r.env.Config
	if one.worker, err = c.Worker(id); err != nil {
		return one, err
	}
	if before := slices.Index(r.from.Workers[:index], id); before >= 0 {
		if c.Backend == cluster.BackendAFXDP {
			return one, fmt.Errorf("worker %d is also workers[%d], but with the afxdp backend a link takes its whole interface: list a worker with another interface for each job",
				id, before)
		}
		n := 0
		for _, other := range r.from.Workers[:index] {
			if other == id {
				n++
			}
		}
		if int(c.Port)+n > math.MaxUint16 {
			return one, fmt.Errorf("worker %d has UDP port %d + %d: lower port in %s", id, c.Port, n, r.from.Cluster)
		}
		c.Port += uint16(n)
	}
	env := r.env
	env.Config = &c
	l, err := openLink(env, one.worker.Host, true)
	if err != nil {
		return one, err
	}
	one.endCapture = func() error { return nil }
	if index == 0 || c.Capture != "" { // 'libra capture' sees one link of a process
		if one.endCapture, err = offerCapture(env, l, fmt.Sprintf("worker %d of %s %d", id, r.from.Name, index),
			one.worker.Host); err != nil {
			return one, errors.Join(err, l.Close())
		}
	}
	one.link = link.Keep(l)
	return one, nil
}

// closeRange closes the links. The jobs have been left.
func (r *openRange) closeRange() (err error) {
	for _, one := range r.jobs {
		err = errors.Join(err, one.link.Close(), one.endCapture())
	}
	return err
}

// describeRange describes the range to the agent.
func (r *openRange) describeRange() agent.Range {
	return agent.Range{
		Name: r.from.Name, Jobs: len(r.jobs), Join: r.joinJob, Own: r.ownJob, Period: r.env.Config.Job.Harvest,
		Users: r.users, Groups: r.groups, Limits: limitsOf(r.from),
	}
}

// joinJob joins a job as this host.
func (r *openRange) joinJob(ctx context.Context, index int) (_ agent.Job, _ func() error, err error) {
	one, c := &r.jobs[index], r.env.Config
	log := r.env.Log.With("job", fmt.Sprintf("%s/%d", r.from.Name, index))
	l, err := one.link.Lend()
	if err != nil {
		return agent.Job{}, nil, err
	}
	// ctx ends only joining: clients' pushes must be acknowledged even after it.
	lost, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	var m *control.Membership
	defer func() {
		stop()
		if err == nil {
			return
		}
		if m != nil {
			m.LeaveAs(control.Departure{Unused: true})
		}
		cancel(nil)
		err = errors.Join(err, l.Close())
	}()
	at, fingerprint := l.Local(), r.hot.Fingerprint()
	cfg := control.JoinConfig{
		Job: c.Job.ID + uint16(index), Worker: one.worker.ID, From: netip.AddrPortFrom(one.worker.Address, at.Port),
		HotSet: fingerprint[:], Aggregator: c.Switch.Control, NoServer: true, Security: r.security, Limit: openLimit,
		Dial: r.env.Machine.Client, Lost: func(err error) { cancel(endOf(err)) }, Random: r.env.Machine.Random, Log: log,
	}
	if at.MAC != [6]byte{} {
		cfg.MAC = at.MAC[:]
	}
	if m, err = control.Join(lost, cfg); err != nil {
		return agent.Job{}, nil, reason(lost, err)
	}
	w, err := transport.NewWorker(lost, transport.WorkerConfig{
		Link: l, Gate: r.env.Machine.Gate, Job: cfg.Job, Sender: cfg.Worker, AggregatorEpoch: m.AggregatorEpoch,
		NoServer: true, HotSet: r.hot, Layout: layout(m), Stripes: m.Stripes,
		Mode: m.Mode, Arithmetic: m.Arithmetic, Exp: m.Exp,
		Aggregator: wire.Endpoint{IP: c.Switch.Address, Port: c.Port},
		Flow:       retransmit.Config{MinRTO: minRTO, Silence: c.Silence},
	})
	if err != nil {
		return agent.Job{}, nil, err
	}
	unwatch := context.AfterFunc(lost, func() {
		log.Error("the job has ended", "reason", context.Cause(lost))
		_ = w.Close()
	})
	log.Info("agent has joined a job", "worker", one.worker.ID, "number", cfg.Job)
	leave := func() error {
		unwatch()
		err := w.Close()
		m.Leave()
		cancel(nil)
		return err
	}
	return agent.Job{
		Worker: w, Why: func() error { return context.Cause(lost) }, Number: cfg.Job, HotSet: r.hot,
		Mode: m.Mode, Arithmetic: m.Arithmetic, Exp: m.Exp, Separate: r.from.Separate, Instance: m.Instance,
	}, leave, nil
}

// ownedJob is a job that the agent has created for a client.
type ownedJob struct {
	*control.Taker
	job    *control.Owned
	conn   *grpc.ClientConn
	held   context.Context // ends with the job
	cancel context.CancelCauseFunc
}

// ownJob creates a job and holds it.
func (r *openRange) ownJob(ctx context.Context, index int) (_ agent.Owner, err error) {
	c := r.env.Config
	log := r.env.Log.With("job", fmt.Sprintf("%s/%d", r.from.Name, index))
	o := &ownedJob{}
	if o.conn, err = access.Dial(ctx, access.TheSwitch(), c.Switch.Control, r.security, openLimit, log,
		r.env.Machine.Client...); err != nil {
		return nil, err
	}
	fingerprint := r.hot.Fingerprint()
	o.job, err = control.CreateJob(ctx, pb.NewAggregatorClient(o.conn), &pb.JobSpec{
		Job: uint32(c.Job.ID) + uint32(index), Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Exponent: proto.Int32(int32(c.Job.Config().Exp)), Slots: uint32(r.hot.Slots()), HotSet: fingerprint[:],
		Senders: uint32(len(c.Workers)),
	}, openLimit, log)
	if err != nil {
		return nil, errors.Join(err, o.conn.Close())
	}
	// It is held until its last accepted pushes are settled.
	o.held, o.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	lost := func(err error) {
		log.Error("the job has ended", "reason", err)
		o.cancel(endOf(err))
	}
	if err := o.job.Hold(o.held, lost); err != nil {
		err = errors.Join(err, o.removeJob(), o.conn.Close())
		o.cancel(nil)
		return nil, err
	}
	o.Taker = control.NewTaker(o.held, o.job, r.hot.Slots(), log)
	log.Info("agent has created a job", "number", o.job.ID)
	return o, nil
}

// Instance implements [agent.Owner].
func (o *ownedJob) Instance() uint64 { return o.job.Instance }

// Take implements [agent.Owner]. When it fails because the job has ended, Lost has the reason.
func (o *ownedJob) Take(ctx context.Context) ([]int64, error) {
	sums, err := o.Taker.Take(ctx)
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, leaveLimit)
		defer cancel()
		select {
		case <-o.held.Done():
		case <-ctx.Done():
		}
	}
	return sums, err
}

// endOf explains the end of a job to clients.
func endOf(err error) error {
	if errors.Is(err, control.ErrAggregatorLost) {
		return fmt.Errorf("%w: %w", agentproto.AggregatorLost, err)
	}
	return err
}

// Lost implements [agent.Owner].
func (o *ownedJob) Lost() error {
	if why := context.Cause(o.held); errors.Is(why, agentproto.AggregatorLost) {
		return why
	}
	return nil
}

// Remove implements [agent.Owner].
func (o *ownedJob) Remove() error {
	err := o.removeJob()
	o.cancel(nil)
	<-o.Done()
	return errors.Join(err, o.conn.Close())
}

// removeJob removes the job, unless the switch has ended it.
func (o *ownedJob) removeJob() error {
	if o.held.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(o.held, leaveLimit)
	defer cancel()
	return o.job.Remove(ctx)
}

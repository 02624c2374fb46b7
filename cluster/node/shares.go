// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/plan"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// A hot set may be divided into shares: each is a job of its own at an aggregator, with its own instance,
// harvests and harvest numbers, and ranks that count the share's scalars only. A generation has all of them:
// they are created together, a step takes the sums of all, and the loss of one is that of the aggregator.

// allotment is how the hot set of a job is divided among aggregators.
type allotment struct {
	*share.Division              // nil: one job has everything
	ids             []uint16     // of the jobs, by share
	at              []*planned   // where these are; nil: all at the cluster's switch
	by              *plan.Shares // what server 0 has planned
}

// planned is a switch of a plan.
type planned struct {
	field string // of the cluster file
	cluster.Switch
}

// allot divides the hot set as the cluster file says, or as server 0 plans; workers learn its plan later.
func allot(c *cluster.Config, hot *packer.HotSet, server0 bool) (all allotment, err error) {
	switch {
	case c.Job.Plan == "":
		all.Division, err = c.Job.Shares(hot)
		all.ids = c.Job.HotIDs()
		if err != nil {
			err = fmt.Errorf("job.ids: %v: list fewer, or build %s with more rows: %w", c.Job.IDs, c.Job.HotSet, err)
		}
	case server0:
		if all.by, err = plan.OfJob(c, hot); err == nil {
			err = all.takeShares(c, hot, all.by.Switches, all.by.For(c.Workers[0].ID))
		}
	}
	return all, err
}

// takeShares takes the shares of a plan, which are at switches with these names.
func (a *allotment) takeShares(c *cluster.Config, hot *packer.HotSet, switches []string, of share.Plan) (err error) {
	a.ids, a.at = nil, nil
	for _, name := range switches {
		here, err := c.ForSwitch(name)
		if err != nil {
			return fmt.Errorf("the server's plan: %w: copy one cluster file to all hosts", err)
		}
		a.ids, a.at = append(a.ids, c.Job.ID), append(a.at, &planned{here.SwitchField(), here.Switch})
	}
	a.Division, err = share.New(hot.Len(), hot.Dim(), hot.Fingerprint(), of)
	return err
}

// planMessage returns the plan for a worker.
func (a *allotment) planMessage(worker uint16) *pb.Plan {
	of := a.by.For(worker)
	p := &pb.Plan{PartRows: uint32(of.PartRows)}
	for i, parts := range of.Shares {
		p.Shares = append(p.Shares, &pb.PlannedShare{Job: uint32(a.ids[i]), Switch: a.by.Switches[i], Parts: parts})
	}
	for _, to := range of.To {
		p.To = append(p.To, int32(to))
	}
	return p
}

// takeMessage takes the plan of server 0.
func (a *allotment) takeMessage(c *cluster.Config, hot *packer.HotSet, p *pb.Plan) error {
	of, switches := share.Plan{PartRows: int(p.PartRows)}, []string(nil)
	for _, s := range p.Shares {
		of.Shares, switches = append(of.Shares, s.Parts), append(switches, s.Switch)
	}
	for _, to := range p.To {
		of.To = append(of.To, int(to))
	}
	if err := a.takeShares(c, hot, switches, of); err != nil {
		return err
	}
	for i, s := range p.Shares {
		a.ids[i] = uint16(s.Job)
	}
	return nil
}

// planFor returns what tells workers the plan, nil if there is none.
func (s *server) planFor() func(worker uint16) *pb.Plan {
	if s.shares.by == nil {
		return nil
	}
	return s.shares.planMessage
}

// switchOf returns the switch of a share.
func (a *allotment) switchOf(c *cluster.Config, share int) cluster.Switch {
	if a.at == nil {
		return c.Switch
	}
	return a.at[share].Switch
}

// forWorkers describes the shares to services.
func (a *allotment) forWorkers() (all []control.Share) {
	if a.Division == nil {
		return nil
	}
	for i, id := range a.ids {
		fingerprint := a.Fingerprint(i)
		one := control.Share{Job: id, HotSet: fingerprint[:], Pages: pagesOf(a.Slots(i))}
		if a.at != nil {
			one.At = a.at[i].Control
		}
		all = append(all, one)
	}
	return all
}

// extraShare is one of the jobs of a generation after the first.
type extraShare struct {
	*control.Harvester
	job  *control.Owned // nil: it is not created yet
	conn *grpc.ClientConn
	own  bool // conn is not that of the generation
}

// reachShares reaches the switches of the shares after the first, before any job is created: so one that cannot be
// reached changes nothing.
func (s *server) reachShares(ctx context.Context, h *harvesting, reach time.Duration) error {
	if s.shares.Division == nil {
		return nil
	}
	for i := 1; i < s.shares.Len(); i++ {
		one := &extraShare{conn: h.conn}
		if s.shares.at != nil {
			conn, err := access.Dial(ctx, access.TheSwitch(), s.shares.at[i].Control, s.security, reach, s.env.Log,
				s.env.Machine.Client...)
			if err != nil {
				return s.shares.refusalOf(i, err)
			}
			one.conn, one.own = conn, true
		}
		h.more = append(h.more, one)
	}
	return nil
}

// openShares creates the shares of a generation after the first, and holds them. If one is refused, the
// caller discards the generation, with those that were created before.
func (s *server) openShares(ctx, holding context.Context, h *harvesting, taken time.Duration) error {
	for i, one := range h.more {
		if err := s.openShare(ctx, holding, h, one, 1+i, taken); err != nil {
			return s.shares.refusalOf(1+i, err)
		}
	}
	return nil
}

// refusalOf says which share an aggregator does not take.
func (a *allotment) refusalOf(share int, err error) error {
	switch {
	case a.at != nil:
		return fmt.Errorf("share %d of the hot set (%s: %v): %w", share, a.at[share].field, a.at[share].Control, err)
	case share > 0:
		return fmt.Errorf("share %d of the hot set (job.ids[%d]: %d): %w", share, share-1, a.ids[share], err)
	}
	return err
}

// openShare creates one of the shares of a generation after the first, and holds it.
func (s *server) openShare(ctx, holding context.Context, h *harvesting, one *extraShare, i int,
	taken time.Duration) error {
	spec, err := jobSpec(s.env.Config, s.hot)
	if err != nil {
		return err
	}
	if one.own {
		spec.ServerMacs = s.hostsFor(ctx, spec, i)
	} else {
		spec.ServerMacs = nil // that switch has them
	}
	spec.Job, spec.UsedEpochs = uint32(s.shares.ids[i]), h.used
	shareSpec(spec, s.shares.Division, i)
	if one.job, err = control.CreateJob(ctx, pb.NewAggregatorClient(one.conn), spec, taken, s.env.Log); err != nil {
		return err
	}
	one.job.Silence = h.job.Silence
	return one.job.Hold(holding, h.noteLost)
}

func (e *extraShare) closeShare() error {
	if !e.own {
		return nil
	}
	return e.conn.Close()
}

// hostsFor lists the Ethernet addresses of the hosts to which the switch of a share forwards frames, besides its
// senders: the servers and the other switches.
func (s *server) hostsFor(ctx context.Context, spec *pb.JobSpec, share int) [][]byte {
	return slices.Concat(spec.ServerMacs, s.otherServers(ctx), s.otherSwitches(ctx, share))
}

// shareSpec makes the specification of a job with the whole hot set that of a share.
func shareSpec(spec *pb.JobSpec, shares *share.Division, index int) {
	fingerprint := shares.Fingerprint(index)
	spec.Slots, spec.HotSet = uint32(shares.Slots(index)), fingerprint[:]
}

// listInstances lists the instances of the shares of a generation.
func (h *harvesting) listInstances() []uint64 {
	all := []uint64{h.job.Instance}
	for _, one := range h.more {
		all = append(all, one.job.Instance)
	}
	return all
}

// moreInstances lists the instances of the shares after the first, as server 0 has created them.
func (s *server) moreInstances() []uint64 {
	h := s.generation.Load()
	if h == nil {
		return nil
	}
	return h.listInstances()[1:]
}

// takeAll makes the server apply everything that the aggregator has acknowledged, in all shares: it asks them
// at once, and waits for each.
func (h *harvesting) takeAll(ctx context.Context, turn func(what string)) error {
	if len(h.more) == 0 {
		return h.Now(ctx)
	}
	applied := make(chan error, len(h.more))
	for i, one := range h.more {
		go func() {
			turn(fmt.Sprintf("asks for the sums of share %d", 1+i))
			applied <- one.Now(ctx)
		}()
	}
	err := h.Now(ctx)
	for range h.more {
		err = cmp.Or(err, <-applied)
	}
	return err
}

// removeAll ends the jobs of all shares.
func (h *harvesting) removeAll(ctx context.Context) error {
	err := h.job.Remove(ctx)
	for _, one := range h.more {
		if one.job != nil {
			err = errors.Join(err, one.job.Remove(ctx))
		}
	}
	return err
}

// toHotSet turns the local ranks of a share's harvest into those of the hot set.
func (s *server) toHotSet(share int, h *control.Harvest) error {
	if s.shares.Division == nil {
		return nil
	}
	for i, local := range h.Ranks {
		rank, ok := s.shares.Rank(share, local)
		if !ok {
			return fmt.Errorf("harvest %d of share %d contains a sum of rank %d, the share has %d", h.Number, share, local,
				s.shares.Slots(share))
		}
		h.Ranks[i] = rank
	}
	return nil
}

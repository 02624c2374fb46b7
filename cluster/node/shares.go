// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/plan"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// A hot set may be divided into shares: each is a job of its own at an aggregator, with its own
// instance, harvests and harvest numbers, and ranks that count the share's scalars only. A
// generation has all of them: they are created together, a step takes the sums of all, and the loss
// of one is that of the aggregator.

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

// allot divides the hot set as the cluster file says, or as server 0 plans; workers learn its plan
// later.
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

// takeShares takes the shares of a plan, which are at switches with these names, under the number
// of the job.
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

// refusalOf says which share an aggregator does not take.
func (a *allotment) refusalOf(share int, err error) error {
	switch {
	case err == nil:
		return nil
	case a.at != nil:
		return fmt.Errorf("share %d of the hot set (%s: %v): %w", share, a.at[share].field, a.at[share].Control, err)
	case share > 0:
		return fmt.Errorf("share %d of the hot set (job.ids[%d]: %d): %w", share, share-1, a.ids[share], err)
	}
	return err
}

// shareSpec makes the specification of a job with the whole hot set that of a share.
func shareSpec(spec *pb.JobSpec, shares *share.Division, index int) {
	fingerprint := shares.Fingerprint(index)
	spec.Slots, spec.HotSet = uint32(shares.Slots(index)), fingerprint[:]
}

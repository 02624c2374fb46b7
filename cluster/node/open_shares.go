// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer/share"
)

// openShare is one of the jobs of a generation, that of the whole hot set or of a share. Its parts
// never change.
type openShare struct {
	*control.Harvester
	index   int                       // of the share
	of      *share.Division           // in which it is that, or nil: it has everything
	id      uint16                    // of the job
	at      string                    // its switch in the plan, "": it has none
	control string                    // service of its switch, for messages
	parent  atomic.Pointer[openShare] // whose switch takes its harvests; nil: the server does
	conn    *grpc.ClientConn
	job     *control.Owned // nil: it is not created yet
	release func()         // ends the hold
	ctx     context.Context
	end     context.CancelFunc // of its harvests
}

// listShares lists the open shares of a generation, in the order of its plan; those that it does
// not have any more come last.
func (h *harvesting) listShares() []*openShare {
	if all := h.open.Load(); all != nil {
		return *all
	}
	return nil
}

// reachShare reaches the switch of a share, which may have one already.
func (s *server) reachShare(ctx context.Context, h *harvesting, shares *allotment, i int,
	reach time.Duration) (*openShare, error) {
	one := &openShare{index: i, of: shares.Division, conn: h.conn, release: func() {}, end: func() {}}
	one.control = s.env.Config.Aggregators()[h.at].Control.String()
	if shares.at != nil {
		one.control, one.at = shares.at[i].Control.String(), shares.by.Switches[i]
	}
	if shares.at == nil || i == 0 && h.job == nil { // the connection of the generation
		return one, nil
	}
	for _, other := range h.listShares() {
		if other.control == one.control {
			one.conn = other.conn
			return one, nil
		}
	}
	conn, err := access.Dial(ctx, access.TheSwitch(), shares.at[i].Control, s.security, reach, s.env.Log,
		s.env.Machine.Client...)
	if err != nil {
		return nil, shares.refusalOf(i, err)
	}
	one.conn = conn
	return one, nil
}

// reachShares reaches the switches of shares from an index on, before any job is created: so one
// that cannot be reached changes nothing.
func (s *server) reachShares(ctx context.Context, h *harvesting, of *allotment, first int,
	reach time.Duration) (all []*openShare, err error) {
	count := 1
	if of.Division != nil {
		count = of.Len()
	}
	for i := first; i < count; i++ {
		one, err := s.reachShare(ctx, h, of, i, reach)
		if err != nil {
			return nil, errors.Join(err, closeConns(all, append(h.listShares(), &openShare{conn: h.conn})))
		}
		all = append(all, one)
	}
	return all, nil
}

// openShares creates shares, and holds them, and adds them to their parents, which may be among the
// ones that stay. If one is refused, it removes those before, and closes their connections.
func (s *server) openShares(ctx context.Context, h *harvesting, of *allotment, shares, stay []*openShare,
	taken time.Duration) (err error) {
	for _, one := range shares {
		if err = s.openShare(ctx, h, of, one, taken); err != nil {
			break
		}
	}
	if err == nil {
		err = addToParents(ctx, of, shares, stay)
	}
	if err == nil {
		return nil
	}
	_ = takeFromParents(h.ctx, shares) // those that stay, of a generation that has begun
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	releaseShares(shares)
	_ = removeShares(limited, shares) // or they end with their leases
	return errors.Join(err, closeConns(shares, append(h.listShares(), &openShare{conn: h.conn})))
}

// openShare creates one of the shares, and holds it.
func (s *server) openShare(ctx context.Context, h *harvesting, shares *allotment, one *openShare,
	taken time.Duration) error {
	spec, err := s.specOf(ctx, shares, one.index)
	if err != nil {
		return err
	}
	one.id, spec.UsedEpochs = uint16(spec.Job), h.used
	if one.job, err = control.CreateJob(ctx, pb.NewAggregatorClient(one.conn), spec, taken, s.env.Log); err != nil {
		return shares.refusalOf(one.index, err)
	}
	one.job.Silence = s.env.Config.Switch.Silence
	if one.index == 0 && h.job == nil {
		h.job = one.job
		s.watchDrops(h)
	}
	// Until the last checkpoint is written, for which the next server waits.
	holding, release := context.WithCancel(context.WithoutCancel(ctx))
	one.release = release
	return shares.refusalOf(one.index, one.job.Hold(holding, func(err error) { h.noteLost(one.withSwitchName(err)) }))
}

// withSwitchName adds the switch of a plan to an error of it.
func (one *openShare) withSwitchName(err error) error {
	if err == nil || one.at == "" {
		return err
	}
	return fmt.Errorf("switch %q at %s: %w", one.at, one.control, err)
}

// specOf returns the specification of the job of a share.
func (s *server) specOf(ctx context.Context, shares *allotment, index int) (*pb.JobSpec, error) {
	spec, err := jobSpec(s.env.Config, s.hot)
	if err != nil {
		return nil, err
	}
	if shares.Division != nil {
		shareSpec(spec, shares.Division, index)
		spec.Job = uint32(shares.ids[index])
	}
	switch { // it forwards frames to its senders, the servers and the other switches
	case shares.at != nil:
		spec.ServerMacs = slices.Concat(spec.ServerMacs, s.otherServers(ctx), s.otherSwitches(ctx, shares.at[index].Address))
	case index == 0:
		spec.ServerMacs = append(spec.ServerMacs, s.otherServers(ctx)...)
	default: // the same switch has them already
		spec.ServerMacs = nil
	}
	return spec, nil
}

// releaseShares ends the harvests and holds of shares: their end is no loss any more.
func releaseShares(shares []*openShare) {
	for _, one := range shares {
		one.end()
		one.release()
	}
}

// removeShares ends the jobs of shares, as far as they were created. A switch that was started anew
// has none of them.
func removeShares(ctx context.Context, shares []*openShare) (err error) {
	for _, one := range parentsFirst(shares) {
		if one.job == nil {
			continue
		}
		if failed := one.job.Remove(ctx); !errors.Is(failed, access.ErrNotFound) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// closeConns closes the connections of shares, but for those that others need.
func closeConns(shares, others []*openShare) (err error) {
	done := map[*grpc.ClientConn]bool{}
	for _, one := range others {
		done[one.conn] = true
	}
	for _, one := range shares {
		if !done[one.conn] {
			done[one.conn] = true
			err = errors.Join(err, one.conn.Close())
		}
	}
	return err
}

// listInstances lists the instances of shares.
func listInstances(shares []*openShare) (all []uint64) {
	for _, one := range shares {
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
	return listInstances(h.listShares())[1:]
}

// takeAll makes the server apply everything that the aggregators have acknowledged to this moment:
// it asks all open shares at once, and waits for each.
func (h *harvesting) takeAll(ctx context.Context, turn func(what string)) error {
	return takeShares(ctx, h.listShares(), turn)
}

// takeShares is takeAll for some shares. Meanwhile a share may lose its parent, and is asked itself
// then: the parent may have answered without it.
func takeShares(ctx context.Context, shares []*openShare, turn func(what string)) error {
	var asked []*openShare
	for {
		more := slices.DeleteFunc(harvested(shares), func(one *openShare) bool { return slices.Contains(asked, one) })
		if len(more) == 0 {
			return nil
		}
		if err := takeHarvested(ctx, more, turn); err != nil {
			return err
		}
		asked = append(asked, more...)
	}
}

func takeHarvested(ctx context.Context, shares []*openShare, turn func(what string)) (err error) {
	others := shares[1:]
	applied := make(chan error, len(others))
	for _, one := range others {
		go func() {
			turn(fmt.Sprintf("asks for the sums of job %d at %s", one.id, one.control))
			applied <- one.withSwitchName(one.Now(ctx))
		}()
	}
	err = shares[0].withSwitchName(shares[0].Now(ctx))
	for range others {
		err = cmp.Or(err, <-applied)
	}
	return err
}

// toHotSet turns the local ranks of a share's harvest into those of the hot set.
func (one *openShare) toHotSet(h *control.Harvest) error {
	if one.of == nil {
		return nil
	}
	for i, local := range h.Ranks {
		rank, ok := one.of.Rank(one.index, local)
		if !ok {
			return fmt.Errorf("harvest %d of share %d contains a sum of rank %d, the share has %d", h.Number, one.index, local,
				one.of.Slots(one.index))
		}
		h.Ranks[i] = rank
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Share is a worker's description of one of the jobs among which a hot set is divided.
type Share struct {
	Job uint16
	// At is the control service of its aggregator; the zero value is [JoinConfig.Aggregator].
	At netip.AddrPort
	// HotSet is the fingerprint of the share.
	HotSet []byte
	// Pages is the number of pages of its scalars; 0 means 1.
	Pages int
}

// checkPlaces refuses shares of which no service could know.
func (c *JoinConfig) checkPlaces() error {
	type place struct {
		job uint16
		at  netip.AddrPort
	}
	used := map[place]bool{}
	for i, s := range c.Shares {
		here := place{s.Job, c.atShare(i).Aggregator}
		switch {
		case used[here]:
			return fmt.Errorf("control: JoinConfig.Shares[%d].Job is %d, as that of another share: give each its own", i, s.Job)
		case len(s.HotSet) == 0:
			return fmt.Errorf("control: JoinConfig.Shares[%d].HotSet is missing: give the fingerprint of the share", i)
		}
		used[here] = true
	}
	return nil
}

// checkShares refuses shares of which no service could know, and what a job with several cannot do.
func (c *JoinConfig) checkShares() error {
	if err := c.checkPlaces(); err != nil {
		return err
	}
	switch {
	case len(c.Shares) > 0 && c.Shares[0].Job != c.Job:
		return fmt.Errorf("control: JoinConfig.Shares[0].Job is %d, and Job is %d: give both the same", c.Shares[0].Job, c.Job)
	case c.Plan != nil && c.Shares != nil:
		return errors.New("control: JoinConfig.Plan is set, and so are Shares: leave these out, as the server plans them")
	case len(c.Shares) < 2 && c.Plan == nil:
		return nil
	case c.NoServer:
		return errors.New("control: JoinConfig.NoServer is set, and there are several Shares: without a server no one harvests them")
	case c.KeepsLog:
		return errors.New("control: JoinConfig.KeepsLog is set, and there are several Shares: their loss ends the job, so leave it out")
	}
	return nil
}

// atShare returns the configuration for joining one of the shares at the aggregator.
func (c *JoinConfig) atShare(i int) *JoinConfig {
	if len(c.Shares) == 0 {
		return c
	}
	here, s := *c, c.Shares[i]
	here.Job, here.HotSet, here.Pages = s.Job, s.HotSet, s.Pages
	if s.At.IsValid() {
		here.Aggregator = s.At
	}
	return &here
}

// takePlan takes the shares from the plan of the server, if the configuration wants one.
func (m *Membership) takePlan(ctx context.Context, cfg *JoinConfig) error {
	if cfg.Plan == nil {
		return nil
	}
	answer, err := WhileTaken(ctx, cfg.Limit, cfg.Log, func(ctx context.Context) (*pb.Membership, error) {
		return checkAt(ctx, m.atServer(cfg, 0), m.servers[0].Check)
	})
	if err != nil {
		return access.CallError(fmt.Sprintf("%s at %v", m.servers[0].role, cfg.Server), "join", err)
	}
	if answer.GetPlan() == nil {
		return fmt.Errorf("the parameter server of job %d has no plan of its hot set: run the same version of Libra on all hosts", m.job)
	}
	m.plan = answer.Plan.Version
	if cfg.Shares, err = cfg.Plan(answer.Plan); err != nil {
		return err
	}
	if len(cfg.Shares) == 0 {
		return fmt.Errorf("the plan has no shares of the hot set of job %d: run the same version of Libra on all hosts", m.job)
	}
	if err := cfg.checkPlaces(); err != nil {
		return err
	}
	cfg.Aggregator = cfg.atShare(0).Aggregator
	m.cfg.Shares, m.cfg.Aggregator = cfg.Shares, cfg.Aggregator
	return nil
}

// reachShares reaches the aggregators of the shares after the first, to whose there is a
// connection.
func (m *Membership) reachShares(dial func(access.Peer, netip.AddrPort) (*grpc.ClientConn, error), cfg *JoinConfig) (
	all []*grpc.ClientConn, err error) {
	known := map[netip.AddrPort]*grpc.ClientConn{}
	if m.kept.here != nil {
		known[cfg.Aggregator] = m.kept.here.conn
	}
	for i := 1; i < len(cfg.Shares); i++ {
		at := cfg.atShare(i).Aggregator
		if known[at] == nil {
			if known[at], err = dial(access.TheSwitch(), at); err != nil {
				return nil, err
			}
		}
		all = append(all, known[at])
	}
	return all, nil
}

// joinShares joins the shares after the first, which it has joined, for whose instances the server
// harvests.
func (m *Membership) joinShares(cfg *JoinConfig, conns []*grpc.ClientConn, joined *pb.Membership) error {
	if len(cfg.Shares) == 0 {
		return nil
	}
	m.kept.mu.Lock()
	first := &heldShare{*m.kept.here, cfg.Aggregator, m.Instance}
	m.kept.here = nil
	m.kept.mu.Unlock()
	if err := m.holdShare(first); err != nil {
		first.endStreams()
		return err
	}
	for i, conn := range conns {
		here := cfg.atShare(1 + i)
		held, admitted, err := m.joinShare(here, conn)
		if err == nil {
			if err = m.holdShare(held); err != nil {
				held.endShare(Departure{Unused: true})
			}
		}
		if err == nil {
			err = m.takeShare(here, 1+i, joined, admitted)
		}
		if err != nil {
			return err
		}
		m.MoreShares = append(m.MoreShares, uint16(admitted.Epoch))
	}
	return nil
}

// instancesOf lists the instances of the shares that a server harvests.
func instancesOf(joined *pb.Membership) []uint64 {
	if joined.Plan.GetVersion() == 0 {
		return append([]uint64{joined.Instance}, joined.Shares...)
	}
	var all []uint64
	for _, one := range joined.Plan.Shares {
		all = append(all, one.Instance)
	}
	return all
}

// planHasChanged reports whether the server follows another plan than that by which the worker
// joins.
func (m *Membership) planHasChanged(ctx context.Context, cfg *JoinConfig) bool {
	if m.plan == 0 {
		return false
	}
	answer, err := checkAt(ctx, m.atServer(cfg, 0), m.servers[0].Check)
	return err == nil && answer != nil && answer.Plan.GetVersion() != m.plan
}

// checkShares asks the aggregators whether they would admit the worker to the shares after the
// first. It returns which one has refused it, or the given one.
func checkShares(ctx context.Context, cfg *JoinConfig, conns []*grpc.ClientConn, refuses string) (string, error) {
	for i, conn := range conns {
		here := cfg.atShare(1 + i)
		if _, err := checkAt(ctx, here, pb.NewAggregatorClient(conn).Check); err != nil {
			return fmt.Sprintf("%s at %v", access.SwitchDaemon, here.Aggregator), err
		}
	}
	return refuses, nil
}

// takeShare checks the aggregator's answer for a share.
func (m *Membership) takeShare(here *JoinConfig, i int, joined *pb.Membership, admitted *pb.Admission) error {
	if serves := instancesOf(joined)[i]; serves != admitted.Instance {
		return fmt.Errorf("the parameter server harvests instance %d of job %d, share %d of job %d, the aggregator has instance %d (%w)",
			serves, here.Job, i, m.job, admitted.Instance, errRestarted)
	}
	m.Stripes, m.Dense = min(m.Stripes, int(admitted.Stripes)), m.Dense && admitted.Dense // what all take
	return checkAdmission(here, admitted)
}

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

// checkShares refuses shares of which no service could know, and what a job with several cannot do.
func (c *JoinConfig) checkShares() error {
	type place struct {
		job uint16
		at  netip.AddrPort
	}
	used := map[place]bool{}
	for i, s := range c.Shares {
		here := place{s.Job, c.atShare(i).Aggregator}
		switch {
		case i == 0 && s.Job != c.Job:
			return fmt.Errorf("control: JoinConfig.Shares[0].Job is %d, and Job is %d: give both the same", s.Job, c.Job)
		case used[here]:
			return fmt.Errorf("control: JoinConfig.Shares[%d].Job is %d, as that of another share: give each its own", i, s.Job)
		case len(s.HotSet) == 0:
			return fmt.Errorf("control: JoinConfig.Shares[%d].HotSet is missing: give the fingerprint of the share", i)
		}
		used[here] = true
	}
	switch {
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
	if cfg.Shares, err = cfg.Plan(answer.Plan); err != nil {
		return err
	}
	if len(cfg.Shares) == 0 {
		return fmt.Errorf("the plan has no shares of the hot set of job %d: run the same version of Libra on all hosts", m.job)
	}
	here := *cfg
	here.Plan = nil
	if err := here.checkShares(); err != nil {
		return err
	}
	cfg.Aggregator = cfg.atShare(0).Aggregator
	m.cfg.Shares, m.cfg.Aggregator = cfg.Shares, cfg.Aggregator
	return nil
}

// reachShares reaches the aggregators of the shares after the first, whose is client.
func (m *Membership) reachShares(dial func(access.Peer, netip.AddrPort) (*grpc.ClientConn, error), cfg *JoinConfig,
	client pb.AggregatorClient) (all []pb.AggregatorClient, err error) {
	known := map[netip.AddrPort]pb.AggregatorClient{cfg.Aggregator: client}
	for i := 1; i < len(cfg.Shares); i++ {
		at := cfg.atShare(i).Aggregator
		if known[at] == nil {
			conn, err := dial(access.TheSwitch(), at)
			if err != nil {
				return nil, err
			}
			known[at] = pb.NewAggregatorClient(conn)
		}
		all = append(all, known[at])
	}
	return all, nil
}

// joinShares joins the shares after the first, for whose instances the server harvests.
func (m *Membership) joinShares(cfg *JoinConfig, clients []pb.AggregatorClient, joined *pb.Membership) error {
	for i, client := range clients {
		here := cfg.atShare(1 + i)
		admitted, leave, err := joinAt(m.ctx, here, access.SwitchDaemon, here.Aggregator, client.Join, client.Leave, nil,
			func(err error) { m.aggregatorLost(here, err) })
		if err != nil {
			return err
		}
		m.leaves = append(m.leaves, leave)
		if err := m.takeShare(here, 1+i, joined, admitted); err != nil {
			return err
		}
		m.MoreShares = append(m.MoreShares, uint16(admitted.Epoch))
	}
	return nil
}

// checkShares asks the aggregators whether they would admit the worker to the shares after the first. It returns
// which one has refused it, or the given one.
func checkShares(ctx context.Context, cfg *JoinConfig, clients []pb.AggregatorClient, refuses string) (string, error) {
	for i, client := range clients {
		here := cfg.atShare(1 + i)
		if _, err := checkAt(ctx, here, client.Check); err != nil {
			return fmt.Sprintf("%s at %v", access.SwitchDaemon, here.Aggregator), err
		}
	}
	return refuses, nil
}

// takeShare checks the aggregator's answer for a share.
func (m *Membership) takeShare(here *JoinConfig, i int, joined *pb.Membership, admitted *pb.Admission) error {
	if serves := joined.Shares[i-1]; serves != admitted.Instance {
		return fmt.Errorf("the parameter server harvests instance %d of job %d, share %d of job %d, the aggregator has instance %d (%w)",
			serves, here.Job, i, m.job, admitted.Instance, errRestarted)
	}
	m.Stripes, m.Dense = min(m.Stripes, int(admitted.Stripes)), m.Dense && admitted.Dense // what all take
	return checkAdmission(here, admitted)
}

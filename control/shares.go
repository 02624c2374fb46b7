// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Share is a worker's description of one of the jobs among which a hot set is divided.
type Share struct {
	Job uint16
	// HotSet is the fingerprint of the share.
	HotSet []byte
	// Pages is the number of pages of its scalars; 0 means 1.
	Pages int
}

// checkShares refuses shares of which no service could know, and what a job with several cannot do.
func (c *JoinConfig) checkShares() error {
	used := map[uint16]bool{}
	for i, s := range c.Shares {
		switch {
		case i == 0 && s.Job != c.Job:
			return fmt.Errorf("control: JoinConfig.Shares[0].Job is %d, and Job is %d: give both the same", s.Job, c.Job)
		case used[s.Job]:
			return fmt.Errorf("control: JoinConfig.Shares[%d].Job is %d, as that of another share: give each its own", i, s.Job)
		case len(s.HotSet) == 0:
			return fmt.Errorf("control: JoinConfig.Shares[%d].HotSet is missing: give the fingerprint of the share", i)
		}
		used[s.Job] = true
	}
	switch {
	case len(c.Shares) < 2:
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
	return &here
}

// joinShares joins the shares after the first, for whose instances the server harvests.
func (m *Membership) joinShares(cfg *JoinConfig, client pb.AggregatorClient, joined *pb.Membership) error {
	for i := 1; i < len(cfg.Shares); i++ {
		here := cfg.atShare(i)
		admitted, leave, err := joinAt(m.ctx, here, access.SwitchDaemon, cfg.Aggregator, client.Join, client.Leave, nil,
			func(err error) { m.aggregatorLost(here, err) })
		if err != nil {
			return err
		}
		m.leaves = append(m.leaves, leave)
		if err := m.takeShare(here, i, joined, admitted); err != nil {
			return err
		}
		m.MoreShares = append(m.MoreShares, uint16(admitted.Epoch))
	}
	return nil
}

// checkShares asks the aggregator whether it would admit the worker to the shares after the first.
func checkShares(ctx context.Context, cfg *JoinConfig, aggregator pb.AggregatorClient) error {
	for i := 1; i < len(cfg.Shares); i++ {
		if _, err := checkAt(ctx, cfg.atShare(i), aggregator.Check); err != nil {
			return err
		}
	}
	return nil
}

// takeShare checks the aggregator's answer for a share.
func (m *Membership) takeShare(here *JoinConfig, i int, joined *pb.Membership, admitted *pb.Admission) error {
	if serves := joined.Shares[i-1]; serves != admitted.Instance {
		return fmt.Errorf("the parameter server harvests instance %d of job %d, share %d of job %d, the aggregator has instance %d (%w)",
			serves, here.Job, i, m.job, admitted.Instance, errRestarted)
	}
	return checkAdmission(here, admitted)
}

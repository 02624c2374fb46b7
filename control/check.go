// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// checkAll asks all services whether they would admit the worker, until none waits for the end of
// an earlier admission. It checks their answers as far as these do not depend on an admission.
func (m *Membership) checkAll(cfg *JoinConfig, aggregator pb.AggregatorClient, shares []*grpc.ClientConn) error {
	m.Trainings, m.checked = make([]string, len(m.servers)), make([]*pb.Membership, len(m.servers))
	var first *pb.Membership
	var refuses string // the service that has refused the worker
	terms, err := WhileTaken(m.ctx, cfg.Limit, cfg.Log, func(ctx context.Context) (*pb.Admission, error) {
		for i := range m.servers {
			s := &m.servers[i]
			answer, err := checkAt(ctx, m.atServer(cfg, i), s.Check)
			if err != nil {
				refuses = fmt.Sprintf("%s at %v", s.role, m.addresses[i])
				return nil, err
			}
			if i == 0 {
				first = answer
			}
			m.Trainings[i], m.checked[i] = "", answer
			if !answer.GetNewTraining() {
				m.Trainings[i] = answer.GetTraining()
			}
		}
		if aggregator == nil {
			return nil, nil
		}
		refuses = fmt.Sprintf("%s at %v", access.SwitchDaemon, cfg.Aggregator)
		answer, err := whileMissing(ctx, cfg, func(ctx context.Context) (*pb.Admission, error) {
			return checkAt(ctx, cfg.atShare(0), aggregator.Check)
		})
		if err == nil {
			refuses, err = checkShares(ctx, cfg, shares, refuses)
		}
		return answer, err
	})
	switch {
	case err != nil:
		return access.CallError(refuses, "join", err)
	case first == nil:
		return nil
	}
	m.Training = first.Training // which is new, unless a server continues one
	if i := slices.IndexFunc(m.Trainings, func(t string) bool { return t != "" }); i >= 0 {
		m.Training = m.Trainings[i]
	}
	if terms != nil {
		err = m.take(first, terms)
	}
	if err == nil && cfg.Begin != nil {
		firstSteps := make([]uint64, len(m.checked))
		for i, answer := range m.checked {
			firstSteps[i] = answer.GetFirstStep()
		}
		err = cfg.Begin(m.Trainings, firstSteps)
	}
	return err
}

// findAggregator asks the server at which aggregator the job is, if at any, and makes it the
// aggregator of the configuration. The answer is nil if the server does not answer, or refuses the
// worker: it is asked again.
func (m *Membership) findAggregator(ctx context.Context, cfg *JoinConfig) (*pb.Membership, error) {
	if !cfg.KeepsLog {
		return nil, nil
	}
	answer, err := checkAt(ctx, m.atServer(cfg, 0), m.servers[0].Check)
	if err != nil || answer == nil {
		return nil, nil
	}
	m.NoAggregator, m.Aggregator = answer.KeepLog && answer.Instance == 0, int(answer.Aggregator)
	addresses := cfg.aggregators()
	if m.Aggregator >= len(addresses) {
		return nil, cfg.unknownStandby(m.Aggregator)
	}
	cfg.Aggregator = addresses[m.Aggregator]
	return answer, nil
}

// hasMoved reports whether the job has lost its aggregator, or goes on at another one, since an
// answer.
func (m *Membership) hasMoved(ctx context.Context, cfg *JoinConfig, before *pb.Membership) bool {
	answer, err := checkAt(ctx, m.atServer(cfg, 0), m.servers[0].Check)
	return err == nil && answer != nil && (answer.Instance != before.Instance || answer.Ended != before.Ended)
}

// aggregators lists the control services of the aggregators by index.
func (c *JoinConfig) aggregators() []netip.AddrPort {
	return append([]netip.AddrPort{c.Aggregator}, c.Standbys...)
}

func (c *JoinConfig) unknownStandby(at int) error {
	return fmt.Errorf("the server's cluster file has a standbys[%d], and this worker's has %d of them: give both the same standbys",
		at-1, len(c.Standbys))
}

// atServer returns the configuration for joining one of the servers. Unless that continues a
// training by itself, it gets the identity of the others' training.
func (m *Membership) atServer(cfg *JoinConfig, i int) *JoinConfig {
	here := *cfg
	here.Agree = maps.Clone(cfg.Agree)
	if here.Agree == nil {
		here.Agree = map[string]string{}
	}
	if len(m.servers) > 1 {
		here.Agree[IndexField] = strconv.Itoa(i)
	}
	if m.Trainings == nil {
		return &here
	}
	if own := m.Trainings[i]; m.Training != "" && (own == "" || own == m.Training) {
		here.Agree[TrainingField] = m.Training
	}
	return &here
}

// isAnotherInstance reports whether a server was restarted since checkAll. Only the one with index
// 0 has the job's instance; what the others expect of a worker may differ by their training.
func (m *Membership) isAnotherInstance(cfg *JoinConfig) bool {
	for i := range m.servers {
		here := m.atServer(cfg, i)
		delete(here.Agree, TrainingField) // it would be refused for that
		answer, err := checkAt(m.ctx, here, m.servers[i].Check)
		before := m.checked[i]
		if err == nil && answer != nil &&
			(answer.Instance != before.GetInstance() || answer.Training != before.GetTraining()) {
			return true
		}
	}
	return false
}

// checkAt asks a service whether it would admit the worker. The answer is nil if it does not know
// this call: it is of an earlier release.
func checkAt[M any](ctx context.Context, cfg *JoinConfig,
	check func(context.Context, *pb.JoinRequest, ...grpc.CallOption) (*M, error)) (*M, error) {
	answer, err := whileBroken(ctx, func(ctx context.Context) (*M, error) { return check(ctx, cfg.request()) })
	if status.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	return answer, err
}

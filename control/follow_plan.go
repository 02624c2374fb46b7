// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// heldShare is a worker's admission to a share of a job with several, or with a plan.
type heldShare struct {
	admittedAt
	at       netip.AddrPort // of the aggregator
	instance uint64
}

// endShare ends the stream of an admission that the worker gives up, and then the admission, so
// that the end of the one is no loss of the other.
func (h *heldShare) endShare(how Departure) {
	h.end()
	_ = h.leave(how)
}

// holdShare keeps an admission to a share. It fails if the worker has left the job meanwhile.
func (m *Membership) holdShare(h *heldShare) error {
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	if m.ended.Load() { // which released what was there before
		return errLeft
	}
	m.kept.held = append(m.kept.held, h)
	return nil
}

// heldBy returns the admission to an instance, or nil.
func (m *Membership) heldBy(instance uint64) *heldShare {
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	for _, h := range m.kept.held {
		if h.instance == instance {
			return h
		}
	}
	return nil
}

// connTo returns the connection of another share at the same aggregator, or a new one.
func (m *Membership) connTo(ctx context.Context, cfg *JoinConfig) (conn *grpc.ClientConn, fresh bool, err error) {
	m.kept.mu.Lock()
	for _, h := range m.kept.held {
		if h.at == cfg.Aggregator {
			conn = h.conn
		}
	}
	m.kept.mu.Unlock()
	if conn != nil {
		return conn, false, nil
	}
	conn, err = access.Dial(ctx, access.TheSwitch(), cfg.Aggregator, cfg.Security, cfg.Limit, cfg.Log, cfg.Dial...)
	return conn, true, err
}

// joinShare joins a share at its aggregator, over a connection to it.
func (m *Membership) joinShare(cfg *JoinConfig, conn *grpc.ClientConn) (*heldShare, *pb.Admission, error) {
	ctx, end := context.WithCancel(m.ctx)
	client := pb.NewAggregatorClient(conn)
	admitted, leave, err := joinAt(ctx, cfg, access.SwitchDaemon, cfg.Aggregator, client.Join, client.Leave, nil,
		func(err error) { m.aggregatorLost(cfg, err) })
	if err != nil {
		end()
		return nil, nil, err
	}
	held := &heldShare{admittedAt{uint16(admitted.Epoch), conn, end, leave}, cfg.Aggregator, admitted.Instance}
	return held, admitted, nil
}

// releaseShares leaves the shares of which keep is false, and closes connections that no other one
// needs.
func (m *Membership) releaseShares(how Departure, tell bool, keep func(*heldShare) bool) {
	m.kept.mu.Lock()
	var left []*heldShare
	m.kept.held = slices.DeleteFunc(slices.Clone(m.kept.held), func(h *heldShare) bool {
		if !keep(h) {
			left = append(left, h)
			return true
		}
		return false
	})
	needed := map[*grpc.ClientConn]bool{}
	for _, h := range m.kept.held {
		needed[h.conn] = true
	}
	m.kept.mu.Unlock()
	for _, h := range slices.Backward(left) {
		if tell {
			h.endShare(how)
		}
		h.end()
	}
	for _, h := range left {
		if !needed[h.conn] {
			needed[h.conn] = true
			h.conn.Close()
		}
	}
}

// againEvery is the pause between two attempts to follow a plan.
const againEvery = time.Second

// FollowPlan makes a worker that has joined by a plan follow its changes, until ctx or the
// admission ends. For each it joins the shares that are new, and calls divide with the plan and the
// epochs of the admissions to its shares, by their index. When that returns, everything that was
// sent to other shares has to be acknowledged: the worker leaves these, and adopts the plan. If
// something fails, the worker goes on as it was, says why, and tries again: the server waits for
// it.
func (m *Membership) FollowPlan(ctx context.Context,
	divide func(ctx context.Context, p *pb.Plan, epochs []uint16) error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()
	k := &m.kept
	adopted, said := m.plan, ""
	for {
		k.mu.Lock()
		p := k.plan
		k.mu.Unlock()
		var again <-chan time.Time
		if p != nil && p.Version > adopted {
			err := m.adopt(ctx, p, divide)
			switch {
			case err == nil:
				adopted = p.Version
			case ctx.Err() != nil:
				return
			default:
				if why := err.Error(); why != said {
					said = why
					m.cfg.logger().Warn("this worker cannot follow the new plan yet, and goes on with the one before", "plan",
						p.Version, "error", err)
				}
				again = time.After(againEvery)
			}
		}
		select {
		case <-k.news:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// adopt follows a plan.
func (m *Membership) adopt(ctx context.Context, p *pb.Plan,
	divide func(ctx context.Context, p *pb.Plan, epochs []uint16) error) error {
	cfg := m.cfg
	cfg.Limit = min(cfg.Limit, enterLimit)
	var err error
	if cfg.Shares, err = cfg.Plan(p); err != nil {
		return err
	}
	if err := cfg.checkPlaces(); err != nil {
		return err
	}
	var epochs []uint16
	belongs := map[uint64]bool{}
	for i, one := range p.Shares {
		held := m.heldBy(one.Instance)
		if held == nil {
			if held, err = m.enterShare(ctx, cfg.atShare(i), one.Instance); err != nil {
				return err
			}
		}
		belongs[one.Instance] = true
		epochs = append(epochs, held.epoch)
	}
	if err := divide(ctx, p, epochs); err != nil {
		return err
	}
	m.releaseShares(Departure{}, true, func(h *heldShare) bool { return belongs[h.instance] })
	s := &m.servers[0]
	return callError(s.role, "adopt", Repeat(ctx, func(ctx context.Context) error {
		_, err := s.Adopt(ctx, &pb.AdoptRequest{Job: m.job, Sender: m.worker, Token: s.token, Version: p.Version})
		return err
	}))
}

// enterShare joins a share of a plan that changes.
func (m *Membership) enterShare(ctx context.Context, cfg *JoinConfig, instance uint64) (*heldShare, error) {
	conn, fresh, err := m.connTo(ctx, cfg)
	if err != nil {
		return nil, err
	}
	held, admitted, err := m.joinShare(cfg, conn)
	if err == nil {
		if err = m.checkEntered(cfg, admitted, instance); err == nil {
			err = m.holdShare(held)
		}
		if err != nil {
			held.endShare(Departure{Unused: true})
		}
	}
	if err != nil && fresh {
		conn.Close()
	}
	return held, err
}

// checkEntered refuses another instance than that of a plan, and other terms than those of the
// worker's frames.
func (m *Membership) checkEntered(cfg *JoinConfig, admitted *pb.Admission, instance uint64) error {
	if admitted.Instance != instance {
		return fmt.Errorf("the plan is of instance %d of job %d at %v, the aggregator has instance %d (%w)", instance, cfg.Job,
			cfg.Aggregator, admitted.Instance, errRestarted)
	}
	if err := checkAdmission(cfg, admitted); err != nil {
		return err
	}
	if int(admitted.Stripes) < m.Stripes || m.Dense && !admitted.Dense {
		return fmt.Errorf("the aggregator at %v takes frames of %d stripes (dense: %v), and this worker makes them of %d (dense: %v): give all switches of a plan daemons of one release and plane",
			cfg.Aggregator, admitted.Stripes, admitted.Dense, m.Stripes, m.Dense)
	}
	_, err := m.termsOf(instance, admitted)
	return err
}

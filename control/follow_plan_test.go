// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// adopting is a server that notes which plans a worker adopts.
type adopting struct {
	pb.ParameterServerClient
	versions []uint64
}

func (a *adopting) Adopt(_ context.Context, req *pb.AdoptRequest, _ ...grpc.CallOption) (*pb.AdoptResponse, error) {
	a.versions = append(a.versions, req.Version)
	return &pb.AdoptResponse{}, nil
}

// A worker that cannot follow a plan keeps its shares, adopts nothing, and tries again each second;
// when it can, it leaves the shares that the plan does not have, and adopts it, once. A newer plan
// that comes meanwhile replaces it.
func TestFollowPlanTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &adopting{}
		var left []uint64
		held := func(instance uint64, epoch uint16) *heldShare {
			return &heldShare{admittedAt{epoch: epoch, conn: closedConn(t), end: func() {},
				leave: func(Departure) error { left = append(left, instance); return nil }}, control1, instance}
		}
		cfg := JoinConfig{Job: 5, Aggregator: control1, Limit: time.Minute, Log: quiet,
			Plan: func(p *pb.Plan) (all []Share, err error) {
				for _, s := range p.Shares {
					all = append(all, Share{Job: uint16(s.Job), At: control1, HotSet: hotSet})
				}
				return all, nil
			}}
		m := &Membership{job: 5, worker: 1, plan: 1, cfg: cfg, servers: []joinedServer{{ParameterServerClient: server}}}
		m.ctx, m.end = context.WithCancelCause(t.Context())
		m.kept.news = make(chan struct{}, 1)
		m.kept.held = []*heldShare{held(11, 101), held(12, 102)}
		tell := func(version uint64, instances ...uint64) {
			p := &pb.Plan{Version: version}
			for _, i := range instances {
				p.Shares = append(p.Shares, &pb.PlannedShare{Job: uint32(i - 6), Instance: i})
			}
			m.kept.hearMessage(&pb.Membership{Plan: p})
		}
		type call struct {
			version uint64
			epochs  []uint16
			after   time.Duration
		}
		var calls []call
		var failed error
		begin := time.Now()
		go m.FollowPlan(t.Context(), func(_ context.Context, p *pb.Plan, epochs []uint16) error {
			calls = append(calls, call{p.Version, epochs, time.Since(begin)})
			return failed
		})
		tell(1, 11, 12) // by which it has joined
		synctest.Wait()
		if len(calls) > 0 || len(server.versions) > 0 {
			t.Errorf("it follows the plan by which it has joined: %v, %v", calls, server.versions)
		}
		failed = errors.New("no memory")
		tell(2, 12)
		time.Sleep(2*againEvery + againEvery/2)
		synctest.Wait()
		if len(calls) != 3 || calls[2].after != 2*againEvery || len(server.versions)+len(left) > 0 {
			t.Errorf("while it fails: %v; it adopts %v and leaves %v", calls, server.versions, left)
		}
		tell(3, 12, 11)
		synctest.Wait()
		if last := calls[len(calls)-1]; last.version != 3 || !slices.Equal(last.epochs, []uint16{102, 101}) {
			t.Errorf("after a newer plan: %v", calls)
		}
		failed = nil
		tell(4, 12)
		synctest.Wait()
		if !slices.Equal(server.versions, []uint64{4}) || !slices.Equal(left, []uint64{11}) {
			t.Errorf("it adopts %v and leaves %v", server.versions, left)
		}
		before := len(calls)
		tell(4, 12) // again, after a reconnect
		time.Sleep(3 * againEvery)
		synctest.Wait()
		if len(calls) != before || len(server.versions) != 1 {
			t.Errorf("told again: %v, %v", calls[before:], server.versions)
		}
		m.end(errLeft)
		synctest.Wait()
	})
}

// closedConn returns a connection that is not used.
func closedConn(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///unused", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/cluster"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// newChangingTree is newTree with room for changes of the plan, and the plan with which it begins.
// Calls of the switch b, the parent of c, go through a function.
func newChangingTree(t *testing.T, calls grpc.UnaryServerInterceptor) (c *cluster.Config, all []byte) {
	t.Helper()
	c = newTree(t)
	c.Job.IDs = []uint16{6}
	c.Data.Synthetic.Rows = 3200
	all = planFor(t, c, full(""))
	for i := range c.Switches {
		c.Switches[i].Slots *= 2
	}
	c.Job.Plan = filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(c.Job.Plan, all, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Switches {
		on := Machine{}
		if s.Name == "b" {
			on.Server = []grpc.ServerOption{grpc.ChainUnaryInterceptor(calls)}
		}
		t.Cleanup(runSwitchOn(t, onlySwitch(t, c, s.Name), testLog(t), on))
	}
	return c, all
}

// A switch is drained though its parent answers late: until it is the parent's child no longer, its
// job stays.
func TestParentLetsItsChildGoLate(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	c, _ := newChangingTree(t, func(ctx context.Context, req any, call *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler,
	) (any, error) {
		if call.FullMethod == pb.Aggregator_RemoveChild_FullMethodName && late.CompareAndSwap(false, true) {
			select {
			case <-time.After(leaveLimit + time.Second):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return handle(ctx, req)
	})
	checkTraining(t, c, during(soon(t), t, c, drainC))
	if !late.Load() {
		t.Error("no child was removed")
	}
}

// A change of the plan that is given up while a parent gets a child changes nothing, and can be
// made again.
func TestChangeIsGivenUpWhileAParentGetsAChild(t *testing.T) {
	var giveUp atomic.Pointer[context.CancelFunc]
	c, all := newChangingTree(t, func(ctx context.Context, req any, call *grpc.UnaryServerInfo,
		handle grpc.UnaryHandler,
	) (any, error) {
		answer, err := handle(ctx, req)
		if call.FullMethod == pb.Aggregator_AddChild_FullMethodName {
			if stop := giveUp.Swap(nil); stop != nil {
				(*stop)()
				<-ctx.Done()
			}
		}
		return answer, err
	})
	checkTraining(t, c, during(soon(t), t, c, drainC,
		func(o *operator) {
			ctx, stop := context.WithCancel(soon(t))
			giveUp.Store(&stop)
			r, err := o.ChangePlan(ctx, &pb.ChangePlanRequest{Job: uint32(c.Job.ID), Report: all})
			if err == nil || giveUp.Load() != nil {
				t.Errorf("%v, %v", r, err)
			}
		},
		func(o *operator) {
			if r, err := o.apply(2, all); err != nil {
				t.Errorf("%v, %v", r, err)
			}
		}))
}

func drainC(o *operator) {
	if r, err := o.drain("c"); err != nil {
		o.t.Errorf("%v, %v", r, err)
	}
	if left := jobsOf(o.t, onlySwitch(o.t, o.c, "c")); len(left) > 0 {
		o.t.Errorf("switch c may stop, and has the jobs %v", left)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/train"
)

// brokenPlane is one whose banks cannot be swapped: when it is asked to, it waits for broken, and fails.
type brokenPlane struct {
	aggregator.Plane
	broken <-chan struct{}
}

func (p brokenPlane) Swap(uint16) (*aggregator.Bank, error) {
	<-p.broken
	return nil, errors.New("the test breaks it")
}

// An instance of the job that was created before workers named their epochs may repeat them. The server creates another
// one at the same aggregator at once: it does not leave the job without one until the next search.
func TestEpochsThatAnAggregatorWasNotTold(t *testing.T) {
	c := newCluster(t, 2)
	addStandbys(t, c, 1)
	serve(t, c, false, 1)
	broken := make(chan struct{}) // without a harvest, no marks tell the server of epochs
	loses := sync.OnceFunc(func() { close(broken) })
	defer runSwitchOn(t, c, testLog(t), Machine{Random: sameEpochs(),
		Plane: func(p aggregator.Plane) aggregator.Plane { return brokenPlane{p, broken} }})()
	defer loses()
	frames, stopStandby := runAggregator(t, c, 1)
	standby := c.Standbys[0].Control.String()

	created, began, joined := make(chan struct{}), make(chan struct{}), make(chan struct{})
	first, last := sync.OnceFunc(func() { close(created) }), sync.OnceFunc(func() { close(began) })
	creations := 0 // by the server's own goroutine
	counts := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if method == controlpb.Aggregator_CreateJob_FullMethodName && strings.HasSuffix(conn.Target(), standby) {
			creations++
			first()
		}
		return err
	})
	settlesLate := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == controlpb.ParameterServer_Settle_FullMethodName {
			<-created
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	})

	var log lines
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() {
		_, errs[0] = RunServer(t.Context(), Env{Config: c, Log: log.logger(),
			Machine: Machine{Client: []grpc.DialOption{counts}, Began: func(int) { last() }}})
	})
	for i, w := range c.Workers {
		o := WorkerOptions{ID: w.ID, Progress: func(p train.Progress) {
			switch {
			case p.Steps == 2:
				loses()
			case p.Steps == 8 && i == 0:
				<-began
				awaitSenders(t, c.Aggregators()[1], 2)
				close(joined)
			case p.Steps == 8:
				<-joined
			}
		}}
		all.Go(func() {
			_, errs[1+i] = RunWorker(t.Context(), Env{Config: c, Log: testLog(t), Machine: Machine{Client: []grpc.DialOption{settlesLate}}}, o)
		})
	}
	all.Wait()
	stopStandby()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if creations != 2 || strings.Contains(log.String(), errUntoldEpochs.Error()) {
		t.Errorf("the job was created %d times at the standby, not twice in one search:\n%s", creations, log.String())
	}
	if frames.Load() == 0 {
		t.Error("nothing was harvested from the standby")
	}
}

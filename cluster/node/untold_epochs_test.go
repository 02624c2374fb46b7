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

// brokenPlane is one whose banks cannot be swapped: when it is asked to, it waits for broken, and
// fails.
type brokenPlane struct {
	aggregator.Plane
	broken <-chan struct{}
}

func (p brokenPlane) Swap(uint16) (*aggregator.Bank, error) {
	<-p.broken
	return nil, errors.New("the test breaks it")
}

// An instance of the job that was created before workers named their epochs may repeat them. The
// server creates another one at the same aggregator at once: the job is not left without one until
// the next search, and a drain ends where it was to.
func TestEpochsThatAnAggregatorWasNotTold(t *testing.T) {
	for what, at := range map[string]int{"loss": 1, "drain": 2} {
		t.Run(what, func(t *testing.T) { testUntoldEpochs(t, what == "drain", at) })
	}
}

// testUntoldEpochs drains or loses the first of three aggregators, before it is harvested: no marks
// tell the server of epochs. The job is to go on at another one, by its index.
func testUntoldEpochs(t *testing.T, drain bool, at int) {
	c := newCluster(t, 2)
	addStandbys(t, c, 2)
	serve(t, c, false, 1)
	broken := make(chan struct{})
	loses := sync.OnceFunc(func() { close(broken) })
	defer runSwitchOn(t, c, testLog(t), Machine{Random: sameEpochs(),
		Plane: func(p aggregator.Plane) aggregator.Plane { return brokenPlane{p, broken} }})()
	defer loses()
	_, stopFirst := runAggregator(t, c, 1)
	defer stopFirst()
	_, stopSecond := runAggregator(t, c, 2)
	defer stopSecond()
	target := c.Aggregators()[at].Control.String()

	created, began, joined := make(chan struct{}), make(chan int, 9), make(chan struct{})
	first := sync.OnceFunc(func() { close(created) })
	creations := 0 // by the server's own goroutine
	counts := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, opts...)
		if method == controlpb.Aggregator_CreateJob_FullMethodName && strings.HasSuffix(conn.Target(), target) {
			creations++
			first()
		}
		return err
	})
	settlesLate := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == controlpb.ParameterServer_Settle_FullMethodName {
			select {
			case <-created:
			case <-ctx.Done():
			}
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	})

	var log lines
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() {
		_, errs[0] = RunServer(t.Context(), Env{Config: c, Log: log.logger(),
			Machine: Machine{Client: []grpc.DialOption{counts}, Began: func(at int) { began <- at }}})
	})
	for i, w := range c.Workers {
		o := WorkerOptions{ID: w.ID, Progress: func(p train.Progress) {
			switch {
			case p.Steps == 2 && i == 0 && drain:
				if answer, err := drainJob(t, c, at); err != nil || answer.To == nil || int(*answer.To) != at {
					t.Errorf("the drain to %d: %v, %v", at, answer, err)
				}
			case p.Steps == 2 && i == 0:
				loses()
			case p.Steps == 8 && i == 0:
				now := <-began
				if now != at {
					t.Errorf("the job goes on at %d, not at %d", now, at)
				}
				awaitSenders(t, c.Aggregators()[now], 2)
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
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if creations != 2 || strings.Contains(log.String(), errUntoldEpochs.Error()) {
		t.Errorf("the job was created %d times at %v, not twice in one search:\n%s", creations, target, log.String())
	}
}

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
// the next search, and a drain ends where it was to. If that one is refused, the job goes on at
// another aggregator, and the answer says why.
func TestEpochsThatAnAggregatorWasNotTold(t *testing.T) {
	for _, test := range []untoldEpochs{
		{name: "loss", created: 1, at: 1},
		{name: "drain", drain: true, created: 2, at: 2},
		{name: "refused drain", drain: true, created: 2, refused: errors.New("no room for another"), at: 1},
	} {
		t.Run(test.name, test.run)
	}
}

// untoldEpochs drains or loses the first of three aggregators, before it is harvested: no marks
// tell the server of epochs. Aggregators are named by their index.
type untoldEpochs struct {
	name    string
	drain   bool
	created int   // where the job is created first, and to which it is drained
	refused error // why it is not created there a second time; nil: it is
	at      int   // where it goes on
}

func (test untoldEpochs) run(t *testing.T) {
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
	target := c.Aggregators()[test.created].Control.String()

	created, began, joined := make(chan struct{}), make(chan int, 9), make(chan struct{})
	first := sync.OnceFunc(func() { close(created) })
	creations := 0 // by the server's own goroutine
	counts := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method != controlpb.Aggregator_CreateJob_FullMethodName || !strings.HasSuffix(conn.Target(), target) {
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		if creations++; creations > 1 && test.refused != nil {
			return test.refused
		}
		defer first()
		return invoke(ctx, method, req, reply, conn, opts...)
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
			case p.Steps == 2 && i == 0 && test.drain:
				answer, err := drainJob(t, c, test.created)
				if err != nil || answer.To == nil || int(*answer.To) != test.at {
					t.Errorf("the drain to %d: %v, %v", test.created, answer, err)
				} else if why := test.refused; why == nil && answer.Reason != "" ||
					why != nil && !(strings.Contains(answer.Reason, target) && strings.HasSuffix(answer.Reason, why.Error())) {
					t.Errorf("the drain to %d ends at %d because %q, not %v", test.created, test.at, answer.Reason, why)
				}
			case p.Steps == 2 && i == 0:
				loses()
			case p.Steps == 8 && i == 0:
				now := <-began
				if now != test.at {
					t.Errorf("the job goes on at %d, not at %d", now, test.at)
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

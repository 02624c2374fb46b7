// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/train"
)

// endsOf tells when a stream of a method from one address has ended.
type endsOf struct {
	grpc.ClientStream
	ended func()
}

func (s endsOf) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.ended()
	}
	return err
}

// A drain whose target is lost before the workers have left the old aggregator ends when they have:
// the job is at none, as the old one is drained, and goes on at the target when that is back.
func TestDrainWhoseTargetIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	addStandbys(t, c, 1)
	c.Data.Synthetic.Rows = 2003
	serve(t, c, true, 1)
	_, stopSwitch := runAggregator(t, c, 0)
	defer stopSwitch()
	_, stopStandby := runAggregator(t, c, 1)
	target := c.Standbys[0].Control.String()
	released := make(chan struct{})
	seen := sync.OnceFunc(func() { close(released) })
	watch := grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, conn, method, opts...)
		if err == nil && strings.HasSuffix(method, "/Hold") && strings.HasSuffix(conn.Target(), target) {
			stream = endsOf{stream, seen}
		}
		return stream, err
	})
	var loses sync.Once
	machine := Machine{Client: []grpc.DialOption{watch}, Fenced: func() { // no worker settles before it returns
		loses.Do(func() {
			stopStandby()
			<-released
		})
	}}
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() {
		_, errs[0] = RunServer(t.Context(), Env{Config: c, Log: testLog(t).With("process", "ps"), Machine: machine})
	})
	stops := func() {}
	for i, w := range c.Workers {
		o := WorkerOptions{ID: w.ID}
		if i == 0 {
			o.Progress = func(p train.Progress) {
				if p.Steps != 5 {
					return
				}
				answer, err := drainJob(t, c, -1)
				if err != nil || answer.From != 0 || answer.To != nil || !strings.Contains(answer.Reason, fmt.Sprintf("aggregator at %s: ", target)) {
					t.Errorf("the drain: %v, %v", answer, err)
				}
				_, stops = runAggregator(t, c, 1)
				awaitSenders(t, c.Aggregators()[1], 2)
			}
		}
		all.Go(func() {
			_, errs[1+i] = RunWorker(t.Context(), Env{Config: c, Log: testLog(t).With("process", fmt.Sprint("worker ", w.ID))}, o)
		})
	}
	all.Wait()
	stops()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if want, got := reference(t, c), merged(t, c); hash(got) != hash(want) {
		t.Errorf("weights %s, in one process %s", hash(got), hash(want))
	}
}

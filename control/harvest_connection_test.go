// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// The warning about a broken connection names the service, the call and the reason, without gRPC's
// terms.
func TestBrokenHarvestStreamIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		var text bytes.Buffer
		h := NewHarvester(job, newSums().apply, slog.New(slog.NewTextHandler(&text, nil)))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		ran := make(chan error, 1)
		go func() { ran <- h.Run(ctx) }()
		if err := h.Now(ctx); err != nil {
			t.Fatal(err)
		}
		l.host.Vanish()
		time.Sleep(time.Second)
		l.host.ComeBack()
		if err := h.Now(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ran; !errors.Is(err, context.Canceled) {
			t.Errorf("the harvester ended with %v", err)
		}
		for _, want := range []string{"switch daemon: harvest: the connection broke (", "(" + grpctest.ErrCut.Error() + ")", "is the switch daemon running"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%q is not in the log:\n%s", want, &text)
			}
		}
		for _, raw := range []string{"rpc error", "desc =", "transport"} {
			if strings.Contains(text.String(), raw) {
				t.Errorf("%q is in the log:\n%s", raw, &text)
			}
		}
	})
}

// Whatever happens to either half of the connection, the harvest continues, and no sum is lost or
// applied twice.
func TestHarvestSurvivesBrokenConnections(t *testing.T) {
	for name, harm := range map[string]func(*client){"both halves": (*client).Break, "the client's half": (*client).HalfOpen} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := startAggregator(t)
				s := spec()
				s.HarvestPeriodUs = 500
				job := l.create(t, s)
				worker := l.dial(t, access.Security{}, workerIP.String())
				_, a, err := joinAs(t.Context(), pb.NewAggregatorClient(worker), joinRequest())
				if err != nil {
					t.Fatal(err)
				}
				got := newSums()
				h, stop := harvester(t, job, got.apply)
				for seq := uint32(1); seq <= 2000; seq++ {
					l.push(t, uint16(a.Epoch), seq, uint16(seq%100), 0.5)
					if seq%7 == 0 {
						time.Sleep(time.Millisecond)
					}
					if seq%100 == 0 {
						harm(l.host)
					}
				}
				if err := h.Now(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := stop(); !errors.Is(err, context.Canceled) {
					t.Errorf("Run ended with %v", err)
				}
				if sum, want := got.total(), 2000*units(t, 0.5); sum != want {
					t.Errorf("sum %d, want %d", sum, want)
				}
				if got.repeats != 0 {
					t.Errorf("%d harvests were applied again", got.repeats)
				}
			})
		})
	}
}

// The time between two attempts to reach the aggregator grows to a second, and is reset by a
// harvest.
func TestHarvesterBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		h, stop := harvester(t, job, newSums().apply)
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			l.host.Break()
			synctest.Wait()
			if h.delay.next != 2*shortestDelay {
				t.Errorf("after a harvest the next delay is %v, want %v", h.delay.next, 2*shortestDelay)
			}
			if err := h.Now(t.Context()); err != nil {
				t.Fatal(err)
			}
			if h.delay.next != 0 {
				t.Errorf("a harvest leaves a delay of %v", h.delay.next)
			}
		}
		l.host.Vanish()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if h.delay.next != longestDelay {
			t.Errorf("after some time the next delay is %v, want %v", h.delay.next, longestDelay)
		}
		_ = stop()
	})
}

// A server that reports the last applied harvest gets the one that it lacks, and nothing else.
func TestHarvestResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		job := l.create(t, spec())
		epoch := l.join(t)
		begin := func(last uint64, requests ...*pb.HarvestRequest) (pb.Aggregator_HarvestClient, func()) {
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := l.client.Harvest(ctx)
			if err != nil {
				t.Fatal(err)
			}
			all := append([]*pb.HarvestRequest{{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key, Last: last}}}}, requests...)
			for _, req := range all {
				if err := stream.Send(req); err != nil {
					t.Fatal(err)
				}
			}
			return stream, func() { cancel(); synctest.Wait() }
		}
		receive := func(stream pb.Aggregator_HarvestClient, number, request uint64, sums ...int64) {
			t.Helper()
			chunk, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var got Harvest
			if err := got.take(chunk); err != nil {
				t.Fatal(err)
			}
			if chunk.Number != number || chunk.Request != request || !chunk.Last || !slices.Equal(got.Sums, sums) {
				t.Errorf("got %v, want harvest %d with request %d and sums %v", chunk, number, request, sums)
			}
		}
		refused := func(last uint64) {
			t.Helper()
			number := l.stats(t).Jobs[0].Harvests
			stream, end := begin(last)
			defer end()
			_, err := stream.Recv()
			wants(t, "begun after another harvest", err, codes.FailedPrecondition, "job 5", fmt.Sprintf("the newest harvest here is %d, and the newest that its server has applied is %d", number, last))
		}
		now := func(request uint64) *pb.HarvestRequest {
			return &pb.HarvestRequest{What: &pb.HarvestRequest_Now{Now: request}}
		}
		done := func(number uint64) *pb.HarvestRequest {
			return &pb.HarvestRequest{What: &pb.HarvestRequest_Done{Done: number}}
		}

		refused(1) // there is none yet
		l.push(t, epoch, 1, 0, 1)
		stream, end := begin(0, now(7))
		receive(stream, 1, 7, units(t, 1))
		end() // the harvest was lost
		refused(2)
		refused(math.MaxUint64)
		stream, end = begin(0)
		receive(stream, 1, 0, units(t, 1)) // it answers no request of this stream
		end()                              // its acknowledgement was lost
		l.push(t, epoch, 2, 0, 2)
		stream, end = begin(1, now(1))
		receive(stream, 2, 1, units(t, 2))
		if err := stream.Send(done(2)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		end()
		refused(1) // although the server had reported it as applied

		// An empty harvest counts like any other.
		stream, end = begin(2, now(1))
		receive(stream, 3, 1)
		end()
		stream, end = begin(2)
		receive(stream, 3, 0)
		if err := stream.Send(done(3)); err != nil {
			t.Fatal(err)
		}
		// Only a harvest that waits for it can be acknowledged.
		if err := stream.Send(done(3)); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument || !contains(err, "harvest 3") {
			t.Errorf("acknowledged twice: %v", err)
		}
		end()
		stream, end = begin(3, now(1))
		receive(stream, 4, 1)
		if err := stream.Send(done(3)); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument || !contains(err, "harvest 3") {
			t.Errorf("acknowledged another: %v", err)
		}
		end()
		stream, end = begin(4, &pb.HarvestRequest{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key}}})
		if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("begun twice: %v", err)
		}
		end()
	})
}

// A connection that breaks without a pending request makes no request.
func TestReconnectionAsksForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		h, stop := harvester(t, l.create(t, spec()), newSums().apply)
		if err := h.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			l.host.Break()
			time.Sleep(10 * time.Second)
		}
		_ = stop()
		if n := l.stats(t).Jobs[0].Harvests; n != 1 {
			t.Errorf("%d harvests, 1 was asked for", n)
		}
	})
}

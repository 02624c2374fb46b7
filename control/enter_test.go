// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/testlog"
)

// heldLog is a worker's log whose Enter lasts until the test ends it.
type heldLog struct {
	enters chan held
	marks  chan aggregator.Mark // by which it has settled
}

type held struct {
	at    Admission
	ended <-chan struct{} // the context of Enter has
	end   chan<- error
}

func (heldLog) Committed(context.Context, aggregator.Mark) error { return nil }

func (l heldLog) Settle(ctx context.Context, ask func(context.Context, uint32) (aggregator.Mark, error)) error {
	mark, err := ask(ctx, 7)
	if err == nil {
		l.marks <- mark
	}
	return err
}

func (l heldLog) Enter(ctx context.Context, at Admission) error {
	end := make(chan error, 1)
	l.enters <- held{at, ctx.Done(), end}
	return <-end
}

// entered are the services of a job whose only worker enters its second generation: Enter of its
// log has not returned.
type entered struct {
	*services
	log     heldLog
	m       *Membership
	held    held
	second  uint64
	reports chan uint64 // instances that reports have named
	said    testlog.Log // by the worker
}

func startEntering(t *testing.T) *entered {
	t.Helper()
	e := startSettled(t)
	e.service.Begin(e.second, 0)
	e.held = <-e.log.enters
	return e
}

// startSettled is startEntering, but the worker has not been told of the second generation.
func startSettled(t *testing.T) *entered {
	t.Helper()
	e := &entered{log: heldLog{make(chan held, 1), make(chan aggregator.Mark, 1)}, reports: make(chan uint64, 9)}
	e.services = startServices(t, func(c *ParameterServerConfig) {
		c.KeepLog, c.Workers = true, []uint16{1}
		c.Report = func(_ context.Context, _ uint16, r *pb.ReportRequest) error {
			e.reports <- r.Instance
			return nil
		}
	})
	e.join.KeepsLog = true
	e.join.Log = e.said.Logger()
	var err error
	if e.m, err = Join(t.Context(), e.join); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- e.m.KeepLog(ctx, e.log, nil) }()
	t.Cleanup(func() {
		end()
		if err := <-kept; err != nil {
			t.Errorf("keeping the log: %v", err)
		}
		e.m.Leave()
	})
	mustFence(t, e.service)
	if mark := <-e.log.marks; mark.Epoch != e.m.AggregatorEpoch {
		t.Errorf("it settles by a mark of epoch %d, its own is %d", mark.Epoch, e.m.AggregatorEpoch)
	}
	e.awaitSettled(t)
	conn, err := access.Dial(t.Context(), access.TheSwitch(), e.join.Aggregator, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := pb.NewAggregatorClient(conn)
	if _, err := client.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
		t.Fatal(err)
	}
	job, err := CreateJob(t.Context(), client, spec(), 0, quiet)
	if err == nil {
		err = job.Hold(t.Context(), func(error) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	e.second = job.Instance
	return e
}

func (e *entered) awaitSettled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !e.service.AllSettled(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the worker does not settle")
		}
	}
}

// report makes a report, and returns the instance that it has named last.
func (e *entered) report(t *testing.T) (instance uint64) {
	t.Helper()
	if err := e.m.Report(t.Context(), 1, 0, false); err != nil {
		t.Fatal(err)
	}
	return <-e.reports
}

// Frames may go to a new aggregator before Enter has returned: calls name its instance from before
// that on.
func TestCallsWhileEntering(t *testing.T) {
	e := startEntering(t)
	if got := e.report(t); got != e.second {
		t.Errorf("a report while it enters names instance %d, want %d", got, e.second)
	}
	e.held.end <- nil
	if got := e.report(t); got != e.second {
		t.Errorf("a report when it has entered names instance %d, want %d", got, e.second)
	}
	if a, _ := e.senders(t); a != 1 {
		t.Errorf("the aggregator has %d senders", a)
	}
}

// Frames may be at an aggregator although entering has failed because its generation has ended
// meanwhile: the worker settles by the mark of its admission there, and calls that named the
// generation are made again when it has.
func TestGenerationEndsWhileEntering(t *testing.T) {
	for name, result := range map[string]error{"Enter fails": context.Canceled, "Enter has been faster": nil} {
		t.Run(name, func(t *testing.T) {
			e := startEntering(t)
			mustFence(t, e.service)
			reported := make(chan error, 1)
			go func() { reported <- e.m.Report(t.Context(), 1, 0, false) }()
			<-e.held.ended // the worker has been told
			e.held.end <- result
			if mark := <-e.log.marks; mark.Epoch != e.held.at.Epoch {
				t.Errorf("it settles by a mark of epoch %d, that of its admission is %d", mark.Epoch, e.held.at.Epoch)
			}
			if err := <-reported; err != nil {
				t.Errorf("the report: %v", err)
			}
			if got := <-e.reports; got != 0 || len(e.reports) != 0 {
				t.Errorf("the report that counts names instance %d, want 0; there are %d others", got, len(e.reports))
			}
			e.awaitSettled(t)
		})
	}
}

// A worker that cannot enter a generation, which lasts, leaves its aggregator and goes on without:
// its calls name no instance, and it settles without a mark of it.
func TestEnteringFails(t *testing.T) {
	e := startEntering(t)
	ends := make(chan ending, 1)
	r := e.daemon.jobs[5].roster
	r.mu.Lock()
	withdraw := r.withdraw
	r.withdraw = func(m *member, how ending) {
		withdraw(m, how)
		ends <- how
	}
	r.mu.Unlock()
	e.held.end <- errors.New("no room")
	for got := e.report(t); got != 0; got = e.report(t) {
		if got != e.second {
			t.Fatalf("a report names instance %d", got)
		}
	}
	if how := <-ends; how != unused { // else the aggregator would miss it
		t.Errorf("its admission ended as %d, want %d", how, unused)
	}
	if a, _ := e.senders(t); a != 0 {
		t.Errorf("the aggregator has %d senders", a)
	}
	mustFence(t, e.service)
	if mark := <-e.log.marks; mark.Epoch != 0 {
		t.Errorf("it settles by a mark of epoch %d", mark.Epoch)
	}
	e.awaitSettled(t)
}

// A worker that does not enter what it finds at an aggregator, because that is another instance
// than the server has told, or makes other sums, changes nothing there: it may be the aggregator of
// another cluster's job.
func TestEnteringIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*entered)
		told   uint64 // beyond the instance that the aggregator has
		want   string
	}{
		"another instance":       {told: 1, want: "the aggregator has instance"},
		"another exponent":       {change: func(e *entered) { e.m.Exp++ }, want: "and exponent"},
		"another cluster's rows": {change: func(e *entered) { e.daemon.jobs[5].spec.HotSet = []byte("another") }, want: "hot set differs"},
	} {
		t.Run(name, func(t *testing.T) {
			e := startSettled(t)
			before := e.daemon.nextEpoch(5)
			if c.change != nil {
				c.change(e)
			}
			e.service.Begin(e.second+c.told, 0)
			e.said.Await(t, "this worker sends hot rows to the server", c.want)
			if after := e.daemon.nextEpoch(5); after != before {
				t.Errorf("the next epoch there was %d, and is %d", before, after)
			}
			if got := e.report(t); got != 0 {
				t.Errorf("a report names instance %d", got)
			}
		})
	}
}

// countedStream tells when its third message is awaited, so that the second is processed.
type countedStream struct {
	grpc.ClientStream
	calls int
	third chan struct{}
}

func (s *countedStream) RecvMsg(m any) error {
	if s.calls++; s.calls == 3 {
		close(s.third)
	}
	return s.ClientStream.RecvMsg(m)
}

// A generation that ends while a worker joins, after the server has admitted it and told it so, is
// settled: what the server has told last counts.
func TestGenerationEndsWhileAWorkerJoins(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) { c.KeepLog, c.Workers = true, []uint16{1} })
	heard := make(chan struct{})
	s.join.KeepsLog = true
	s.join.Dial = []grpc.DialOption{grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
		method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		switch method {
		case pb.Aggregator_Join_FullMethodName:
			mustFence(t, s.service)
			<-heard
		case pb.ParameterServer_Join_FullMethodName:
			stream, err := open(ctx, desc, conn, method, opts...)
			return &countedStream{ClientStream: stream, third: heard}, err
		}
		return open(ctx, desc, conn, method, opts...)
	})}
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	e := &entered{services: s, log: heldLog{make(chan held, 1), make(chan aggregator.Mark, 1)}}
	ctx, end := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- m.KeepLog(ctx, e.log, nil) }()
	e.awaitSettled(t)
	end()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	m.Leave()
}

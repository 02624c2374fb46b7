// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// A worker gets the job's configuration, takes its steps with the others, and finishes.
func TestParameterServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, sync5, func(c *ParameterServerConfig) {
			c.FirstStep = func(sender uint16) uint64 { return map[uint16]uint64{1: 100, 2: 100}[sender] }
			c.Grace = 1200 * time.Millisecond
		})
		result := s.waits(t)
		one, two := s.joined(t)
		m := one.member
		if m.Dimension != 9 || m.Workers != 2 || m.Instance != 77 || m.FirstStep != 100 || m.GraceMs != 1200 || len(m.Token) != 16 {
			t.Errorf("membership %v", m)
		}
		as, _ := s.of(1)
		if as.from != netip.AddrPortFrom(one.ip, 19522) || uint32(as.epoch) != m.Epoch {
			t.Errorf("admitted as %v, told %v", as, m)
		}
		if uint16(two.member.Epoch) != uint16(m.Epoch+1) {
			t.Errorf("epochs %d and %d do not follow each other", m.Epoch, two.member.Epoch)
		}
		for step := uint64(100); step < 103; step++ {
			answers := make(chan error, 1)
			go func() { answers <- one.barrier(t, step) }()
			synctest.Wait()
			if len(answers) != 0 {
				t.Fatalf("worker 1 passes step %d alone: %v", step, <-answers)
			}
			if err := two.barrier(t, step); err != nil {
				t.Error(err)
			}
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(s.commits, []uint64{100, 101, 102}) {
			t.Errorf("commits %v", s.commits)
		}
		wants(t, "another step", one.barrier(t, 100), codes.FailedPrecondition, "step 100", "step 103")
		for _, w := range []*worker{one, two} {
			if len(result) != 0 {
				t.Fatalf("Wait has returned: %v", <-result)
			}
			if err := w.done(t); err != nil {
				t.Error(err)
			}
			if err := w.done(t); err != nil { // its first answer was lost
				t.Error(err)
			}
			if err := w.leave(t); err != nil {
				t.Error(err)
			}
			if _, ok := s.of(uint16(w.id)); ok {
				t.Errorf("worker %d left, and its frames are taken", w.id)
			}
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
		if len(s.lost) != 0 {
			t.Errorf("workers %v are lost", s.lost)
		}
	})
}

// A worker names a port other than the job's if its frames come from it.
func TestParameterServerTakesPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		w := s.worker(t, 2)
		if err := w.join(t, func(r *pb.JoinRequest) { r.Port = 4711 }); err != nil {
			t.Fatal(err)
		}
		if as, _ := s.of(2); as.from != netip.AddrPortFrom(w.ip, 4711) {
			t.Errorf("admitted from %v", as.from)
		}
		if w.member.FirstStep != 0 {
			t.Errorf("first step %d", w.member.FirstStep)
		}
	})
}

func TestParameterServerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, func(c *ParameterServerConfig) { c.Agree = map[string]string{"job.sync": "true", "model.epochs": "2"} })
		w := s.worker(t, 1)
		for what, c := range map[string]struct {
			change func(*pb.JoinRequest)
			code   codes.Code
			parts  []string
		}{
			"job":        {func(r *pb.JoinRequest) { r.Job = 6 }, codes.NotFound, []string{"job 6", "job 5"}},
			"huge job":   {func(r *pb.JoinRequest) { r.Job = 5 + 1<<16 }, codes.NotFound, []string{"job 65541"}},
			"worker":     {func(r *pb.JoinRequest) { r.Sender = 3 }, codes.PermissionDenied, []string{"worker 3", "[1 2]"}},
			"16 bits":    {func(r *pb.JoinRequest) { r.Sender = 1 + 1<<16 }, codes.InvalidArgument, []string{"65537"}},
			"address":    {func(r *pb.JoinRequest) { r.Ip = []byte{1, 2} }, codes.InvalidArgument, []string{"2 bytes"}},
			"hot set":    {func(r *pb.JoinRequest) { r.HotSet = []byte("x") }, codes.FailedPrecondition, []string{"hot set"}},
			"two fields": {func(r *pb.JoinRequest) { r.Agree = map[string]string{"job.sync": "false", "model.epochs": "3"} }, codes.FailedPrecondition, []string{"worker 1", "job.sync: false here, true at the server", "model.epochs: 3 here, 2 at the server; copy one cluster file", "to all hosts"}},
		} {
			wants(t, what, w.join(t, c.change), c.code, c.parts...)
		}
		if len(s.history) != 0 {
			t.Errorf("admitted %v", s.history)
		}
		if err := w.join(t, func(r *pb.JoinRequest) { r.Agree = map[string]string{"model.epochs": "2", "data": "small"} }); err != nil {
			t.Fatal(err)
		}
		wants(t, "other data than worker 1", s.worker(t, 2).join(t, func(r *pb.JoinRequest) { r.Agree = map[string]string{"data": "large", "new": "field"} }),
			codes.FailedPrecondition, "worker 2", "data: large here, small at worker 1", "one cluster file, and the same training data", "restart the server")
		// A refused worker sets nothing.
		if err := s.worker(t, 2).join(t, func(r *pb.JoinRequest) { r.Agree = map[string]string{"data": "small", "new": "value"} }); err != nil {
			t.Error(err)
		}
	})
}

// Fields that the server lacks, and that the first worker sets, last until the server ends, even if
// all workers have left: the weights may have been trained with them.
func TestAgreementOutlivesItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		data := func(value string) func(*pb.JoinRequest) {
			return func(r *pb.JoinRequest) { r.Agree = map[string]string{"data": value} }
		}
		one := s.worker(t, 1)
		if err := one.join(t, data("small")); err != nil {
			t.Fatal(err)
		}
		if err := one.leave(t); err != nil {
			t.Fatal(err)
		}
		for id := range uint32(2) {
			wants(t, "other data", s.worker(t, id+1).join(t, data("large")), codes.FailedPrecondition, "data: large here, small at worker 1", "restart the server")
		}
		if got := s.service.Agreed(); len(got) != 1 || got["data"] != "small" {
			t.Errorf("agreed on %v", got)
		}
		if err := one.join(t, data("small")); err != nil {
			t.Error(err)
		}
	})
}

// Calls belong to the worker that has joined.
func TestWorkersCallsAreTheirs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, two := s.joined(t)
		stranger := s.worker(t, 1)
		for what, req := range map[string]struct {
			job, sender uint32
			token       []byte
			code        codes.Code
		}{
			"no token":           {5, 1, nil, codes.PermissionDenied},
			"another's token":    {5, 1, two.member.Token, codes.PermissionDenied},
			"a shorter token":    {5, 1, one.member.Token[:8], codes.PermissionDenied},
			"another job":        {6, 1, one.member.Token, codes.NotFound},
			"a huge job":         {5 + 1<<16, 1, one.member.Token, codes.NotFound},
			"more than 16 bits":  {5, 1 + 1<<16, one.member.Token, codes.InvalidArgument},
			"who has not joined": {5, 9, one.member.Token, codes.PermissionDenied},
		} {
			_, err := stranger.Barrier(t.Context(), &pb.BarrierRequest{Job: req.job, Sender: req.sender, Token: req.token})
			wants(t, "barrier: "+what, err, req.code)
			_, err = stranger.Done(t.Context(), &pb.DoneRequest{Job: req.job, Sender: req.sender, Token: req.token})
			wants(t, "done: "+what, err, req.code)
			_, err = stranger.Report(t.Context(), &pb.ReportRequest{Job: req.job, Sender: req.sender, Token: req.token})
			wants(t, "report: "+what, err, req.code)
			_, err = stranger.Leave(t.Context(), &pb.LeaveRequest{Job: req.job, Sender: req.sender, Token: req.token})
			wants(t, "leave: "+what, err, req.code)
		}
		if len(s.commits)+len(s.reports)+len(s.lost) != 0 || len(s.service.barrier.unfinishedWorkers()) != 2 || len(s.members) != 2 {
			t.Errorf("strangers had %v committed, %v reported; %v are lost", s.commits, s.reports, s.lost)
		}
		if _, err := two.Report(t.Context(), &pb.ReportRequest{Job: 5, Sender: 2, Token: two.member.Token, Steps: 41, Epochs: 3, Ends: true}); err != nil || !slices.Equal(s.reports, []string{"2:41:3:true"}) {
			t.Errorf("reports %v, %v", s.reports, err)
		}
	})
}

// A report is answered when its steps are applied; if they cannot be, it is not the worker's fault.
func TestReportWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		applied := make(chan error)
		s := startServer(t, func(c *ParameterServerConfig) {
			c.Report = func(context.Context, uint16, *pb.ReportRequest) error { return <-applied }
		})
		one, _ := s.joined(t)
		report := func() <-chan error {
			answer := make(chan error, 1)
			go func() {
				_, err := one.Report(t.Context(), &pb.ReportRequest{Job: 5, Sender: 1, Token: one.member.Token, Steps: 1})
				answer <- err
			}()
			synctest.Wait()
			return answer
		}
		answer := report()
		select {
		case err := <-answer:
			t.Fatalf("answered before, with %v", err)
		default:
		}
		applied <- nil
		if err := <-answer; err != nil {
			t.Error(err)
		}
		answer = report()
		applied <- errors.New("no sum fits")
		wants(t, "not applied", <-answer, codes.FailedPrecondition, "no sum fits")
		answer = report()
		s.stop()
		applied <- context.Canceled
		wants(t, "the server ends", <-answer, codes.Aborted)
	})
}

// A worker that the endpoint cannot admit has not joined, and is not a loss.
func TestFailedAdmissionIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, sync5)
		s.roll.admit = errors.New("link is down")
		w := s.worker(t, 1)
		wants(t, "join", w.join(t), codes.Internal, "worker 1", "link is down")
		s.roll.admit = nil
		one, two := s.joined(t)
		if err := errors.Join(one.done(t), two.done(t), s.service.Wait(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// The answer to a worker's last Done may be lost. So the server does not end before the workers
// have left, or could have.
func TestWaitGivesTimeToLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, two := s.joined(t)
		if err := errors.Join(one.done(t), two.done(t)); err != nil {
			t.Fatal(err)
		}
		ended := s.waits(t)
		if err := one.leave(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultGrace - time.Millisecond)
		select {
		case err := <-ended:
			t.Fatalf("Wait returns %v although worker 2 is there", err)
		default:
		}
		began := time.Now()
		if err := errors.Join(two.done(t), two.leave(t), <-ended); err != nil {
			t.Error(err)
		}
		if time.Since(began) != 0 {
			t.Errorf("Wait returns %v after the last worker has left", time.Since(began))
		}
	})
	t.Run("bound", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := startServer(t)
			one, two := s.joined(t)
			began := time.Now()
			if err := errors.Join(one.done(t), two.done(t), s.service.Wait(t.Context())); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != DefaultGrace {
				t.Errorf("Wait waits %v for workers that stay, not %v", took, DefaultGrace)
			}
		})
	})
}

// Wait names the unfinished workers when it is interrupted.
func TestWaitIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, _ := s.joined(t)
		if err := one.done(t); err != nil {
			t.Fatal(err)
		}
		cause := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := s.service.Wait(ctx); !errors.Is(err, cause) || !contains(err, "workers [2]") {
			t.Errorf("Wait returns %v", err)
		}
	})
}

// endsMeanwhile is an endpoint that still has to admit a worker when its server is told to end.
type endsMeanwhile struct {
	*roll
	entered chan struct{}
}

func (e *endsMeanwhile) Admit(ctx context.Context, _ uint16, _ netip.AddrPort, _ uint16) error {
	close(e.entered)
	<-ctx.Done()
	return ctx.Err()
}

// A worker that joins a server that is told to end gets that reason.
func TestServerThatStopsWhileItAdmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members := &endsMeanwhile{&roll{}, make(chan struct{})}
		s := startServer(t, func(c *ParameterServerConfig) { c.Members = members })
		w := s.worker(t, 1)
		ended := make(chan error)
		go func() { ended <- w.join(t) }()
		<-members.entered
		s.stop()
		wants(t, "joining", <-ended, codes.Aborted, "stopping")
	})
}

// A worker that waits for the end of a step gets the same reason.
func TestServerThatStopsWhileItCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, func(c *ParameterServerConfig) {
			c.Commit = func(ctx context.Context, _ uint64) error { <-ctx.Done(); return ctx.Err() }
		})
		one, two := s.joined(t)
		ended := make(chan error)
		for _, w := range []*worker{one, two} {
			go func() { ended <- w.barrier(t, 0) }()
		}
		synctest.Wait()
		s.stop()
		for range 2 {
			wants(t, "the barrier", <-ended, codes.Aborted, "stopping")
		}
	})
}

// A server that stops notifies its workers, and no longer uses its endpoint.
func TestStoppingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, two := s.joined(t)
		two.host.Vanish()
		time.Sleep(DefaultGrace)
		synctest.Wait()
		s.stop()
		_, err := one.stream.Recv()
		wants(t, "its stream", err, codes.Aborted, "stopping")
		s.service.Close()
		members := len(s.members)
		time.Sleep(time.Hour)
		if len(s.members) != members || s.service.barrier.failureOf() != nil {
			t.Error("a closed service goes on")
		}
		wants(t, "joining it", s.worker(t, 1).join(t), codes.Aborted)
	})
}

func TestServerStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing error
		s := startServer(t, func(c *ParameterServerConfig) {
			stats := c.Stats
			c.Stats = func(ctx context.Context) (*pb.ServerStats, error) {
				if failing != nil {
					return nil, failing
				}
				return stats(ctx)
			}
		})
		w := s.worker(t, 1)
		a, st, err := Query(t.Context(), w.host)
		if err != nil || a != nil || st.GetRows() != 3 {
			t.Errorf("statistics %v, %v, %v", a, st, err)
		}
		failing = errors.New("the loop has ended")
		_, _, err = Query(t.Context(), w.host)
		if !contains(err, "parameter server: statistics", "the loop has ended") {
			t.Errorf("without statistics: %v", err)
		}
		l := startAggregator(t)
		a, st, err = Query(t.Context(), l.host)
		if err != nil || a.GetSlots() != DefaultSlots || a.GetSenders() != DefaultSenders || st != nil {
			t.Errorf("of an aggregator: %v, %v, %v", a, st, err)
		}
		// Without an answer it is not known which of the two it is.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := Query(ctx, l.host); !errors.Is(err, context.Canceled) || !contains(err, "control service: statistics") {
			t.Errorf("without an answer: %v", err)
		}
	})
}

// Without the optional functions the server also works.
func TestParameterServerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, func(c *ParameterServerConfig) { c.Report, c.Lost, c.FirstStep = nil, nil, nil })
		one, _ := s.joined(t)
		if _, err := one.Report(t.Context(), &pb.ReportRequest{Job: 5, Sender: 1, Token: one.member.Token}); err != nil {
			t.Error(err)
		}
		if err := one.leave(t); err != nil {
			t.Error(err)
		}
		if !s.service.barrier.isRunning(1) {
			t.Error("it is given up at once")
		}
	})
	s := NewParameterServer(t.Context(), ParameterServerConfig{Log: quiet}) // without workers, nothing to wait for
	if s.barrier.step != 0 {
		t.Errorf("it begins at step %d", s.barrier.step)
	}
}

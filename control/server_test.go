package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// roll is a Members that keeps a list, as a transport.Server does.
type roll struct {
	mu      sync.Mutex
	members map[uint16]admittedAs
	history []admittedAs // all admissions
	admit   error        // returned by Admit while set
}

type admittedAs struct {
	from  netip.AddrPort
	epoch uint16
}

func (r *roll) Admit(_ context.Context, sender uint16, from netip.AddrPort, epoch uint16) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.admit != nil {
		return r.admit
	}
	if _, ok := r.members[sender]; ok {
		return fmt.Errorf("sender %d is admitted already", sender)
	}
	if r.members == nil {
		r.members = map[uint16]admittedAs{}
	}
	r.members[sender] = admittedAs{from, epoch}
	r.history = append(r.history, admittedAs{from, epoch})
	return nil
}

func (r *roll) Remove(_ context.Context, sender uint16) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.members, sender)
	return nil
}

func (r *roll) of(sender uint16) (admittedAs, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.members[sender]
	return m, ok
}

// parameterServer is a running parameter server's service for job 5 with workers
// 1 and 2.
type parameterServer struct {
	*network
	*roll
	service *ParameterServer
	stop    context.CancelFunc

	mu      sync.Mutex
	commits []uint64
	reports []string
	lost    []uint16
}

func startServer(t *testing.T, change ...func(*ParameterServerConfig)) *parameterServer {
	t.Helper()
	s := &parameterServer{roll: &roll{}}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	cfg := ParameterServerConfig{
		Job: 5, Instance: 77, Port: 19522, Dimension: 9, HotSet: hotSet, Workers: []uint16{1, 2}, Members: s.roll, Log: quiet,
		Commit: func(_ context.Context, step uint64) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.commits = append(s.commits, step)
			return nil
		},
		Report: func(sender uint16, steps uint64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reports = append(s.reports, fmt.Sprint(sender, ":", steps))
		},
		Lost: func(sender uint16) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lost = append(s.lost, sender)
		},
		Stats: func(context.Context) (*pb.ServerStats, error) { return &pb.ServerStats{Rows: 3}, nil },
	}
	for _, f := range change {
		f(&cfg)
	}
	s.service = NewParameterServer(ctx, cfg)
	t.Cleanup(s.service.Close)
	t.Cleanup(stop)
	s.network = newNetwork(t, Security{}, func(g *grpc.Server) { pb.RegisterParameterServerServer(g, s.service) })
	return s
}

// worker is a worker's access to a parameter server.
type worker struct {
	pb.ParameterServerClient
	host   *client
	id     uint32
	ip     netip.Addr
	member *pb.Membership
	stream grpc.ServerStreamingClient[pb.Membership]
}

func (s *parameterServer) worker(t *testing.T, id uint32) *worker {
	ip := netip.AddrFrom4([4]byte{192, 0, 2, 10 + byte(id)})
	host := s.dial(t, Security{}, ip.String())
	return &worker{ParameterServerClient: pb.NewParameterServerClient(host), host: host, id: id, ip: ip}
}

func (w *worker) request() *pb.JoinRequest {
	return &pb.JoinRequest{Job: 5, Sender: w.id, Ip: w.ip.AsSlice(), HotSet: hotSet}
}

func (w *worker) join(t *testing.T, change ...func(*pb.JoinRequest)) (err error) {
	t.Helper()
	req := w.request()
	for _, f := range change {
		f(req)
	}
	if w.stream, err = w.Join(t.Context(), req); err != nil {
		return err
	}
	w.member, err = w.stream.Recv()
	return err
}

func (w *worker) barrier(t *testing.T, step uint64) error {
	_, err := w.Barrier(t.Context(), &pb.BarrierRequest{Job: 5, Sender: w.id, Step: step, Token: w.member.GetToken()})
	return err
}

func (w *worker) done(t *testing.T) error {
	_, err := w.Done(t.Context(), &pb.DoneRequest{Job: 5, Sender: w.id, Token: w.member.GetToken()})
	return err
}

func (w *worker) leave(t *testing.T) error {
	_, err := w.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: w.id, Token: w.member.GetToken()})
	return err
}

// joined returns workers 1 and 2, which have joined.
func (s *parameterServer) joined(t *testing.T) (one, two *worker) {
	t.Helper()
	one, two = s.worker(t, 1), s.worker(t, 2)
	for _, w := range []*worker{one, two} {
		if err := w.join(t); err != nil {
			t.Fatal(err)
		}
	}
	return one, two
}

func sync5(c *ParameterServerConfig) { c.Sync = true }

// waits runs Wait and returns a channel with its result.
func (s *parameterServer) waits(t *testing.T) chan error {
	result := make(chan error, 1)
	go func() { result <- s.service.Wait(t.Context()) }()
	return result
}

// A worker learns what it joins, takes its steps with the others, and finishes.
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

// A worker names another port than the job's where its frames come from one.
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
			"two fields": {func(r *pb.JoinRequest) { r.Agree = map[string]string{"job.sync": "false", "model.epochs": "3"} }, codes.FailedPrecondition, []string{"worker 1", "job.sync: false here, true at the server", "model.epochs: 3 here, 2 at the server"}},
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
			codes.FailedPrecondition, "worker 2", "data: large here, small at worker 1")
		// A worker that is refused sets nothing.
		if err := s.worker(t, 2).join(t, func(r *pb.JoinRequest) { r.Agree = map[string]string{"data": "small", "new": "value"} }); err != nil {
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
		if len(s.commits)+len(s.reports)+len(s.lost) != 0 || len(s.service.barrier.unfinished()) != 2 || len(s.members) != 2 {
			t.Errorf("strangers had %v committed, %v reported; %v are lost", s.commits, s.reports, s.lost)
		}
		if _, err := two.Report(t.Context(), &pb.ReportRequest{Job: 5, Sender: 2, Token: two.member.Token, Steps: 41}); err != nil || !slices.Equal(s.reports, []string{"2:41"}) {
			t.Errorf("reports %v, %v", s.reports, err)
		}
	})
}

// A worker that the endpoint cannot admit has not joined, and is no loss.
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

// In a sync job the loss of a worker ends the others' steps, whichever way it is
// lost, and no other joins any more.
func TestLossInASyncJob(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, s *parameterServer, w *worker)
		want string
	}{
		"leaves":   {func(t *testing.T, _ *parameterServer, w *worker) { _ = w.leave(t) }, "worker 1 left before it had finished"},
		"vanishes": {func(_ *testing.T, _ *parameterServer, w *worker) { w.host.vanish(); time.Sleep(DefaultGrace) }, "worker 1 left before it had finished: it was not connected for 3s"},
		"restarts": {func(t *testing.T, s *parameterServer, w *worker) {
			w.host.vanish()
			synctest.Wait()
			wants(t, "the new self", s.worker(t, 1).join(t), codes.FailedPrecondition, "worker 1 cannot join any more", "started anew")
		}, "worker 1 left before it had finished: it was started anew"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t, sync5)
				result := s.waits(t)
				one, two := s.joined(t)
				waiting := make(chan error, 1)
				go func() { waiting <- two.barrier(t, 0) }()
				synctest.Wait()
				c.lose(t, s, one)
				wants(t, "who waits", <-waiting, codes.FailedPrecondition, c.want)
				if _, ok := s.of(1); ok {
					t.Error("the lost worker's frames are taken")
				}
				wants(t, "another", s.worker(t, 1).join(t), codes.FailedPrecondition, c.want)
				_ = two.leave(t)
				if err := <-result; err == nil || err.Error() != c.want {
					t.Errorf("Wait returns %v, want %q", err, c.want)
				}
				synctest.Wait()
				if !slices.Equal(s.lost, []uint16{1, 2}) || len(s.commits) != 0 {
					t.Errorf("lost %v, commits %v", s.lost, s.commits)
				}
			})
		})
	}
}

// A connection that breaks in a sync job, and comes back within the grace period,
// is no loss; not even while its worker waits.
func TestBrokenConnectionIsNoLoss(t *testing.T) {
	for name, harm := range map[string]func(*client){"both halves": (*client).breaks, "the client's half": (*client).halfOpens} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t, sync5)
				one, two := s.joined(t)
				epoch := one.member.Epoch
				for step := range uint64(3) {
					passed := make(chan error, 1)
					go func() {
						passed <- Repeat(t.Context(), func(context.Context) error { return one.barrier(t, step) })
					}()
					synctest.Wait()
					harm(one.host)
					time.Sleep(DefaultGrace - time.Second)
					token := one.member.Token
					if err := one.join(t, func(r *pb.JoinRequest) { r.Token = token }); err != nil {
						t.Fatal(err)
					}
					if err := two.barrier(t, step); err != nil {
						t.Error(err)
					}
					if err := <-passed; err != nil {
						t.Error(err)
					}
				}
				if one.member.Epoch != epoch || len(s.history) != 2 || len(s.commits) != 3 {
					t.Errorf("epoch %d became %d; admissions %v; commits %v", epoch, one.member.Epoch, s.history, s.commits)
				}
				if err := errors.Join(one.done(t), two.done(t), s.service.Wait(t.Context())); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// In an asynchronous job a lost worker may join anew, with an epoch of its own,
// as long as it is waited for.
func TestLostWorkerJoinsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, func(c *ParameterServerConfig) {
			c.Rejoin = 20 * time.Second
			c.FirstStep = func(sender uint16) uint64 { return 10 * uint64(sender) }
		})
		result := s.waits(t)
		one, two := s.joined(t)
		epoch := one.member.Epoch
		for round, absent := range []time.Duration{0, DefaultGrace - time.Second, DefaultGrace + 19*time.Second} {
			one.host.vanish()
			synctest.Wait()
			time.Sleep(absent)
			one = s.worker(t, 1)
			if err := one.join(t); err != nil {
				t.Fatal(err)
			}
			if want := uint16(epoch) + uint16(round) + 2; uint16(one.member.Epoch) != want || one.member.FirstStep != 10 {
				t.Errorf("it joins anew as %v, want epoch %d", one.member, want)
			}
			if as, _ := s.of(1); uint32(as.epoch) != one.member.Epoch {
				t.Errorf("its frames are taken in epoch %d", as.epoch)
			}
		}
		time.Sleep(time.Hour) // it is not given up
		synctest.Wait()
		if !slices.Equal(s.lost, []uint16{1, 1, 1}) {
			t.Errorf("lost %v, want worker 1, thrice", s.lost)
		}
		if err := errors.Join(one.done(t), two.done(t), <-result); err != nil {
			t.Error(err)
		}
	})
}

// A worker that does not come back is given up; the others finish, and then the
// server knows who is missing.
func TestWorkerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		result := s.waits(t)
		one, two := s.joined(t)
		one.host.vanish()
		synctest.Wait()
		time.Sleep(DefaultGrace + DefaultRejoin - time.Millisecond)
		if err := s.service.barrier.failure(); err != nil {
			t.Errorf("given up too early: %v", err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		want := "worker 1 left before it had finished: it was not connected for 3s, and it did not join anew within 30s"
		if err := s.service.barrier.failure(); err == nil || err.Error() != want {
			t.Errorf("given up: %v, want %q", err, want)
		}
		wants(t, "too late", s.worker(t, 1).join(t), codes.FailedPrecondition, "cannot join any more", want)
		// Worker 2 may still be lost, and join anew.
		if err := two.leave(t); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := two.join(t); err != nil {
			t.Fatal(err)
		}
		if len(result) != 0 {
			t.Fatal("Wait returns while worker 2 runs")
		}
		if err := two.done(t); err != nil {
			t.Error(err)
		}
		if err := <-result; err == nil || err.Error() != want {
			t.Errorf("Wait returns %v, want %q", err, want)
		}
	})
}

// A finished worker is not lost when its connection ends, and may come again.
func TestFinishedWorkerIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, two := s.joined(t)
		if err := one.done(t); err != nil {
			t.Fatal(err)
		}
		one.host.vanish()
		time.Sleep(time.Hour)
		if _, ok := s.of(1); ok || len(s.lost) != 0 {
			t.Errorf("lost %v", s.lost)
		}
		if err := s.worker(t, 1).join(t); err != nil {
			t.Error(err)
		}
		if err := errors.Join(two.done(t), s.service.Wait(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// Wait names those that have not finished when it is cut short.
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

// A server that stops tells its workers, and touches its endpoint no more.
func TestStoppingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		one, two := s.joined(t)
		two.host.vanish()
		time.Sleep(DefaultGrace)
		synctest.Wait()
		s.stop()
		_, err := one.stream.Recv()
		wants(t, "its stream", err, codes.Aborted, "stopping")
		s.service.Close()
		members := len(s.members)
		time.Sleep(time.Hour)
		if len(s.members) != members || s.service.barrier.failure() != nil {
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
	})
}

// Without the optional functions the server works, too.
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

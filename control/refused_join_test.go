// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// twoServers is a job with an aggregator and two parameter servers, of which worker 1 is a member.
type twoServers struct {
	*services
	second *roll
	served []*ParameterServer // server 0 and server 1
	lost   chan uint16
	first  *Membership // of worker 1
	two    JoinConfig  // of worker 2
}

// startTwoServers starts them; trainings are those that they continue, by index.
func startTwoServers(t *testing.T, trainings ...string) *twoServers {
	t.Helper()
	j := &twoServers{second: &roll{}, lost: make(chan uint16, 8)}
	settings := func(c *ParameterServerConfig, index int) {
		c.Agree = map[string]string{IndexField: strconv.Itoa(index), "model.batch": "100"}
		if index < len(trainings) && trainings[index] != "" {
			c.Agree[TrainingField] = trainings[index]
		}
		c.Lost = func(worker uint16) { j.lost <- worker }
	}
	j.services = startServices(t, func(c *ParameterServerConfig) {
		settings(c, 0)
		c.Workers = []uint16{1, 2, 3}
	})
	cfg := ParameterServerConfig{
		Job: 5, Port: 19522, Dimension: 1, HotSet: hotSet, Workers: []uint16{1, 2}, Members: j.second, Sync: true, Log: quiet,
		Commit: func(context.Context, uint64) error { return nil },
	}
	settings(&cfg, 1)
	service := NewParameterServer(t.Context(), cfg)
	t.Cleanup(service.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := access.NewServer(access.Security{})
	pb.RegisterParameterServerServer(server, service)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	j.served = []*ParameterServer{j.service, service}
	j.join.MoreServers = []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()}
	j.join.Agree = map[string]string{"model.batch": "100"}
	j.two = j.join
	j.two.Worker, j.two.From = 2, netip.MustParseAddrPort("127.0.0.1:19522")
	j.join.Lost = func(why error) {
		if t.Context().Err() == nil { // else the services end with the test
			t.Errorf("worker 1 has lost the job: %v", why)
		}
	}
	if j.first, err = Join(t.Context(), j.join); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.first.LeaveAs(Departure{Unused: true}) })
	return j
}

// state is what a refused worker must not change: the values agreed on, by server, and the epochs.
func (j *twoServers) state() (agreed []map[string]string, epochs []uint16) {
	for _, s := range j.served {
		agreed = append(agreed, s.Agreed())
		s.roster.mu.Lock()
		epochs = append(epochs, s.epoch)
		s.roster.mu.Unlock()
	}
	return agreed, append(epochs, j.daemon.nextEpoch(5))
}

// A worker that any of a job's services refuses changes nothing at the others: they do not admit
// it, agree on nothing with it, use no epoch for it, and do not lose it.
func TestRefusedWorkerChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, j *twoServers)
		want   string
	}{
		"at the second server, which does not list it": {func(_ *testing.T, j *twoServers) { j.two.Worker = 3 }, "worker 3 is not in the cluster configuration"},
		"at the second server, for the order of its list": {func(_ *testing.T, j *twoServers) {
			j.two.MoreServers = []netip.AddrPort{j.two.Server}
		}, IndexField + ": 1 here, 0 at the server"},
		"at the second server, for a value that only it has": {func(_ *testing.T, j *twoServers) {
			j.served[1].agree.values["data"] = agreed{value: "mine", whose: theServer}
			j.two.Agree = map[string]string{"data": "other", "model.batch": "100"}
		}, "data: other here, mine at the server"},
		"at the second server, which cannot take its frames": {func(_ *testing.T, j *twoServers) {
			j.second.admit = errors.New("no room for another sender")
		}, "no room for another sender"},
		"at the aggregator, for its hot set":    {func(_ *testing.T, j *twoServers) { j.daemon.jobs[5].spec.HotSet = []byte("another") }, "hot set differs from job 5's"},
		"at the aggregator, which has no place": {func(t *testing.T, j *twoServers) { j.fill(t) }, "all 64 places that the job reserved are taken"},
		"at the aggregator, which has another instance": {func(_ *testing.T, j *twoServers) {
			g := j.served[0].generation
			g.mu.Lock() // the first worker's stream reads it
			defer g.mu.Unlock()
			g.instance++
			j.two.Limit = time.Second // for which it asks again
		}, "the aggregator has instance"},
	} {
		t.Run(name, func(t *testing.T) {
			j := startTwoServers(t)
			j.two.Agree = map[string]string{"model.batch": "100", "data": "worker 2's"}
			c.change(t, j)
			agreed, epochs := j.state()
			if _, err := Join(t.Context(), j.two); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			again, epochsNow := j.state()
			if !slices.EqualFunc(agreed, again, maps.Equal[map[string]string, map[string]string]) {
				t.Errorf("agreed %v, after it %v", agreed, again)
			}
			if j.second.admit != nil { // the first server has admitted it, and has used an epoch
				epochsNow[0]--
			}
			if !slices.Equal(epochs, epochsNow) {
				t.Errorf("epochs %v, after it %v", epochs, epochsNow)
			}
			for i, s := range j.served {
				if n := s.roster.admissionCount(); n != 1 {
					t.Errorf("server %d has %d members", i, n)
				}
				if err := s.barrier.failureOf(); err != nil {
					t.Errorf("server %d: %v", i, err)
				}
			}
			select {
			case worker := <-j.lost:
				t.Errorf("worker %d is lost", worker)
			default:
			}
		})
	}
}

// fill takes all places of the job at the aggregator.
func (j *twoServers) fill(t *testing.T) {
	t.Helper()
	conn, err := access.Dial(t.Context(), access.TheSwitch(), j.join.Aggregator, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for id := range DefaultJobSenders - 1 {
		req := j.join.request()
		req.Sender = uint32(100 + id)
		if _, _, err := joinAs(t.Context(), pb.NewAggregatorClient(conn), req); err != nil {
			t.Fatal(err)
		}
	}
}

// A worker that all have admitted, and that then cannot begin, leaves as if it had not joined:
// another configuration of it may join instead.
func TestUnusedAdmissionLeavesNothing(t *testing.T) {
	j := startTwoServers(t)
	j.two.Agree = map[string]string{"model.batch": "100", "data": "a file"}
	agreed, _ := j.state()
	m, err := Join(t.Context(), j.two)
	if err != nil {
		t.Fatal(err)
	}
	m.LeaveAs(Departure{Unused: true})
	if again, _ := j.state(); !slices.EqualFunc(agreed, again, maps.Equal[map[string]string, map[string]string]) {
		t.Errorf("agreed %v, after it %v", agreed, again)
	}
	if err := j.served[0].barrier.failureOf(); err != nil {
		t.Error(err)
	}
	j.two.Agree["data"] = "another file"
	if m, err = Join(t.Context(), j.two); err != nil {
		t.Fatal(err)
	}
	m.LeaveAs(Departure{Unused: true})
}

// A worker that was lost, and comes back without beginning, is given up when it would have been.
func TestUnusedAdmissionDoesNotProlongALoss(t *testing.T) {
	s := startServer(t, func(c *ParameterServerConfig) { c.Rejoin = 300 * time.Millisecond })
	result := s.waits(t)
	one, two := s.joined(t)
	if err := one.leave(t); err != nil {
		t.Fatal(err)
	}
	again := s.worker(t, 1)
	if err := again.join(t); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: again.member.Token, Unused: true}); err != nil {
		t.Fatal(err)
	}
	if err := two.done(t); err != nil {
		t.Fatal(err)
	}
	_ = two.leave(t)
	if err := <-result; !contains(err, "worker 1 left before it had finished, and it did not join again within 300ms") {
		t.Errorf("Wait returns %v", err)
	}
	s.mu.Lock() // its record of the loss may be late, but there is no second one
	defer s.mu.Unlock()
	if len(s.lost) > 1 {
		t.Errorf("lost %v", s.lost)
	}
}

// A lost worker is given up at the end of its time, however often it joins meanwhile and leaves
// without beginning: each time it is as if it had not joined. One that was away stays away, without
// a limit.
func TestUnusedAdmissionsLeaveTheTimeAsItWas(t *testing.T) {
	for name, e := range map[string]struct {
		how  *pb.LeaveRequest
		held time.Duration    // by each admission before it leaves unused
		left bool             // given up at the end of the time
		once *pb.LeaveRequest // how it left, and came back, before
	}{
		"lost":                                {&pb.LeaveRequest{}, time.Second, true, nil},
		"lost, and unused beyond the time":    {&pb.LeaveRequest{}, DefaultRejoin / 2, true, nil},
		"away":                                {&pb.LeaveRequest{Back: true}, time.Second, false, nil},
		"away, and unused for a longer while": {&pb.LeaveRequest{Back: true}, DefaultRejoin / 2, false, nil},
		"lost after it was away":              {&pb.LeaveRequest{}, time.Second, true, &pb.LeaveRequest{Back: true}},
		"away after it was lost":              {&pb.LeaveRequest{Back: true}, time.Second, false, &pb.LeaveRequest{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t)
				w, _ := s.joined(t)
				leaves := func(how *pb.LeaveRequest) {
					t.Helper()
					how.Job, how.Sender, how.Token = 5, 1, w.member.Token
					if _, err := w.Leave(t.Context(), how); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
				}
				if e.once != nil {
					leaves(e.once)
					if err := w.join(t); err != nil {
						t.Fatal(err)
					}
				}
				leaves(e.how)
				end := time.Now().Add(DefaultRejoin)
				for time.Now().Before(end.Add(-DefaultRejoin / 4)) {
					time.Sleep(DefaultRejoin / 4)
					if err := w.join(t); err != nil {
						t.Fatal(err)
					}
					time.Sleep(e.held)
					if !s.service.barrier.isRunning(1) {
						t.Fatal("it was given up while it was there")
					}
					leaves(&pb.LeaveRequest{Unused: true})
				}
				if left := time.Until(end); left > 0 {
					time.Sleep(left - time.Millisecond)
					if !s.service.barrier.isRunning(1) {
						t.Error("it was given up before its time")
					}
					time.Sleep(time.Millisecond)
				}
				synctest.Wait()
				if left := !s.service.barrier.isRunning(1); left != e.left {
					t.Errorf("given up at the end of the time: %v, want %v", left, e.left)
				}
			})
		})
	}
}

// A job that cannot be created uses no epoch of its id: otherwise calls could bring an old epoch
// back.
func TestRefusedJobUsesNoEpoch(t *testing.T) {
	l := startAggregator(t, func(c *AggregatorConfig) { c.Plane = fullPlane{c.Plane} })
	before := l.service.nextEpoch(5)
	if _, err := l.client.CreateJob(t.Context(), spec()); !contains(err, aggregator.ErrTooManySlots.Error()) {
		t.Errorf("a job that the data plane refuses: %v", err)
	}
	if now := l.service.nextEpoch(5); now != before {
		t.Errorf("the next epoch was %d, and is %d", before, now)
	}

	l = startAggregator(t)
	l.create(t, spec())
	before = l.service.nextEpoch(5)
	_, err := l.client.CreateJob(t.Context(), spec())
	wants(t, "a job that exists", err, codes.AlreadyExists, "job 5 exists")
	if now := l.service.nextEpoch(5); now != before {
		t.Errorf("the next epoch was %d, and is %d", before, now)
	}
	l.join(t)
	if now := l.service.nextEpoch(5); now != before+1 {
		t.Errorf("the next epoch was %d, and is %d after an admission", before, now)
	}
}

// fullPlane is a data plane without room.
type fullPlane struct{ aggregator.Plane }

func (fullPlane) AddJob(aggregator.JobConfig) error { return aggregator.ErrTooManySlots }

// A worker that waits for the end of an earlier admission at one service is a member of none, and
// fails when another ends.
func TestCheckFailsWithTheOtherService(t *testing.T) {
	s := startServices(t)
	former := s.join
	conn, err := access.Dial(t.Context(), access.TheSwitch(), s.join.Aggregator, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := joinAs(t.Context(), pb.NewAggregatorClient(conn), former.request()); err != nil {
		t.Fatal(err)
	}
	s.join.Log = slog.New(slog.NewTextHandler(whenTaken(func() {
		if _, atServer := s.senders(t); atServer != 0 {
			t.Error("the server has admitted the worker")
		}
		s.server.Stop()
	}), nil))
	if m, err := Join(t.Context(), s.join); m != nil || !contains(err, "parameter server at ", "join: the connection broke") {
		t.Errorf("%v, %v", m, err)
	}
}

// Services of a release without the call Check admit a worker as they did.
func TestJoinWithoutCheck(t *testing.T) {
	s := startServices(t)
	s.join.Dial = []grpc.DialOption{grpc.WithUnaryInterceptor(withoutCheck)}
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	m.Leave()
}

// The servers of a job agree on one identity of the training: that of those which continue one,
// whichever these are, and otherwise a new one. A server that continues another keeps that, and the
// worker is told, so that it can refuse.
func TestServersAgreeOnOneTraining(t *testing.T) {
	for _, has := range [][2]string{{"", ""}, {"a", ""}, {"", "a"}, {"a", "a"}, {"a", "b"}} {
		j := startTwoServers(t, has[:]...)
		if !slices.Equal(j.first.Trainings, has[:]) {
			t.Errorf("%q: the worker is told %q", has, j.first.Trainings)
		}
		agreed, _ := j.state()
		got := [2]string{agreed[0][TrainingField], agreed[1][TrainingField]}
		want := [2]string{cmp.Or(has[0], has[1], got[0]), cmp.Or(has[1], has[0], got[0])}
		if got != want || got[0] == "" {
			t.Errorf("%q: they agree on %q, want %q", has, got, want)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// reborn is a parameter server that is started again without that its peers' connections break.
type reborn struct {
	pb.UnimplementedParameterServerServer
	now atomic.Pointer[ParameterServer]
}

func (r *reborn) Check(ctx context.Context, req *pb.JoinRequest) (*pb.Membership, error) {
	return r.now.Load().Check(ctx, req)
}

func (r *reborn) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Membership]) error {
	return r.now.Load().Join(req, stream)
}

func (r *reborn) Leave(ctx context.Context, req *pb.LeaveRequest) (*pb.LeaveResponse, error) {
	return r.now.Load().Leave(ctx, req)
}

// startReborn puts a server that can be started again in the place of that of services. again
// starts it.
func (s *services) startReborn(t *testing.T) (again func() *ParameterServer) {
	t.Helper()
	r := &reborn{}
	r.now.Store(s.service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := access.NewServer(access.Security{})
	pb.RegisterParameterServerServer(server, r)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	s.join.Server = listener.Addr().(*net.TCPAddr).AddrPort()
	return func() *ParameterServer {
		cfg := s.service.cfg
		cfg.Members = &roll{}
		next := NewParameterServer(t.Context(), cfg)
		t.Cleanup(next.Close)
		r.now.Store(next)
		return next
	}
}

// A worker has asked a server, which is started again, and joins the new one before all others:
// nothing that it was told by the earlier one becomes what the others have to agree with, even if
// it leaves at once.
func TestFirstWorkerHasAskedAnEarlierServer(t *testing.T) {
	s := startServices(t)
	again := s.startReborn(t)
	one, two := s.join, s.join
	two.Worker, two.From = 2, netip.MustParseAddrPort("127.0.0.1:19523")
	var next *ParameterServer
	asked, goOn, joined := make(chan struct{}), make(chan struct{}), make(chan *Membership, 1)
	two.Begin = func([]string, []uint64) error {
		if next == nil {
			next = again()
			close(asked)
			<-goOn
		}
		return nil
	}
	go func() {
		m, err := Join(t.Context(), two)
		if err != nil {
			t.Errorf("worker 2: %v", err)
		}
		joined <- m
	}()
	<-asked
	var first *Membership                        // of worker 2
	one.Begin = func([]string, []uint64) error { // it has asked the new server
		close(goOn)
		first = <-joined
		return nil
	}
	one.Dial = []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if first != nil && method == pb.ParameterServer_Check_FullMethodName { // it was refused
			first.LeaveAs(Departure{Unused: true})
		}
		return call(ctx, method, req, reply, cc, opts...)
	})}
	m, err := Join(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	defer first.Leave()
	if got := next.Agreed()[TrainingField]; got != next.training {
		t.Errorf("they agree on the training %s, and that of this server is %s", got, next.training)
	}
}

// A server admits who has asked it, and who does not say whom it has asked: a worker of an earlier
// release.
func TestServerAdmitsWhoHasAskedIt(t *testing.T) {
	s := startServer(t)
	one, two := s.worker(t, 1), s.worker(t, 2)
	terms, err := one.Check(t.Context(), one.request())
	if err != nil || terms.Run == 0 {
		t.Fatalf("%v, %v", terms, err)
	}
	run := func(n uint64) func(*pb.JoinRequest) { return func(r *pb.JoinRequest) { r.Run = n } }
	err = one.join(t, run(terms.Run+1))
	wants(t, "another run", err, codes.FailedPrecondition, "worker 1 has asked this server before it was started again")
	if !isRestarted(err) {
		t.Errorf("the answer does not say that the server was started again: %v", err)
	}
	if err := one.join(t, run(terms.Run)); err != nil {
		t.Error(err)
	}
	if err := two.join(t); err != nil {
		t.Error(err)
	}
}

// onAnswers makes connections whose answers f may change, or replace by an error.
func onAnswers(f func(reply any) error) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
		cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return cmp.Or(call(ctx, method, req, reply, cc, opts...), f(reply))
	})}
}

// A worker that has checked a server, whichever of them, which is started again before the worker
// joins it has something of the earlier instance: it joins the new one.
func TestServerIsRestartedWhileAWorkerJoins(t *testing.T) {
	for index, name := range []string{"the first", "the second"} {
		t.Run(name, func(t *testing.T) {
			trainings := []string{"a", "b"}
			j := startTwoServers(t, trainings...)
			checks := 0 // of the servers
			j.two.Dial = onAnswers(func(reply any) error {
				switch answer := reply.(type) {
				case *pb.Membership:
					if checks == index { // the earlier instance continued the training of the other server
						answer.Training = trainings[1-index]
						if index == 0 {
							answer.Instance++
						}
					}
					checks++
				case *pb.Admission:
					if checks == 2 && index == 0 {
						answer.Instance++
					}
				}
				return nil
			})
			m, err := joinOnce(t.Context(), j.two)
			if !errors.Is(err, errRestarted) || !contains(err, "training: "+trainings[1-index]+" here, "+trainings[index]) {
				t.Fatalf("%v, %v", m, err)
			}
			checks = 0
			if m, err = Join(t.Context(), j.two); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(m.Trainings, trainings) {
				t.Errorf("the worker is told %q", m.Trainings)
			}
			m.LeaveAs(Departure{Unused: true})
		})
	}
}

// The server of a job creates it anew between its own answer to a worker's question and the
// aggregator's: the worker, which has sent nothing, joins again, also if an outage has taken its
// time.
func TestJobIsCreatedAnewWhileAWorkerJoins(t *testing.T) {
	s := startServices(t)
	answers, outage := 0, time.Duration(0) // of the aggregator
	s.join.Dial = onAnswers(func(reply any) error {
		if admission, ok := reply.(*pb.Admission); ok {
			if answers%2 == 0 {
				admission.Instance++
				time.Sleep(outage)
			}
			answers++
		}
		return nil
	})
	m, err := joinOnce(t.Context(), s.join)
	if !errors.Is(err, errRestarted) || !contains(err, "start this worker again") {
		t.Fatalf("%v, %v", m, err)
	}
	for _, s.join.Limit = range []time.Duration{0, time.Second} {
		answers, outage = 0, s.join.Limit
		if m, err = Join(t.Context(), s.join); err != nil {
			t.Fatal(err)
		}
		m.LeaveAs(Departure{Unused: true})
	}
}

// A worker asks all services again while one of them keeps its earlier admission. A server that
// continued a training when it was asked first, and was started again without its checkpoint since,
// continues none: what it said first must not become the identity of the new training.
func TestServerStartsAnewWhileAWorkerWaits(t *testing.T) {
	j := startTwoServers(t)
	checks := 0 // of the servers
	j.two.Dial = onAnswers(func(reply any) error {
		switch answer := reply.(type) {
		case *pb.Membership:
			answer.Training, answer.NewTraining = "new", true
			if checks++; checks == 2 { // the second server, for the first time
				answer.Training, answer.NewTraining = "given up", false
			}
		case *pb.Admission:
			if checks == 2 {
				return status.Error(codes.AlreadyExists, "the worker was in the job just now")
			}
		}
		return nil
	})
	begun := errors.New("begun")
	j.two.Begin = func(trainings []string, _ []uint64) error {
		if !slices.Equal(trainings, []string{"", ""}) {
			t.Errorf("the worker is told %q", trainings)
		}
		return begun
	}
	if _, err := Join(t.Context(), j.two); !errors.Is(err, begun) || checks != 4 {
		t.Errorf("%v after %d questions", err, checks)
	}
}

// A worker that comes back to a server which was started again learns that its admission has ended,
// and not that the two trainings differ.
func TestAdmissionOfAnEarlierServer(t *testing.T) {
	s := startServer(t)
	one, two := s.worker(t, 1), s.worker(t, 2)
	training := func(name string) func(*pb.JoinRequest) {
		return func(r *pb.JoinRequest) { r.Agree = map[string]string{TrainingField: name} }
	}
	if err := one.join(t, training("of this server")); err != nil {
		t.Fatal(err)
	}
	err := two.join(t, training("of the earlier one"), func(r *pb.JoinRequest) { r.Token = []byte("of the earlier one") })
	wants(t, "with a token", err, codes.PermissionDenied, "its admission has ended")
	wants(t, "without", two.join(t, training("of the earlier one")), codes.FailedPrecondition, "configuration differs")
}

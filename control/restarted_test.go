// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

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

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// opaque is a context whose end package context has to watch with a goroutine, for as
// long as a context that is derived from it lasts.
type opaque struct{ context.Context }

func (opaque) Value(any) any { return nil }

// A server that fails after it has the job, and before it trains, ends what it began,
// though the context that it was started with goes on.
func TestServerThatFailsAtItsStartLeavesNothing(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.Checkpoint = "/proc/self/weights.libra" // where root, too, cannot write
	startSwitch(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := RunServer(opaque{ctx}, Env{Config: c, Log: testLog(t)})
	if err == nil || !strings.Contains(err.Error(), "cannot be written") {
		t.Fatalf("the server ends with %v", err)
	}
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		text := string(stacks[:runtime.Stack(stacks, true)])
		if !strings.Contains(text, "propagateCancel") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a context of the server lasts:\n%s", text)
		}
	}
}

// refuser is a server's control service that passes calls on, and refuses a worker's
// last.
type refuser struct {
	pb.UnimplementedParameterServerServer
	to pb.ParameterServerClient
}

func (r refuser) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Membership]) error {
	there, err := r.to.Join(stream.Context(), req)
	for err == nil {
		var m *pb.Membership
		if m, err = there.Recv(); err == nil {
			err = stream.Send(m)
		}
	}
	return err
}

func (r refuser) Leave(ctx context.Context, req *pb.LeaveRequest) (*pb.LeaveResponse, error) {
	return r.to.Leave(ctx, req)
}

func (r refuser) Barrier(ctx context.Context, req *pb.BarrierRequest) (*pb.BarrierResponse, error) {
	return r.to.Barrier(ctx, req)
}

func (r refuser) Done(context.Context, *pb.DoneRequest) (*pb.DoneResponse, error) {
	return nil, status.Error(codes.PermissionDenied, "not with this token")
}

// quitter stops when its worker is about to finish.
type quitter struct {
	refuser
	done chan struct{}
}

func (q quitter) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Membership]) error {
	there, err := q.to.Join(stream.Context(), req)
	if err != nil {
		return err
	}
	forwarded := make(chan error, 1)
	go func() { forwarded <- forward(there, stream) }()
	select {
	case err := <-forwarded:
		return err
	case <-q.done:
		return status.Error(codes.Aborted, "the service is stopping")
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// forward passes on what a server tells a worker, of its marks, too.
func forward(from grpc.ServerStreamingClient[pb.Membership], to grpc.ServerStreamingServer[pb.Membership]) error {
	for {
		m, err := from.Recv()
		if err == nil {
			err = to.Send(m)
		}
		if err != nil {
			return err
		}
	}
}

func (q quitter) Done(ctx context.Context, _ *pb.DoneRequest) (*pb.DoneResponse, error) {
	close(q.done)
	<-ctx.Done()
	return nil, ctx.Err()
}

// A worker whose server does not take its end for one has not succeeded: the server
// counts it as lost.
func TestWorkerThatCannotFinishFails(t *testing.T) {
	for want, service := range map[string]func(refuser) pb.ParameterServerServer{
		"parameter server: done: not with this token":                     func(r refuser) pb.ParameterServerServer { return r },
		"parameter server: withdrew this worker: the service is stopping": func(r refuser) pb.ParameterServerServer { return quitter{r, make(chan struct{})} },
	} {
		cannotFinish(t, service, want)
	}
}

func cannotFinish(t *testing.T, service func(refuser) pb.ParameterServerServer, want string) {
	c := newCluster(t, 1)
	defer runSwitch(t, c, testLog(t))()
	conn, err := grpc.NewClient("passthrough:///"+c.Server.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l, err := net.Listen("tcp", netip.AddrPortFrom(c.Workers[0].Address, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pb.RegisterParameterServerServer(s, service(refuser{to: pb.NewParameterServerClient(conn)}))
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := RunServer(t.Context(), Env{Config: c, Log: testLog(t).With("process", "ps"), Ready: func() { close(ready) }})
		ended <- err
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	theirs := *c
	theirs.Server.Control = l.Addr().(*net.TCPAddr).AddrPort()
	result, err := RunWorker(t.Context(), Env{Config: &theirs, Log: testLog(t).With("process", "worker 1")}, WorkerOptions{ID: 1})
	if result != nil || err == nil || err.Error() != want {
		t.Errorf("the worker returns %v, %v, want %q", result, err, want)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "worker 1 left before it had finished") {
		t.Errorf("the server ends with %v", err)
	}
}

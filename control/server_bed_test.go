// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
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
		Report: func(_ context.Context, sender uint16, r *pb.ReportRequest) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reports = append(s.reports, fmt.Sprint(sender, ":", r.Steps, ":", r.Epochs, ":", r.Ends))
			return nil
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
	s.network = newNetwork(t, access.Security{}, func(g *grpc.Server) { pb.RegisterParameterServerServer(g, s.service) })
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
	host := s.dial(t, access.Security{}, ip.String())
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

// patience limits a call that gets no answer. In a bubble, where it costs no time, the test then
// fails instead of hanging: connections that live have timers, so that no deadlock is seen.
const patience = time.Hour

func (w *worker) barrier(t *testing.T, step uint64) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := w.Barrier(ctx, &pb.BarrierRequest{Job: 5, Sender: w.id, Step: step, Token: w.member.GetToken()})
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

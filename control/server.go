package control

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Members is where a parameter server admits the workers whose frames it
// takes; a transport.Server is one.
type Members interface {
	Admit(ctx context.Context, sender uint16, from netip.AddrPort, epoch uint16) error
	Remove(ctx context.Context, sender uint16) error
}

// ParameterServerConfig configures a [ParameterServer].
type ParameterServerConfig struct {
	Job       uint16
	Epoch     uint16
	Port      uint16 // that the workers' frames come from
	Dimension int
	HotSet    []byte   // fingerprint that every worker must present
	Workers   []uint16 // the senders that take part
	Members   Members
	// Instance of the job at the aggregator.
	Instance uint64
	// Agree is what workers must agree on with this server, field by field of the
	// cluster configuration. Workers may have more fields; these must be equal
	// among them.
	Agree map[string]string
	// FirstStep returns the step at which a worker begins, because earlier
	// ones are in the store already; nil means 0. Barriers begin at that of
	// the first worker.
	FirstStep func(sender uint16) uint64
	// Report, if not nil, is told how many steps a worker has taken.
	Report func(sender uint16, steps uint64)
	// Commit is called when all workers have arrived at a barrier: it must
	// return when everything that was acknowledged to them is applied.
	Commit func(ctx context.Context, step uint64) error
	// Stats fills in what only the server's store knows.
	Stats func(ctx context.Context) (*pb.ServerStats, error)
	Log   *slog.Logger
}

// ParameterServer is a parameter server's control service.
type ParameterServer struct {
	pb.UnimplementedParameterServerServer
	cfg     ParameterServerConfig
	ctx     context.Context
	barrier *barrier

	mu     sync.Mutex
	joined map[uint16]bool
	agree  *agreement
}

// NewParameterServer returns the service for one job; ctx bounds its commits.
func NewParameterServer(ctx context.Context, cfg ParameterServerConfig) *ParameterServer {
	s := &ParameterServer{cfg: cfg, ctx: ctx, joined: map[uint16]bool{}, agree: newAgreement(cfg.Agree)}
	if cfg.FirstStep == nil {
		s.cfg.FirstStep = func(uint16) uint64 { return 0 }
	}
	// A commit belongs to all workers, so it runs under the server's context,
	// not under that of the worker that happened to arrive last.
	s.barrier = newBarrier(cfg.Workers, func(step uint64) error { return cfg.Commit(ctx, step) })
	if len(cfg.Workers) > 0 {
		s.barrier.step = s.cfg.FirstStep(cfg.Workers[0])
	}
	return s
}

// Wait returns when every worker has finished or left; the error says which
// worker left before it had finished.
func (s *ParameterServer) Wait(ctx context.Context) error {
	select {
	case <-s.barrier.idle:
		return s.barrier.failure()
	case <-ctx.Done():
		return fmt.Errorf("workers %v have not finished: %w", s.barrier.unfinished(), context.Cause(ctx))
	}
}

// Join implements the service.
func (s *ParameterServer) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Membership]) error {
	id := uint16(req.Sender)
	ip, ok := netip.AddrFromSlice(req.Ip)
	switch {
	case req.Job != uint32(s.cfg.Job):
		return status.Errorf(codes.NotFound, "job %d is not served here; this server serves job %d", req.Job, s.cfg.Job)
	case req.Sender != uint32(id) || !slices.Contains(s.cfg.Workers, id):
		return status.Errorf(codes.PermissionDenied, "worker %d is not in the cluster configuration, which has %v", req.Sender, s.cfg.Workers)
	case !ok:
		return status.Errorf(codes.InvalidArgument, "worker %d: an IP address of %d bytes", id, len(req.Ip))
	case !bytes.Equal(req.HotSet, s.cfg.HotSet):
		return status.Errorf(codes.FailedPrecondition, "worker %d has another hot set than the server: copy the server's hot-set file to the worker", id)
	}
	if err := s.agree.check(id, req.Agree); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if !s.enter(id) {
		return status.Errorf(codes.AlreadyExists, "worker %d is in the job already", id)
	}
	defer s.exit(id)
	if err := s.cfg.Members.Admit(stream.Context(), id, netip.AddrPortFrom(ip, s.cfg.Port), s.cfg.Epoch); err != nil {
		return status.Errorf(codes.Internal, "worker %d: %v", id, err)
	}
	s.cfg.Log.Debug("worker joined", "worker", id, "address", ip)
	if err := stream.Send(&pb.Membership{
		Epoch: uint32(s.cfg.Epoch), Dimension: uint32(s.cfg.Dimension), Workers: uint32(len(s.cfg.Workers)),
		Instance: s.cfg.Instance, FirstStep: s.cfg.FirstStep(id),
	}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
	case <-s.ctx.Done():
		return status.Error(codes.Unavailable, "the parameter server is stopping")
	}
	return nil
}

func (s *ParameterServer) enter(id uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joined[id] {
		return false
	}
	s.joined[id] = true
	return true
}

func (s *ParameterServer) exit(id uint16) {
	if err := s.cfg.Members.Remove(s.ctx, id); err != nil && s.ctx.Err() == nil {
		s.cfg.Log.Warn("cannot withdraw a worker", "worker", id, "error", err)
	}
	if slices.Contains(s.barrier.unfinished(), id) && s.ctx.Err() == nil {
		s.cfg.Log.Warn("worker left before it had finished", "worker", id)
	}
	s.barrier.leave(id)
	s.mu.Lock()
	delete(s.joined, id)
	s.mu.Unlock()
}

// Barrier implements the service.
func (s *ParameterServer) Barrier(ctx context.Context, req *pb.BarrierRequest) (*pb.BarrierResponse, error) {
	if err := s.barrier.wait(ctx, uint16(req.Sender), req.Step); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &pb.BarrierResponse{}, nil
}

// Report implements the service.
func (s *ParameterServer) Report(_ context.Context, req *pb.ReportRequest) (*pb.ReportResponse, error) {
	if s.cfg.Report != nil {
		s.cfg.Report(uint16(req.Sender), req.Steps)
	}
	return &pb.ReportResponse{}, nil
}

// Done implements the service.
func (s *ParameterServer) Done(_ context.Context, req *pb.DoneRequest) (*pb.DoneResponse, error) {
	s.barrier.finish(uint16(req.Sender))
	return &pb.DoneResponse{}, nil
}

// Stats implements the service.
func (s *ParameterServer) Stats(ctx context.Context, _ *pb.StatsRequest) (*pb.ServerStats, error) {
	stats, err := s.cfg.Stats(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return stats, nil
}

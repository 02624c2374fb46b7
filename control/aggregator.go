package control

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// AggregatorConfig configures an [Aggregator].
type AggregatorConfig struct {
	Plane aggregator.Plane
	// Stripes is the largest number of stripes that jobs may send in a frame.
	Stripes int
	// Dense says whether jobs may send dense frames.
	Dense bool
	// Reach, if not nil, is told the MAC address of each host that joins, so
	// that the data plane can send frames between hosts on by itself.
	Reach func(mac [6]byte) error
	Log   *slog.Logger
}

// Aggregator is Libra_s: the control service beside a data plane. It admits
// jobs and senders and hands harvested sums to the jobs' parameter servers.
type Aggregator struct {
	pb.UnimplementedAggregatorServer
	cfg AggregatorConfig
	ctx context.Context

	mu    sync.Mutex
	jobs  map[uint16]*job
	epoch uint16
}

// NewAggregator returns the service; when ctx ends, so do its streams.
func NewAggregator(ctx context.Context, cfg AggregatorConfig) *Aggregator {
	return &Aggregator{
		cfg:  cfg,
		ctx:  ctx,
		jobs: map[uint16]*job{},
		// A random start keeps frames from before a restart of the daemon out
		// of the jobs after it.
		epoch: uint16(rand.Uint32()),
	}
}

// CreateJob implements the service.
func (a *Aggregator) CreateJob(_ context.Context, spec *pb.JobSpec) (*pb.Job, error) {
	cfg, err := a.jobConfig(spec)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if j := a.jobs[cfg.ID]; j != nil {
		if proto.Equal(j.spec, spec) {
			return &pb.Job{Epoch: uint32(j.epoch)}, nil
		}
		return nil, status.Errorf(codes.AlreadyExists, "job %d runs with another specification; remove it first or use another id", cfg.ID)
	}
	a.epoch++
	cfg.Epoch = a.epoch
	if err := a.cfg.Plane.AddJob(cfg); err != nil {
		return nil, planeError(err)
	}
	a.jobs[cfg.ID] = newJob(a.cfg.Plane, spec, cfg.ID, cfg.Epoch)
	a.reach(spec.ServerMac)
	a.cfg.Log.Info("job created", "job", cfg.ID, "epoch", cfg.Epoch, "mode", cfg.Mode, "arithmetic", cfg.Arithmetic, "slots", cfg.Slots)
	return &pb.Job{Epoch: uint32(cfg.Epoch)}, nil
}

func (a *Aggregator) jobConfig(spec *pb.JobSpec) (aggregator.JobConfig, error) {
	cfg := aggregator.JobConfig{
		ID:         uint16(spec.Job),
		Exp:        int(spec.Exponent),
		Slots:      int(spec.Slots),
		MaxStripes: a.cfg.Stripes,
		Layouts:    aggregator.Aligned,
	}
	if a.cfg.Dense {
		cfg.Layouts |= aggregator.Dense
	}
	if spec.Job != uint32(cfg.ID) {
		return cfg, status.Errorf(codes.InvalidArgument, "job %d: ids end at %d", spec.Job, aggregator.MaxJobs-1)
	}
	switch spec.Mode {
	case pb.Mode_MODE_COMBINE:
		cfg.Mode = aggregator.Combine
	case pb.Mode_MODE_FETCHADD:
		cfg.Mode = aggregator.FetchAdd
	default:
		return cfg, status.Errorf(codes.InvalidArgument, "job %d: unknown mode %v", spec.Job, spec.Mode)
	}
	switch spec.Arithmetic {
	case pb.Arithmetic_ARITHMETIC_EXACT:
		cfg.Arithmetic = aggregator.Exact
	default:
		return cfg, status.Errorf(codes.InvalidArgument, "job %d: unknown arithmetic %v", spec.Job, spec.Arithmetic)
	}
	return cfg, nil
}

// RemoveJob implements the service.
func (a *Aggregator) RemoveJob(_ context.Context, req *pb.RemoveJobRequest) (*pb.RemoveJobResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	j := a.jobs[uint16(req.Job)]
	if j == nil {
		return nil, status.Errorf(codes.NotFound, "no job %d", req.Job)
	}
	if err := j.remove(); err != nil {
		return nil, planeError(err)
	}
	delete(a.jobs, j.id)
	a.cfg.Log.Info("job removed", "job", j.id, "harvests", j.harvests())
	return &pb.RemoveJobResponse{}, nil
}

// Join implements the service.
func (a *Aggregator) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Admission]) error {
	j, err := a.job(req.Job)
	if err != nil {
		return err
	}
	sender, err := senderConfig(req)
	if err != nil {
		return err
	}
	if !bytes.Equal(req.HotSet, j.spec.HotSet) {
		return status.Errorf(codes.FailedPrecondition, "worker %d has another hot set than job %d: copy the server's hot-set file to the worker", req.Sender, req.Job)
	}
	if err := a.cfg.Plane.AddSender(j.id, sender); err != nil {
		return planeError(err)
	}
	a.reach(req.Mac)
	defer j.withdraw(sender.ID, a.cfg.Log)
	a.cfg.Log.Debug("sender admitted", "job", j.id, "sender", sender.ID, "address", sender.IP)
	if err := stream.Send(&pb.Admission{
		Epoch: uint32(j.epoch), Stripes: uint32(a.cfg.Stripes), Dense: a.cfg.Dense, Window: wire.DefaultWindow,
	}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return nil
	case <-j.removed:
		return status.Errorf(codes.Aborted, "job %d was removed", j.id)
	case <-a.ctx.Done():
		return status.Error(codes.Unavailable, "the aggregator is stopping")
	}
}

func senderConfig(req *pb.JoinRequest) (aggregator.SenderConfig, error) {
	s := aggregator.SenderConfig{ID: uint16(req.Sender)}
	if req.Sender != uint32(s.ID) {
		return s, status.Errorf(codes.InvalidArgument, "sender %d does not fit 16 bits", req.Sender)
	}
	ip, ok := netip.AddrFromSlice(req.Ip)
	if !ok {
		return s, status.Errorf(codes.InvalidArgument, "sender %d: an IP address of %d bytes", req.Sender, len(req.Ip))
	}
	s.IP = ip.Unmap()
	if n := len(req.Mac); n != 0 && n != len(s.MAC) {
		return s, status.Errorf(codes.InvalidArgument, "sender %d: a MAC address of %d bytes", req.Sender, n)
	}
	copy(s.MAC[:], req.Mac)
	return s, nil
}

// Harvest implements the service.
func (a *Aggregator) Harvest(stream grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	id, ok := first.What.(*pb.HarvestRequest_Job)
	if !ok {
		return status.Error(codes.InvalidArgument, "the first message of a harvest names its job")
	}
	j, err := a.job(id.Job)
	if err != nil {
		return err
	}
	return j.serveHarvest(a.ctx, stream)
}

// Stats implements the service.
func (a *Aggregator) Stats(context.Context, *pb.StatsRequest) (*pb.AggregatorStats, error) {
	c, err := a.cfg.Plane.Counters()
	if err != nil {
		return nil, planeError(err)
	}
	out := &pb.AggregatorStats{Counters: globalCounters(&c)}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, j := range a.jobs {
		c, err := a.cfg.Plane.JobCounters(j.id)
		if err != nil {
			return nil, planeError(err)
		}
		out.Jobs = append(out.Jobs, &pb.JobStats{Job: uint32(j.id), Harvests: j.harvests(), Counters: jobCounters(&c)})
	}
	return out, nil
}

func (a *Aggregator) job(id uint32) (*job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id < aggregator.MaxJobs {
		if j := a.jobs[uint16(id)]; j != nil {
			return j, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no job %d: its parameter server has not created it", id)
}

// reach passes a host's MAC address on. Failure costs speed only: the kernel
// forwards what the data plane does not.
func (a *Aggregator) reach(mac []byte) {
	if a.cfg.Reach == nil || len(mac) != 6 {
		return
	}
	if err := a.cfg.Reach([6]byte(mac)); err != nil {
		a.cfg.Log.Warn("frames to this host go through the kernel's forwarding", "error", err)
	}
}

// planeError gives a data plane's refusal the gRPC code of its kind.
func planeError(err error) error {
	code := codes.Internal
	for target, c := range map[error]codes.Code{
		aggregator.ErrConfig:         codes.InvalidArgument,
		aggregator.ErrUnsupported:    codes.Unimplemented,
		aggregator.ErrTooManySlots:   codes.ResourceExhausted,
		aggregator.ErrTooManySenders: codes.ResourceExhausted,
		aggregator.ErrJobExists:      codes.AlreadyExists,
		aggregator.ErrSenderExists:   codes.AlreadyExists,
		aggregator.ErrNoJob:          codes.NotFound,
		aggregator.ErrNoSender:       codes.NotFound,
		aggregator.ErrClosed:         codes.Unavailable,
	} {
		if errors.Is(err, target) {
			code = c
		}
	}
	return status.Error(code, err.Error())
}

package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// AggregatorConfig configures an [Aggregator].
type AggregatorConfig struct {
	Plane aggregator.Plane
	// Stripes is the largest number of stripes that jobs may send in a frame.
	Stripes int
	// Dense says whether jobs may send dense frames.
	Dense bool
	// Slots is how many slots all jobs together may have; 0 means
	// [DefaultSlots].
	Slots int
	// JobMemory returns the bytes that the banks of a job of n slots take; nil
	// means two banks of eight bytes a slot.
	JobMemory func(n int) uint64
	// Reach, if not nil, is told the MAC address of each host that joins, so
	// that the data plane can send frames between hosts on by itself.
	Reach func(mac [6]byte) error
	Log   *slog.Logger
}

// DefaultSlots is the budget of an aggregator: sixteen jobs of the largest size.
const DefaultSlots = 16 * aggregator.MaxSlots

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
	cfg.Slots = cmp.Or(cfg.Slots, DefaultSlots)
	if cfg.JobMemory == nil {
		cfg.JobMemory = func(n int) uint64 { return 2 * 8 * uint64(n) }
	}
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
			return &pb.Job{Epoch: uint32(j.cfg.Epoch), Instance: j.instance}, nil
		}
		return nil, status.Errorf(codes.AlreadyExists, "job %d runs with another specification; remove it first or use another id", cfg.ID)
	}
	if used := a.slotsUsed(); cfg.Slots > a.cfg.Slots-used {
		return nil, status.Errorf(codes.ResourceExhausted, "job %d: slots: %d are wanted, but %d of this aggregator's %d are taken, by %d jobs: remove one, or give the aggregator more (switch.slots)",
			cfg.ID, cfg.Slots, used, a.cfg.Slots, len(a.jobs))
	}
	a.epoch++
	cfg.Epoch = a.epoch
	if err := a.cfg.Plane.AddJob(cfg); err != nil {
		return nil, planeError(err)
	}
	a.jobs[cfg.ID] = newJob(a.cfg.Plane, spec, cfg)
	a.reach(spec.ServerMac)
	a.cfg.Log.Info("job created", "job", cfg.ID, "epoch", cfg.Epoch, "mode", cfg.Mode, "arithmetic", cfg.Arithmetic, "slots", cfg.Slots)
	return &pb.Job{Epoch: uint32(cfg.Epoch), Instance: a.jobs[cfg.ID].instance}, nil
}

// slotsUsed returns the slots of all jobs. The caller holds the lock.
func (a *Aggregator) slotsUsed() (n int) {
	for _, j := range a.jobs {
		n += j.cfg.Slots
	}
	return n
}

// RemoveJob implements the service.
func (a *Aggregator) RemoveJob(ctx context.Context, req *pb.RemoveJobRequest) (*pb.RemoveJobResponse, error) {
	a.mu.Lock()
	var j *job
	if req.Job < aggregator.MaxJobs {
		j = a.jobs[uint16(req.Job)]
	}
	a.mu.Unlock()
	if j == nil {
		return nil, status.Errorf(codes.NotFound, "no job %d", req.Job)
	}
	// One job's server that does not read must not hold the others up, so this
	// waits without the lock. Meanwhile the id and the slots stay taken.
	err := j.remove(ctx)
	if c := status.Code(err); c == codes.DeadlineExceeded || c == codes.NotFound {
		return nil, err
	}
	a.mu.Lock()
	delete(a.jobs, j.cfg.ID)
	a.mu.Unlock()
	if err != nil { // of its memory, perhaps; the data plane has let go of it
		return nil, err
	}
	a.cfg.Log.Info("job removed", "job", j.cfg.ID, "harvests", j.harvests())
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
	if err := j.admit(sender); err != nil {
		return err
	}
	a.reach(req.Mac)
	defer j.withdraw(sender.ID, a.cfg.Log)
	a.cfg.Log.Debug("sender admitted", "job", j.cfg.ID, "sender", sender.ID, "address", sender.IP)
	if err := stream.Send(j.admission()); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
		return nil
	case <-j.removed:
		return status.Errorf(codes.Aborted, "job %d was removed", j.cfg.ID)
	case <-a.ctx.Done():
		return status.Error(codes.Unavailable, "the aggregator is stopping")
	}
}

// Harvest implements the service.
func (a *Aggregator) Harvest(stream grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	begin, ok := first.What.(*pb.HarvestRequest_Begin)
	if !ok {
		return status.Error(codes.InvalidArgument, "the first message of a harvest names its job")
	}
	j, err := a.job(begin.Begin.GetJob())
	if err != nil {
		return err
	}
	if j.cfg.Mode == aggregator.Sync {
		return status.Errorf(codes.FailedPrecondition, "job %d cannot be harvested: in %v mode the sums go to the workers", j.cfg.ID, j.cfg.Mode)
	}
	return j.serveHarvest(a.ctx, stream)
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
		aggregator.ErrMode:           codes.FailedPrecondition,
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

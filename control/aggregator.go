// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// AggregatorConfig configures an [Aggregator]. Plane and Stripes are required.
type AggregatorConfig struct {
	Plane aggregator.Plane
	// Stripes is the largest number of stripes of a frame that jobs may use.
	Stripes int
	// Dense allows jobs to send dense frames.
	Dense bool
	// Slots is the number of slots of all jobs together; 0 means [DefaultSlots].
	Slots int
	// Senders is the number of senders of all jobs together; 0 means [DefaultSenders].
	Senders int
	// Lease is how long a job outlives its owner's connection; 0 means
	// [DefaultLease].
	Lease time.Duration
	// Grace is how long an admission outlives its sender's connection; 0 means
	// [DefaultGrace].
	Grace time.Duration
	// JobMemory returns the bytes that two banks of n slots use, of which a job of mode acked has
	// one; nil means eight bytes per slot and bank.
	JobMemory func(n int) uint64
	// Reach, if not nil, is called with the MAC addresses of the servers of each new job, so that
	// the data plane can forward frames to them by itself.
	Reach func(job uint16, servers [][6]byte)
	// Dial, if not nil, connects to another aggregator's service, whose jobs may then be children of
	// jobs here. It gives up within some seconds.
	Dial func(ctx context.Context, control netip.AddrPort) (*grpc.ClientConn, error)
	// Turn, if not nil, is called by goroutines several of which one event may have woken.
	Turn func(what string)
	// Random is the source of instances, epochs, keys and tokens; nil means crypto/rand.
	Random io.Reader
	Log    *slog.Logger // nil means [slog.Default]
}

const (
	// DefaultSlots is the slot budget of an aggregator: sixteen pages.
	DefaultSlots = 16 * aggregator.PageSlots

	// DefaultSenders is the number of senders for which the XDP data plane has room.
	DefaultSenders = 1024

	// DefaultJobSenders is the number of places that a job reserves if it does not specify one.
	DefaultJobSenders = 64

	// DefaultLease is how long a job outlives its owner's connection.
	DefaultLease = 5 * time.Second
)

// Aggregator is the control service of the switch daemon, for its data plane. It admits jobs and
// senders and passes harvested sums to the jobs' parameter servers.
type Aggregator struct {
	pb.UnimplementedAggregatorServer
	cfg    AggregatorConfig
	ctx    context.Context
	random access.Random
	run    uint64 // random, of this run of the daemon

	// epochs has the newest epoch of each job id, used for its successive jobs and for the
	// admissions to them.
	epochs [aggregator.MaxJobs]atomic.Uint32

	mu   sync.Mutex // held briefly, never during calls of the data plane
	jobs map[uint16]*job
	// removed has, by id, the key of the last job that an operator removed: its owner may ask later.
	removed map[uint16]access.Secret
	// spent has, by id, the attempt of the last job that has ended after its owner had got it: a late
	// request of it creates nothing.
	spent map[uint16][]byte
	// background are goroutines that use the data plane after or outside a call; closed forbids new
	// ones.
	background sync.WaitGroup
	closed     bool
}

// NewAggregator returns the service; the end of ctx ends its streams. Close it after the gRPC
// server has stopped, and before the data plane is closed.
func NewAggregator(ctx context.Context, cfg AggregatorConfig) *Aggregator {
	cfg.Slots = cmp.Or(cfg.Slots, DefaultSlots)
	cfg.Senders = cmp.Or(cfg.Senders, DefaultSenders)
	cfg.Lease = cmp.Or(cfg.Lease, DefaultLease)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Turn == nil {
		cfg.Turn = func(string) {}
	}
	if cfg.JobMemory == nil {
		cfg.JobMemory = func(n int) uint64 { return 2 * 8 * uint64(n) }
	}
	a := &Aggregator{cfg: cfg, ctx: ctx, random: access.NewRandom(cfg.Random), jobs: map[uint16]*job{},
		removed: map[uint16]access.Secret{}, spent: map[uint16][]byte{}}
	a.run = a.random.Uint64()
	// The start is random, so that frames from before a restart of the daemon do not match the jobs
	// after it.
	for i := range a.epochs {
		a.epochs[i].Store(uint32(a.random.Uint64()))
	}
	return a
}

// Close ends the service's background work and waits for it. The jobs end with their data plane.
func (a *Aggregator) Close() {
	a.mu.Lock()
	a.closed = true
	for _, j := range a.jobs {
		j.stopStreams(errStopping)
	}
	a.mu.Unlock()
	a.background.Wait()
}

// goBackground runs f, unless the service is closed.
func (a *Aggregator) goBackground(f func()) (started bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.background.Go(f)
	}
	return !a.closed
}

// Hold implements the service.
func (a *Aggregator) Hold(req *pb.HoldRequest, stream grpc.ServerStreamingServer[pb.HoldResponse]) error {
	j, err := a.owned(stream.Context(), req.Job, req.Key)
	if err != nil {
		return err
	}
	c := j.holdOwner()
	defer j.ownerBroke(c)
	if err := stream.Send(a.heartbeat(j)); err != nil {
		return err
	}
	if req.Heartbeats {
		ctx, end := context.WithCancel(stream.Context())
		defer end()
		if !a.goBackground(func() { a.sendHeartbeats(ctx, j, stream) }) {
			return errStopping
		}
	}
	return a.stay(stream.Context(), c, j)
}

// Check implements the service.
func (a *Aggregator) Check(ctx context.Context, req *pb.JoinRequest) (*pb.Admission, error) {
	j, s, err := a.sender(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := j.roster.checkSender(s, req); err != nil {
		return nil, err
	}
	return a.terms(j), nil
}

// Join implements the service.
func (a *Aggregator) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Admission]) error {
	j, s, err := a.sender(stream.Context(), req)
	if err != nil {
		return err
	}
	m, c, err := j.roster.enterSender(s, req)
	if err != nil {
		return err
	}
	defer j.roster.connectionBroke(m, c)
	a.cfg.Log.Debug("sender connected", "job", j.cfg.ID, "sender", s.ID, "address", s.IP, "epoch", m.Epoch)
	if err := stream.Send(a.admission(j, m)); err != nil {
		return err
	}
	return a.stay(stream.Context(), c, j)
}

// sender validates a join request and its caller.
func (a *Aggregator) sender(ctx context.Context, req *pb.JoinRequest) (*job, aggregator.SenderConfig, error) {
	s, err := senderAddress(req.Sender, req.Ip, req.Mac, req.Port)
	if err != nil {
		return nil, s, err
	}
	caller := access.CallerOf(ctx)
	if err := caller.NeedWorker(req.Job, req.Sender); err != nil {
		return nil, s, err
	}
	if err := caller.NeedAddress(s.IP); err != nil {
		return nil, s, err
	}
	j, err := a.job(req.Job)
	if err != nil {
		return nil, s, err
	}
	if !bytes.Equal(req.HotSet, j.spec.HotSet) {
		return nil, s, otherHotSet(req, j.spec)
	}
	if known := max(1, req.Pages); j.cfg.Pages() > int(known) {
		return nil, s, status.Errorf(codes.FailedPrecondition,
			"worker %d's version of libra can name %d hot scalars, and job %d has %d: run the same version on all hosts",
			req.Sender, uint64(known)*aggregator.PageSlots, req.Job, j.cfg.Slots)
	}
	return j, s, nil
}

// stay waits for the end of a job's stream.
func (a *Aggregator) stay(ctx context.Context, c *connection, j *job) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.over:
		return c.why
	case <-j.ended:
		return j.why
	case <-a.ctx.Done():
		return errStopping
	}
}

// Leave implements the service.
func (a *Aggregator) Leave(_ context.Context, req *pb.LeaveRequest) (*pb.LeaveResponse, error) {
	j, err := a.job(req.Job)
	if err != nil {
		return nil, err
	}
	if err := j.roster.endAdmission(req); err != nil {
		return nil, err
	}
	return &pb.LeaveResponse{}, nil
}

// Harvest implements the service.
func (a *Aggregator) Harvest(stream grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	begin := first.GetBegin()
	if begin == nil {
		return status.Error(codes.InvalidArgument, "the first message of a harvest names its job and shows the key")
	}
	if err := access.CallerOf(stream.Context()).NeedHarvester(begin.Job); err != nil {
		return err
	}
	j, err := a.withKey(begin.Job, begin.Key)
	if err != nil {
		return err
	}
	if j.cfg.Mode.HasRounds() {
		return status.Errorf(codes.FailedPrecondition, "job %d cannot be harvested: in %v mode the sums go to the workers",
			j.cfg.ID, j.cfg.Mode)
	}
	// The stream is served by another goroutine than this call, which must be able to end while
	// sending blocks: its end also ends the sending.
	c := j.attachStream()
	served := make(chan error, 1)
	if !a.goBackground(func() { served <- j.serveHarvest(stream, begin) }) {
		return errStopping
	}
	select {
	case err := <-served:
		return err
	case <-c.over:
		return c.why
	case <-j.ended:
		return j.why
	case <-a.ctx.Done():
		return errStopping
	}
}

// job returns a running job.
func (a *Aggregator) job(id uint32) (*job, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id < aggregator.MaxJobs {
		if j := a.jobs[uint16(id)]; j != nil && j.running {
			return j, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no job %d: its parameter server has not created it, or it was removed", id)
}

// owned returns a job for its owner.
func (a *Aggregator) owned(ctx context.Context, id uint32, key []byte) (*job, error) {
	if err := access.CallerOf(ctx).NeedServer(id); err != nil {
		return nil, err
	}
	return a.withKey(id, key)
}

// withKey returns a job for whoever has its key.
func (a *Aggregator) withKey(id uint32, key []byte) (*job, error) {
	j, err := a.job(id)
	switch {
	case err == nil && j.key.Matches(key):
		j.noteOwner()
		return j, nil
	case a.wasRemoved(id, key):
		return nil, removedByOperator(uint16(id))
	case err == nil:
		err = status.Errorf(codes.PermissionDenied, "job %d belongs to another server: wrong job key", id)
	}
	return nil, err
}

// wasRemoved reports whether an operator removed the job with this key. Its owner was told so if it
// was connected.
func (a *Aggregator) wasRemoved(id uint32, key []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	removed, ok := a.removed[uint16(id)]
	return ok && id < aggregator.MaxJobs && removed.Matches(key)
}

// reach passes the MAC addresses of a job's servers to the data plane.
func (a *Aggregator) reach(job uint16, macs [][]byte) {
	if a.cfg.Reach == nil || len(macs) == 0 {
		return
	}
	servers := make([][6]byte, len(macs))
	for i, mac := range macs {
		servers[i] = [6]byte(mac)
	}
	a.cfg.Reach(job, servers)
}

// Reasons why a service ends a stream. Unavailable means that the peer may reconnect, Aborted that
// it must not try.
var (
	errReplaced = status.Error(codes.Unavailable, "a newer connection has taken over")
	errStopping = status.Error(codes.Aborted, "the service is stopping")
)

// planeError gives an error of the data plane the gRPC code of its kind.
func planeError(err error) error {
	if errors.Is(err, errStopping) {
		return err
	}
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
		aggregator.ErrBusy:           codes.Unavailable, // the caller may retry
		aggregator.ErrClosed:         codes.Aborted,
	} {
		if errors.Is(err, target) {
			code = c
		}
	}
	return status.Error(code, err.Error())
}

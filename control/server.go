// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// ParameterServer is a parameter server's control service.
type ParameterServer struct {
	pb.UnimplementedParameterServerServer
	cfg     ParameterServerConfig
	ctx     context.Context
	barrier *barrier
	agree   *agreement
	roster  *roster
	run     uint64 // random, of this run of the server
	// training is the identity of the training, if nothing of an earlier one is kept.
	training   string
	generation *generation
	// harvested are the hot frames that no later harvest of an instance holds. Both are used by the
	// commits, one of which runs at a time.
	harvested   map[lifetime]HotFrames
	harvestedAt uint64

	// All are guarded by the roster's lock.
	epoch  uint16             // of the newest admission
	absent map[uint16]*absent // lost workers that may join again
	away   map[uint16]bool    // workers that have left and may come back, at any time
	drops  map[uint16]bool    // workers that did not say that they repeat steps when they joined last

	left chan struct{} // holds a token when an admission has ended

	ended chan struct{} // closed by End, with the reason in why
	why   error
	once  sync.Once
}

// NewParameterServer returns the service for one job; ctx bounds its commits.
func NewParameterServer(ctx context.Context, cfg ParameterServerConfig) *ParameterServer {
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	cfg.Rejoin = cmp.Or(cfg.Rejoin, DefaultRejoin)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.FirstStep == nil {
		cfg.FirstStep = func(uint16) uint64 { return 0 }
	}
	random := access.NewRandom(cfg.Random)
	s := &ParameterServer{
		cfg: cfg, ctx: ctx, agree: newAgreement(cfg.Agree),
		epoch: uint16(random.Uint64()), absent: map[uint16]*absent{}, away: map[uint16]bool{}, drops: map[uint16]bool{},
		left: make(chan struct{}, 1), ended: make(chan struct{}), generation: newGeneration(cfg.Instance, cfg.Aggregator),
	}
	s.run = random.Uint64() | 1 // 0 is none
	s.training = fmt.Sprintf("%016x", s.run)
	s.roster = &roster{
		mu: make(chanMutex, 1), random: random, members: map[uint16]*member{},
		grace: cfg.Grace, epoch: func() uint16 { return s.epoch + 1 }, take: func(epoch uint16) { s.epoch = epoch },
		may: s.mayAdmit, admit: s.admit, withdraw: s.withdraw,
	}
	var first uint64
	for _, w := range cfg.Workers {
		first = max(first, cfg.FirstStep(w))
	}
	// A commit belongs to all workers, so it runs under the server's context, not under that of the
	// worker that arrived last.
	commit := func(ctx context.Context, step uint64) error { return cfg.Commit(ctx, step) }
	s.barrier = newBarrier(ctx, cfg.Workers, first, commit)
	s.barrier.reduce, s.barrier.over, s.barrier.instance = s.reduce, s.give, cfg.Instance
	return s
}

// missingEvery is how often Wait checks for missing workers.
const missingEvery = time.Second

// Wait returns when every worker has finished or is lost for good or, in a job with Sync, when any
// is lost; the error names the first lost worker. Workers may join at any time; the log names the
// missing ones. Finished workers, and those that can no longer finish, get the grace period to
// leave: the answer to a Done may be lost, and its retry must still find the job.
func (s *ParameterServer) Wait(ctx context.Context) error {
	look := time.NewTicker(missingEvery)
	defer look.Stop()
	var logged []uint16
	var late lateness
	for {
		select {
		case <-s.barrier.idle:
			if err := s.barrier.failureOf(); err != nil {
				return err
			}
			s.waitUntilLeft(ctx)
			return nil
		case <-ctx.Done():
			return fmt.Errorf("workers %v have not finished: %w", s.barrier.unfinishedWorkers(), context.Cause(ctx))
		case <-look.C:
		}
		if err := s.barrier.failureOf(); err != nil && s.cfg.Sync {
			// A worker that arrives at a barrier gets the error, and ends by itself. Others, and
			// agents, end with the job.
			s.waitUntilLeft(ctx)
			if s.roster.admissionCount() > 0 {
				s.roster.endAdmissions(status.Error(codes.Aborted, err.Error()))
			}
			return err
		}
		missing := s.missing()
		if len(missing) > 0 && !slices.Equal(missing, logged) {
			s.cfg.Log.Info("waiting for workers to join", "workers", missing)
		}
		logged = missing
		late.logLate(s.barrier, s.cfg.Log)
	}
}

// waitUntilLeft returns when all admissions have ended, or after the grace period.
func (s *ParameterServer) waitUntilLeft(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Grace)
	defer cancel()
	for s.roster.admissionCount() > 0 {
		select {
		case <-s.left:
		case <-ctx.Done():
			return
		}
	}
}

// missing returns the workers that have neither joined nor finished.
func (s *ParameterServer) missing() []uint16 {
	ids := s.barrier.unfinishedWorkers()
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	return slices.DeleteFunc(ids, func(id uint16) bool { return s.roster.members[id] != nil })
}

// Close ends the admissions. It does not touch Members.
func (s *ParameterServer) Close() {
	s.roster.endAdmissions(errStopping)
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	for _, d := range s.absent {
		d.stopTimer()
	}
}

// Join implements the service.
func (s *ParameterServer) Join(req *pb.JoinRequest, stream grpc.ServerStreamingServer[pb.Membership]) error {
	ctx := stream.Context()
	sender, err := s.sender(ctx, req)
	if err != nil {
		return err
	}
	m, c, err := s.roster.enterSender(sender, req)
	if err != nil {
		return s.notAdmitted(err)
	}
	defer s.roster.connectionBroke(m, c)
	s.cfg.Log.Debug("worker connected", "worker", m.ID, "address", m.IP, "epoch", m.Epoch)
	terms := s.terms(m.ID)
	terms.Epoch, terms.Token = uint32(m.Epoch), m.token[:]
	if len(req.Token) == 0 { // otherwise the worker knows it
		step, err := s.barrier.nextStep(ctx)
		if err != nil {
			return status.FromContextError(err).Err()
		}
		terms.NextStep = &step
		s.noteAdopted(m, terms.Plan.GetVersion())
		s.generation.mu.Lock()
		terms.Ended = m.left // it may have been admitted before the end of another
		s.generation.mu.Unlock()
	}
	if err := stream.Send(terms); err != nil {
		return err
	}
	return s.streamMembership(ctx, m, c, terms, stream.Send)
}

// sender validates a join request and its caller.
func (s *ParameterServer) sender(ctx context.Context, req *pb.JoinRequest) (aggregator.SenderConfig, error) {
	sender, err := senderAddress(req.Sender, req.Ip, req.Mac, cmp.Or(req.Port, uint32(s.cfg.Port)))
	if err != nil {
		return sender, err
	}
	caller := access.CallerOf(ctx)
	if err := caller.NeedWorker(req.Job, req.Sender); err != nil {
		return sender, err
	}
	if err := caller.NeedAddress(sender.IP); err != nil {
		return sender, err
	}
	switch {
	case req.Job != uint32(s.cfg.Job):
		err = s.otherJob(req.Job)
	case !slices.Contains(s.cfg.Workers, sender.ID):
		err = status.Errorf(codes.PermissionDenied, "worker %d is not in the cluster configuration, which lists %v",
			sender.ID, s.cfg.Workers)
	case !bytes.Equal(req.HotSet, s.cfg.HotSet):
		err = status.Errorf(codes.FailedPrecondition,
			"worker %d's hot set differs from the server's: copy the server's hot-set file to the worker", sender.ID)
	case len(req.Token) > 0: // of an admission that ended with an earlier server, only that is worth telling
	case req.Run != 0 && req.Run != s.run: // what it presents may be what that has told it
		err = restartedStatus(sender.ID)
	default:
		err = s.agree.checkValues(sender.ID, req.Agree)
	}
	return sender, err
}

func (s *ParameterServer) otherJob(job uint32) error {
	return status.Errorf(codes.NotFound, "job %d is not served here; this server serves job %d", job, s.cfg.Job)
}

// mayAdmit refuses a worker of a job that has failed, or whose configuration differs. The caller
// holds the roster's lock.
func (s *ParameterServer) mayAdmit(m, _ *member) error {
	if err := s.barrier.failureOf(); err != nil && (s.cfg.Sync || !s.barrier.isRunning(m.ID)) {
		return status.Errorf(codes.FailedPrecondition, "worker %d cannot join any more: %v", m.ID, err)
	}
	return s.agree.checkValues(m.ID, m.agree)
}

// admit accepts a worker's frames from now on.
func (s *ParameterServer) admit(m *member) error {
	if err := s.mayAdmit(m, nil); err != nil { // the end of its earlier admission may have ended the job
		return err
	}
	// Before it is admitted in the store's goroutine: a fence there comes before all of this, or is
	// refused.
	s.generation.noteLog(m.ID, m.keepsLog)
	// Under the server's context: a worker that disconnects meanwhile must not leave half an
	// admission.
	if err := s.cfg.Members.Admit(s.ctx, m.ID, netip.AddrPortFrom(m.IP, m.Port), m.Epoch); err != nil {
		s.generation.noteLog(m.ID, true) // it is not there after all
		if s.ctx.Err() != nil {
			return errStopping
		}
		return status.Errorf(codes.Internal, "worker %d: %v", m.ID, err)
	}
	s.agree.holdValues(m.ID, m.agree)
	m.before = s.barrier.rewindCount()
	_, ended := s.generation.currentInstance()
	s.generation.mu.Lock()
	m.left = ended // its frames are from now on
	s.generation.mu.Unlock()
	s.drops[m.ID] = !m.rewinds
	m.wasAway = s.away[m.ID]
	delete(s.away, m.ID)
	if d := s.absent[m.ID]; d != nil && d.stopTimer() || m.wasAway {
		s.cfg.Log.Info("worker is back", "worker", m.ID, "address", m.IP)
	}
	return nil
}

// withdraw accepts no more frames of a worker. Unless it has finished, it is lost. The caller holds
// the roster's lock.
func (s *ParameterServer) withdraw(m *member, how ending) {
	defer func() {
		select {
		case s.left <- struct{}{}:
		default: // Wait has a token already
		}
	}()
	if err := s.cfg.Members.Remove(s.ctx, m.ID); err != nil && s.ctx.Err() == nil {
		s.cfg.Log.Warn("cannot withdraw a worker", "worker", m.ID, "error", err)
	}
	s.generation.noteLog(m.ID, true) // it is not there any more
	if how == unused {
		s.agree.releaseValues(m.agree)
		switch a := s.absent[m.ID]; { // it is not back
		case m.wasAway:
			s.away[m.ID] = true
		case a != nil:
			s.await(m.ID, a.lost, time.Until(a.until))
		}
		return
	}
	if !s.barrier.isRunning(m.ID) {
		return
	}
	if how == away {
		s.cfg.Log.Info("a worker has left, and may come back", "worker", m.ID)
		s.away[m.ID] = true
		s.barrier.departWorker(m.ID)
		return
	}
	lost := fmt.Errorf("worker %d left before it had finished", m.ID)
	switch how {
	case vanished:
		lost = fmt.Errorf("%w: it was not connected for %v", lost, s.cfg.Grace)
	case restarted:
		lost = fmt.Errorf("%w: it was restarted", lost)
	}
	if why := m.departure.GetReason(); why != "" {
		lost = fmt.Errorf("%w: %s", lost, why)
	}
	s.cfg.Log.Warn("lost a worker", "worker", m.ID, "reason", lost)
	s.noteLost(m)
	if s.cfg.Sync && s.mayRewind(m, how) {
		s.rewind(m.ID, lost)
		return
	}
	if s.cfg.Sync && s.mayDrop(how) {
		s.dropOpenStep(m.ID, lost)
		return
	}
	if m.departure.GetDiverged() && s.cfg.Diverged != nil {
		s.cfg.Diverged(m.ID)
	}
	if s.cfg.Lost != nil {
		go s.cfg.Lost(m.ID)
	}
	if s.cfg.Sync {
		s.barrier.loseWorker(m.ID, lost)
		for _, id := range s.barrier.unfinishedWorkers() {
			if s.roster.members[id] == nil { // it has not joined, and no longer can
				s.barrier.loseWorker(id, lost)
			}
		}
		return
	}
	s.barrier.departWorker(m.ID)
	s.await(m.ID, lost, s.cfg.Rejoin)
}

// member returns the admission to which a call belongs.
func (s *ParameterServer) member(ctx context.Context, job, sender uint32, token []byte) (*member, error) {
	if err := access.CallerOf(ctx).NeedWorker(job, sender); err != nil {
		return nil, err
	}
	if job != uint32(s.cfg.Job) {
		return nil, s.otherJob(job)
	}
	m, err := s.roster.memberOf(sender, token)
	return m, s.notAdmitted(err)
}

// Barrier implements the service.
func (s *ParameterServer) Barrier(ctx context.Context, req *pb.BarrierRequest) (*pb.BarrierResponse, error) {
	m, err := s.member(ctx, req.Job, req.Sender, req.Token)
	if err != nil {
		return nil, err
	}
	if s.cfg.Commit == nil {
		return nil, s.noSteps()
	}
	if err := s.generation.refusalOf(req.Instance); err != nil {
		return nil, err
	}
	r, err := s.barrier.joinRound(ctx, m.ID, req.Step, wish{instance: req.Instance, rewinds: m.before})
	switch {
	case err != nil:
		return nil, s.uncommitted(ctx, err)
	case r.dropped != nil:
		return nil, r.dropped.status()
	}
	return &pb.BarrierResponse{}, nil
}

// noSteps is the answer to a worker that takes a step with others in a job without steps.
func (s *ParameterServer) noSteps() error {
	return status.Errorf(codes.FailedPrecondition,
		"job %d does not take steps together, so its steps have no sums: set job.sync", s.cfg.Job)
}

// uncommitted is the answer to a call of a worker whose gradients could not be applied. If the call
// itself has ended, by its deadline or because the caller disconnected, that is the answer.
func (s *ParameterServer) uncommitted(call context.Context, err error) error {
	if ended := call.Err(); ended != nil {
		return status.FromContextError(ended).Err()
	}
	if errors.Is(err, ErrFenced) {
		return fencedStatus()
	}
	if errors.Is(err, ErrRewound) {
		return rewoundStatus()
	}
	if s.ctx.Err() != nil && errors.Is(err, context.Canceled) { // an abandoned commit
		return errStopping
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}

// Stats implements the service.
func (s *ParameterServer) Stats(ctx context.Context, _ *pb.StatsRequest) (*pb.ServerStats, error) {
	if !access.CallerOf(ctx).Sees(uint32(s.cfg.Job)) {
		return nil, status.Errorf(codes.PermissionDenied, "the certificate is not for job %d", s.cfg.Job)
	}
	if s.cfg.Stats == nil {
		return &pb.ServerStats{}, nil
	}
	stats, err := s.cfg.Stats(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return stats, nil
}

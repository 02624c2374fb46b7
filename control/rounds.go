// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize/english"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// RoundsConfig names a worker of a job that has rounds and no parameter server. Fields without a
// default are required.
type RoundsConfig struct {
	// Job is the job's configuration, the same for all workers, such as that of reducer.Job with a
	// number. Its Epoch is ignored, and its Workers is the number of the following.
	Job aggregator.JobConfig
	// What says what the workers add, the same for all: workers that say something else, or whose
	// Job or number of Workers is different, are refused. Widths that need the same number of
	// stripes make the same Job, so it should say the width.
	What string
	// Workers are the numbers of all workers, and Worker is that of this one. The lowest creates the
	// job and holds it; with TLS, its certificate names the roles of a worker and of a server of the
	// job.
	Workers []uint16
	Worker  uint16

	// From is the source of the worker's frames, and MAC their Ethernet address; nil over UDP sockets.
	From netip.AddrPort
	MAC  []byte

	Aggregator netip.AddrPort // its control service

	// Security protects the connection; the zero value is plain TCP.
	Security access.Security
	// Limit bounds the wait for the service and for all workers; 0 means [DefaultJoinLimit].
	Limit time.Duration
	// Dial are options in addition to those of all control connections.
	Dial []grpc.DialOption
	// Lost is called with the reason, at most once and not after [Rounds.Leave], if the job ends, or
	// its service cannot be reached for its grace period. It may be nil.
	Lost func(error)
	// Random is the source of what distinguishes this attempt to join; nil means crypto/rand.
	Random io.Reader
	// Log receives messages about waiting; nil means [slog.Default].
	Log *slog.Logger
}

// Rounds is a worker's admission to a job that has rounds and no parameter server.
type Rounds struct {
	Epoch uint16 // of the job's frames

	cfg    RoundsConfig
	conn   *grpc.ClientConn
	client pb.AggregatorClient
	owned  *Owned // the job, at the lowest worker; nil while there is none
	token  []byte
	*attempt
}

// attempt is one attempt to join, and what has come of it.
type attempt struct {
	ctx    context.Context // ends with the admission, with its reason
	end    context.CancelCauseFunc
	joined atomic.Bool // with all workers, until Leave or the job's end, whichever is first
	told   func(error) // of that end; may be nil
}

// loseAdmission ends the admission because the service ended it.
func (a *attempt) loseAdmission(why error) {
	wasJoined := a.joined.CompareAndSwap(true, false)
	if wasJoined {
		why = access.CallError(access.SwitchDaemon, "withdrew this worker", why)
	}
	a.end(why)
	if wasJoined && a.told != nil {
		a.told(why)
	}
}

const (
	// settingsLimit is how long a worker waits for the end of a job with other settings: one of killed
	// workers lasts for its lease.
	settingsLimit = DefaultLease + time.Second
	// partLimit is how long the lowest worker waits for the others to leave, as its own departure ends
	// the job.
	partLimit = 10 * time.Second
)

// JoinRounds admits a worker to a job, which the worker with the lowest number creates. It returns
// when all workers are admitted, and joins again if it has met a job of earlier workers that were
// killed. The admission outlives neither ctx nor Leave.
func JoinRounds(ctx context.Context, cfg RoundsConfig) (_ *Rounds, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Limit, cfg.Log = cmp.Or(cfg.Limit, DefaultJoinLimit), cmp.Or(cfg.Log, slog.Default())
	cfg.Job.Workers = len(cfg.Workers)
	r := &Rounds{cfg: cfg}
	r.conn, err = access.Dial(ctx, access.TheSwitch(), cfg.Aggregator, cfg.Security, cfg.Limit, cfg.Log, cfg.Dial...)
	if err != nil {
		return nil, err
	}
	r.client = pb.NewAggregatorClient(r.conn)
	begun, delay := time.Now(), pause{}
	for {
		r.attempt = &attempt{told: cfg.Lost}
		r.ctx, r.end = context.WithCancelCause(ctx)
		if err = r.joinOnce(begun.Add(cfg.Limit)); err == nil {
			return r, nil
		}
		r.end(err)
		r.remove()
		if !mayPass(err, time.Since(begun), cfg.Limit) || delay.waitPause(ctx) != nil {
			return nil, errors.Join(r.explain(err), r.conn.Close())
		}
	}
}

// mayPass reports whether a worker that was refused may be admitted later: once the lowest worker
// has created the job, or an earlier job has ended.
func mayPass(err error, waited, limit time.Duration) bool {
	switch status.Code(err) {
	case codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted, codes.Aborted:
		return waited < limit
	case codes.FailedPrecondition:
		return waited < min(settingsLimit, limit)
	}
	return false
}

// explain adds to the error of a service which call it was.
func (r *Rounds) explain(err error) error {
	at := fmt.Sprintf("%s at %v", access.SwitchDaemon, r.cfg.Aggregator)
	if first := slices.Min(r.cfg.Workers); status.Code(err) == codes.NotFound && first != r.cfg.Worker {
		return fmt.Errorf("%s: worker %d has not created job %d within %v: start it", at, first, r.cfg.Job.ID, r.cfg.Limit)
	}
	return access.CallError(at, "join", err)
}

// check refuses configurations that the service would not accept, or for which JoinRounds would
// wait in vain.
func (c *RoundsConfig) check() error {
	sorted := slices.Sorted(slices.Values(c.Workers))
	switch {
	case !slices.Contains(c.Workers, c.Worker): // which also refuses an empty list
		return fmt.Errorf("control: RoundsConfig.Worker %d is not among the Workers %v", c.Worker, c.Workers)
	case len(slices.Compact(sorted)) != len(c.Workers):
		return fmt.Errorf("control: RoundsConfig.Workers %v has a number twice", c.Workers)
	case len(c.Workers) > aggregator.MaxWorkers:
		return fmt.Errorf("control: RoundsConfig.Workers has %d numbers, at most %d can take part in rounds", len(c.Workers), aggregator.MaxWorkers)
	case !c.Job.Mode.HasRounds():
		return fmt.Errorf("control: RoundsConfig.Job has mode %v, which has no rounds without a server", c.Job.Mode)
	case !c.From.IsValid() || c.From.Port() == 0 || c.From.Addr().IsUnspecified():
		return fmt.Errorf("control: RoundsConfig.From %v is no address of one host with a port", c.From)
	case !c.Aggregator.IsValid() || c.Aggregator.Port() == 0:
		return fmt.Errorf("control: RoundsConfig.Aggregator %v is no address with a port", c.Aggregator)
	case c.Limit < 0:
		return fmt.Errorf("control: RoundsConfig.Limit %v is negative", c.Limit)
	}
	return nil
}

// fingerprint stands for that of a hot set. Workers that follow other rules than the job's, or read
// its numbers otherwise, are refused by it.
func (c *RoundsConfig) fingerprint() []byte {
	j := &c.Job
	return fmt.Appendf(nil, "%s%s, by %s in mode %v with %v arithmetic, exponent %d, %s in groups of %s", roundsMark, c.What,
		english.Plural(len(c.Workers), "worker", ""), j.Mode, j.Arithmetic, j.Exp, english.Plural(j.Slots, "slot", ""),
		english.Plural(j.MaxStripes, "stripe", ""))
}

// joinOnce creates the job, if this is the lowest worker, joins it, and waits for the others until
// a time.
func (r *Rounds) joinOnce(until time.Time) error {
	if r.isFirst() {
		if err := r.create(); err != nil {
			return err
		}
	}
	secret := access.NewRandom(r.cfg.Random).Secret()
	req := &pb.JoinRequest{
		Job: uint32(r.cfg.Job.ID), Sender: uint32(r.cfg.Worker),
		Ip: r.cfg.From.Addr().AsSlice(), Port: uint32(r.cfg.From.Port()), Mac: r.cfg.MAC,
		HotSet: r.cfg.fingerprint(), Attempt: secret[:],
	}
	admitted, err := Stay(r.ctx,
		func(ctx context.Context, newest *pb.Admission) (grpc.ServerStreamingClient[pb.Admission], error) {
			again := proto.CloneOf(req)
			again.Token = newest.GetToken()
			return r.client.Join(ctx, again)
		},
		func(newest *pb.Admission) time.Duration { return time.Duration(newest.GraceMs) * time.Millisecond },
		nil, r.loseAdmission)
	if err != nil {
		return err
	}
	r.Epoch, r.token = uint16(admitted.Epoch), admitted.Token
	return r.awaitAll(until)
}

// isFirst reports whether this worker creates the job.
func (r *Rounds) isFirst() bool { return r.cfg.Worker == slices.Min(r.cfg.Workers) }

// create creates the job and holds it.
func (r *Rounds) create() (err error) {
	j := r.cfg.Job
	spec := &pb.JobSpec{
		Job: uint32(j.ID), Mode: modeMessage(j.Mode), Arithmetic: ArithmeticMessage(j.Arithmetic),
		Exponent: proto.Int32(int32(j.Exp)), Slots: uint32(j.Slots), HotSet: r.cfg.fingerprint(),
		Workers: uint32(j.Workers), Stripes: uint32(j.MaxStripes),
	}
	if r.owned, err = CreateJob(r.ctx, r.client, spec, r.cfg.Limit, r.cfg.Log); err != nil {
		return err
	}
	return r.owned.Hold(r.ctx, r.loseAdmission)
}

// awaitAll waits until all workers are admitted.
func (r *Rounds) awaitAll(until time.Time) error {
	var delay pause
	for told := false; ; told = true {
		members, err := r.list(r.ctx)
		if ended := context.Cause(r.ctx); ended != nil {
			return ended
		}
		if err != nil {
			return err
		}
		missing := slices.Sorted(slices.Values(r.cfg.Workers))
		for _, m := range members {
			missing = slices.DeleteFunc(missing, func(id uint16) bool { return uint32(id) == m.Sender })
			if m.Left && r.isFirst() { // its position is not given again: begin anew
				return status.Errorf(codes.Aborted, "worker %d has left before all had joined", m.Sender)
			}
		}
		switch {
		case len(missing) == 0:
			r.joined.Store(true)
			return nil
		case time.Now().After(until):
			return fmt.Errorf("workers %v have not joined job %d within %v: start them", missing, r.cfg.Job.ID, r.cfg.Limit)
		case !told:
			r.cfg.Log.Info("waiting for workers to join", "job", r.cfg.Job.ID, "workers", missing, "at_most", r.cfg.Limit)
		}
		if err := delay.waitPause(r.ctx); err != nil {
			return err
		}
	}
}

// list returns the job's members by position.
func (r *Rounds) list(ctx context.Context) ([]*pb.Member, error) {
	var answer *pb.MembersResponse
	req := &pb.MembersRequest{Job: uint32(r.cfg.Job.ID), Sender: uint32(r.cfg.Worker), Token: r.token}
	err := Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = r.client.Members(ctx, req)
		return err
	})
	return answer.GetMembers(), err
}

// Members returns the numbers of the job's workers by position, which is what an aggregator calls
// them by.
func (r *Rounds) Members(ctx context.Context) ([]uint16, error) {
	members, err := r.list(ctx)
	if err != nil {
		return nil, access.CallError(access.SwitchDaemon, "members", err)
	}
	var ids []uint16
	for _, m := range members {
		ids = append(ids, uint16(m.Sender))
	}
	return ids, nil
}

// Err returns why the admission has ended, or nil.
func (r *Rounds) Err() error { return context.Cause(r.ctx) }

// Leave ends the admission and closes the connection. The lowest worker first waits until the
// others have left, at most 10 seconds, as the job ends with it. A second call does nothing.
func (r *Rounds) Leave() {
	if r.token == nil {
		return
	}
	wasJoined := r.joined.Swap(false) // the service's answer to what follows is no loss
	if r.isFirst() && wasJoined {
		r.awaitOthers()
	}
	r.end(errLeft)
	if !r.isFirst() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
		defer cancel()
		_, _ = r.client.Leave(ctx, &pb.LeaveRequest{Job: uint32(r.cfg.Job.ID), Sender: uint32(r.cfg.Worker), Token: r.token})
	}
	r.remove()
	r.token = nil
	_ = r.conn.Close()
}

// awaitOthers waits until the other workers have left.
func (r *Rounds) awaitOthers() {
	ctx, cancel := context.WithTimeout(r.ctx, partLimit)
	defer cancel()
	var delay pause
	isHere := func(m *pb.Member) bool { return !m.Left && m.Sender != uint32(r.cfg.Worker) }
	for {
		members, err := r.list(ctx)
		if err != nil || !slices.ContainsFunc(members, isHere) || delay.waitPause(ctx) != nil {
			return
		}
	}
}

// remove ends the lowest worker's job.
func (r *Rounds) remove() {
	if r.owned == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	if err := r.owned.Remove(ctx); err != nil {
		r.cfg.Log.Warn("cannot remove the job, which ends with its lease", "job", r.cfg.Job.ID, "error", err)
	}
	r.owned = nil
}

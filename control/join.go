// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

// IndexField is the field of an agreement for the index of a server. It determines the rows that
// the server owns, so a worker that lists the servers in another order must not join.
const IndexField = "index of the server"

// TrainingField is the field of an agreement for the identity of the training, which is random. Its
// checkpoints carry it, so that files of another training are not taken for its own.
const TrainingField = "training"

// leaveLimit is how long a leaving worker waits for an answer.
const leaveLimit = 2 * time.Second

// Membership is a worker's admission at the aggregator and at the parameter server. It ends with
// Leave, which releases its connections, with the context of Join, or with either service's
// admission. Several goroutines may use its calls, which are retried when a connection breaks.
// After the end of the admission they fail with the reason.
type Membership struct {
	// The values for the fields of transport.WorkerConfig with the same names.
	AggregatorEpoch, ServerEpoch uint16
	Stripes                      int
	Mode                         aggregator.Mode
	Arithmetic                   aggregator.Arithmetic
	Exp                          int // binary exponent of the unit of a fixed-point slot
	Workers                      int // in rounds

	Instance  uint64 // of the job
	Dense     bool   // hot frames are dense, otherwise lane-aligned
	FirstStep uint64 // that the worker trains: the store has the earlier ones
	// NextStep is the step of the next Barrier or Reduce. It may differ from FirstStep where workers
	// train at their own pace.
	NextStep uint64

	// KeepsLog means that the worker has to keep the frames that the aggregator has acknowledged, and
	// to pass its log to [Membership.KeepLog].
	KeepsLog bool
	// Aggregator is the index of the aggregator: 0 is that of [JoinConfig.Aggregator], then come its
	// Standbys.
	Aggregator int
	// NoAggregator means that the job has no aggregator now: the fields that describe it, and
	// AggregatorEpoch, are zero.
	NoAggregator bool

	// MoreEpochs and MoreFirstSteps are ServerEpoch and FirstStep of the servers from index 1 on,
	// whose checkpoints may be of other steps.
	MoreEpochs     []uint16
	MoreFirstSteps []uint64
	// MoreShares are the epochs of the admissions to the shares from index 1 on.
	MoreShares []uint16
	// Checkpoints are, by index, the steps from which each server could start.
	Checkpoints [][]uint64
	// Trainings are, by index, the identities of the trainings that the servers continue; "" is
	// a new one, or one of an earlier release.
	Trainings []string
	// Training is the identity of the training in which the worker takes part, also of a new one.
	Training string

	cfg         JoinConfig
	job, worker uint32
	plan        uint64           // version of that by which it has joined; 0: none, or of an earlier release
	addresses   []netip.AddrPort // of the servers, then of the aggregator
	servers     []joinedServer
	checked     []*pb.Membership        // the servers' answers to Check, nil of an earlier release
	leaves      []func(Departure) error // at the services joined, the newest last
	conns       []*grpc.ClientConn

	kept kept

	ctx   context.Context // ends with the admission, with its reason
	end   context.CancelCauseFunc
	ended atomic.Bool // by Leave or by a service, whichever is first
}

// errLeft is the error of calls after Leave.
var errLeft = errors.New("the worker has left the job")

// joinedServer is a parameter server that has admitted the worker.
type joinedServer struct {
	pb.ParameterServerClient
	role  string // its name in errors
	token []byte
	next  uint64 // its NextStep: without Sync, servers count the steps each for itself
}

// differsError is the refusal of a service that expects of the worker something else.
type differsError struct {
	error
	restarted bool // it says that the worker has asked an earlier run of it
}

func (e differsError) Unwrap() error { return e.error }

// joinOnce is Join, for a configuration without defaults.
func joinOnce(ctx context.Context, cfg JoinConfig) (_ *Membership, err error) {
	m := &Membership{job: uint32(cfg.Job), worker: uint32(cfg.Worker)}
	m.kept.news, m.kept.settled = make(chan struct{}, 1), make(chan struct{})
	secret := access.NewRandom(cfg.Random).Secret()
	cfg.attempt = secret[:]
	m.cfg = cfg
	m.ctx, m.end = context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			if m.ended.Load() { // the other service's reason is more specific
				err = context.Cause(m.ctx)
			} else if !errors.Is(err, errMoved) && m.planHasChanged(ctx, &cfg) {
				err = fmt.Errorf("%w: %w", err, errMoved)
			}
			m.LeaveAs(Departure{Unused: true})
		}
	}()
	dial := func(peer access.Peer, addr netip.AddrPort) (*grpc.ClientConn, error) {
		conn, err := access.Dial(ctx, peer, addr, cfg.Security, cfg.Limit, cfg.Log, cfg.Dial...)
		if err == nil {
			m.conns = append(m.conns, conn)
		}
		return conn, err
	}

	// The servers are first: the one with index 0 creates the job at the aggregator. All services are
	// reached, and asked whether they would admit the worker, before any does: what one refuses must
	// change nothing at the others.
	addresses := cfg.servers()
	for i, addr := range addresses {
		peer, role := access.ServerOf(cfg.Job), "parameter server"
		if len(addresses) > 1 {
			role = fmt.Sprintf("parameter server %d of %d (by index, from 0)", i, len(addresses))
			peer = peer.Named(role)
		}
		conn, err := dial(peer, addr)
		if err != nil {
			return nil, err
		}
		m.servers = append(m.servers, joinedServer{pb.NewParameterServerClient(conn), role, nil, 0})
	}
	var client pb.AggregatorClient
	known, err := m.findAggregator(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	if err := m.takePlan(ctx, &cfg); err != nil {
		return nil, err
	}
	reach := func() error {
		for end := time.Now().Add(cfg.Limit); ; {
			limit := cfg.Limit
			if known != nil && known.KeepLog { // the server may notice meanwhile that it is lost
				limit = min(limit, DefaultGrace)
			}
			conn, err := access.Dial(ctx, access.TheSwitch(), cfg.Aggregator, cfg.Security, limit, cfg.Log, cfg.Dial...)
			if err == nil {
				client = pb.NewAggregatorClient(conn)
				m.kept.here = &admittedAt{conn: conn, end: func() {}, leave: func(Departure) error { return nil }}
				return nil
			}
			if ctx.Err() != nil || errors.Is(err, access.ErrTLS) || known == nil || !known.KeepLog || time.Now().After(end) ||
				m.hasMoved(ctx, &cfg, known) {
				return err
			}
		}
	}
	m.addresses = append(slices.Clone(addresses), cfg.Aggregator)
	explain := func(err error) error {
		switch unknown := cfg.KeepsLog && errors.Is(err, access.ErrNotFound); {
		case known != nil && m.hasMoved(ctx, &cfg, known), known == nil && unknown:
			err = fmt.Errorf("%w: %w", err, errMoved)
		case known != nil && known.KeepLog && unknown:
			err = fmt.Errorf("%w: %w", err, errForgotten)
		}
		return err
	}
	if !m.NoAggregator {
		if err := reach(); err != nil {
			return nil, explain(err)
		}
	}
	shares, err := m.reachShares(dial, &cfg)
	if err != nil {
		return nil, err
	}
	if err := m.checkAll(&cfg, client, shares); err != nil {
		return nil, explain(err)
	}
	var joined []*pb.Membership
	for i := range m.servers {
		s := &m.servers[i]
		var more func(*pb.Membership)
		if i == 0 {
			more = m.kept.hearMessage
		}
		role := s.role
		here := m.atServer(&cfg, i)
		here.run = m.checked[i].GetRun()
		answer, leave, err := joinAt(m.ctx, here, s.role, addresses[i], s.Join, s.Leave, more,
			func(err error) { m.lose(callError(role, "withdrew this worker", err), cfg.Lost) })
		if differs := (differsError{}); errors.As(err, &differs) && (differs.restarted || m.isAnotherInstance(&cfg)) {
			err = fmt.Errorf("%w: %w", err, errRestarted)
		}
		if err != nil {
			return nil, err
		}
		m.leaves = append(m.leaves, leave)
		s.token, s.next = answer.Token, nextStep(answer)
		joined = append(joined, answer)
	}
	if cfg.NoServer {
		joined = []*pb.Membership{{}}
	}
	m.KeepsLog = cfg.KeepsLog && joined[0].KeepLog
	var admitted *pb.Admission
	if !m.NoAggregator {
		admission, end := context.WithCancel(m.ctx)
		var leave func(Departure) error
		admitted, leave, err = joinAt(admission, cfg.atShare(0), access.SwitchDaemon, cfg.Aggregator, client.Join,
			client.Leave, nil, func(err error) { m.aggregatorLost(&cfg, err) })
		if err != nil {
			end()
			if m.kept.hasChanged(joined[0].Instance) {
				err = fmt.Errorf("%w: %w", err, errMoved)
			}
			return nil, explain(err)
		}
		here := m.kept.here
		here.epoch, here.end, here.leave = uint16(admitted.Epoch), end, leave
	}
	if cfg.NoServer {
		joined[0].Instance = admitted.Instance
	}
	for _, one := range joined {
		m.Checkpoints = append(m.Checkpoints, one.Checkpoints)
	}
	for _, more := range joined[1:] {
		m.MoreEpochs = append(m.MoreEpochs, uint16(more.Epoch))
		m.MoreFirstSteps = append(m.MoreFirstSteps, more.FirstStep)
	}
	if err := m.take(joined[0], admitted); err != nil {
		return nil, err
	}
	if err := m.joinShares(&cfg, shares, joined[0]); err != nil {
		return nil, err
	}
	m.kept.mu.Lock()
	defer m.kept.mu.Unlock()
	m.kept.instance, m.kept.settledFor = joined[0].Instance, joined[0].Ended
	if m.kept.plan == nil {
		m.kept.plan = joined[0].Plan
	}
	if !m.kept.heard {
		m.kept.told, m.kept.ended = joined[0].Instance, joined[0].Ended
	}
	return m, nil
}

// lose ends the admission because a service ended it.
func (m *Membership) lose(why error, tell func(error)) {
	if !m.ended.CompareAndSwap(false, true) {
		return // the other service was first, or the worker has left
	}
	m.end(why)
	if tell != nil {
		tell(why)
	}
}

// Err returns why the admission has ended, or nil.
func (m *Membership) Err() error { return context.Cause(m.ctx) }

// take reads the answers of the aggregator and of the server that created the job there.
func (m *Membership) take(joined *pb.Membership, admitted *pb.Admission) error {
	m.FirstStep, m.NextStep, m.ServerEpoch = joined.FirstStep, nextStep(joined), uint16(joined.Epoch)
	if admitted == nil {
		if joined.Instance != 0 {
			return fmt.Errorf("the parameter server of job %d has an aggregator again (%w)", m.job, errMoved)
		}
		return nil
	}
	if now := joined.Plan.GetVersion(); now != m.plan {
		return fmt.Errorf("job %d follows plan %d by now, and not %d any more (%w)", m.job, now, m.plan, errMoved)
	}
	instances := instancesOf(joined)
	if want, has := max(1, len(m.cfg.Shares)), len(instances); want != has {
		return fmt.Errorf("the parameter server divides the hot set of job %d among %d jobs, this worker among %d: "+
			"copy one cluster file to all hosts", m.job, has, want)
	}
	if instances[0] != admitted.Instance {
		return fmt.Errorf("the parameter server served instance %d of job %d when this worker joined it, the aggregator has instance %d "+
			"(%w): start this worker again; if that does not help, restart the server", instances[0], m.job, admitted.Instance, errRestarted)
	}
	if err := checkAdmission(m.cfg.atShare(0), admitted); err != nil {
		return err
	}
	var known [2]bool
	m.Mode, known[0] = ModeOf(admitted.Mode)
	m.Arithmetic, known[1] = ArithmeticOf(admitted.Arithmetic)
	if known != [2]bool{true, true} {
		return fmt.Errorf("the aggregator runs job %d in mode %v with arithmetic %v, which this worker does not know: use the same version of Libra on all hosts", m.job, admitted.Mode, admitted.Arithmetic)
	}
	m.Exp, m.Workers = int(admitted.Exponent), int(admitted.Workers)
	m.AggregatorEpoch = uint16(admitted.Epoch)
	m.Stripes, m.Dense, m.Instance = int(admitted.Stripes), admitted.Dense, admitted.Instance
	return nil
}

// checkAdmission refuses an admission to a job that does not take what the worker sends.
func checkAdmission(cfg *JoinConfig, admitted *pb.Admission) error {
	if admitted.Window < wire.DefaultWindow {
		return fmt.Errorf("the aggregator recognises duplicates within %d frames, this worker needs %d", admitted.Window,
			wire.DefaultWindow)
	}
	if pages := max(1, admitted.Pages); cfg.Pages > int(pages) {
		return fmt.Errorf("the aggregator takes %d hot scalars of job %d, the hot set has more: run the same version of Libra on all hosts",
			uint64(pages)*aggregator.PageSlots, cfg.Job)
	}
	return nil
}

// nextStep returns the step of a server's next barrier.
func nextStep(joined *pb.Membership) uint64 {
	if joined.NextStep == nil {
		return joined.FirstStep
	}
	return *joined.NextStep
}

// admission is the first message of either service's join stream.
type admission interface {
	GetToken() []byte
	GetGraceMs() uint32
}

// joinAt joins one service and stays joined, until ctx ends; leave ends the admission. An earlier
// one of this worker, if it was killed, may last for a moment.
func joinAt[M any, P interface {
	*M
	admission
}](ctx context.Context, cfg *JoinConfig, role string, at netip.AddrPort,
	join func(context.Context, *pb.JoinRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[M], error),
	leave func(context.Context, *pb.LeaveRequest, ...grpc.CallOption) (*pb.LeaveResponse, error),
	more func(*M), lost func(error),
) (*M, func(Departure) error, error) {
	req := cfg.request()
	first, err := WhileTaken(ctx, cfg.Limit, cfg.Log, func(ctx context.Context) (*M, error) {
		return Stay(ctx,
			func(ctx context.Context, newest *M) (grpc.ServerStreamingClient[M], error) {
				again := proto.CloneOf(req)
				if newest != nil {
					again.Token = P(newest).GetToken()
				}
				return join(ctx, again)
			},
			func(newest *M) time.Duration { return time.Duration(P(newest).GetGraceMs()) * time.Millisecond },
			more, lost)
	})
	if err != nil {
		told := access.CallError(fmt.Sprintf("%s at %v", role, at), "join", err)
		if status.Code(err) == codes.FailedPrecondition {
			told = differsError{told, isRestarted(err)}
		}
		return nil, nil, told
	}
	return first, func(how Departure) error {
		ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
		defer cancel()
		_, err := leave(ctx, &pb.LeaveRequest{Job: req.Job, Sender: req.Sender, Token: P(first).GetToken(),
			Unused: how.Unused, Reason: how.reason(), Diverged: how.Diverged, Back: how.Back})
		return err
	}, nil
}

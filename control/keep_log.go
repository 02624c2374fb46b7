// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Log keeps the hot frames of a worker that the aggregator has acknowledged, until the server has
// them; a transport.Worker is one.
type Log interface {
	// Committed tells it which frames the server has.
	Committed(ctx context.Context, mark aggregator.Mark) error
	// Settle asks for the last mark, and returns when the server has all frames that it lacks. next is
	// the number of the worker's next frame for the server; from before the question until the end,
	// the worker reports no end of a step in frames.
	Settle(ctx context.Context, ask func(ctx context.Context, next uint32) (aggregator.Mark, error)) error
	// Enter makes it keep the frames for an aggregator that has admitted the worker, and the worker
	// send them there. The fields of the admission are those of the membership's. If it fails, the
	// worker goes on without an aggregator.
	Enter(ctx context.Context, at Admission) error
}

// Admission is a worker's admission at an aggregator.
type Admission struct {
	Aggregator int // its index: 0 is that of [JoinConfig.Aggregator], then come its Standbys
	Epoch      uint16
	Stripes    int
	Dense      bool
}

// kept is what a membership knows of the job's generation.
type kept struct {
	mu         sync.Mutex
	instance   uint64             // to which the worker's frames go; 0: to none
	here       *admittedAt        // the admission there, or nil
	told       uint64             // that the server has told last
	at         int                // aggregator of told
	ended      uint64             // that has ended last, as the server has told
	settledFor uint64             // the newest ended one for which the worker has settled
	heard      bool               // in a message after its answer to the join
	entering   context.CancelFunc // gives up entering told; nil: the worker does not enter
	plan       *pb.Plan           // that the server has told last, or nil
	held       []*heldShare       // admissions to shares, if there are several, or a plan
	mark       *pb.HarvestMark    // of told, that the server has told last, and the log does not know yet; or nil
	news       chan struct{}      // holds a token when they have changed
	settled    chan struct{}      // closed when the worker has settled
}

// admittedAt is a worker's admission at an aggregator.
type admittedAt struct {
	epoch uint16
	conn  *grpc.ClientConn
	end   context.CancelFunc
	leave func(Departure) error
}

// endStreams ends the streams and the connection of an admission.
func (a *admittedAt) endStreams() {
	if a != nil {
		a.end()
		a.conn.Close()
	}
}

// hearMessage takes a message of the stream of the server that decides.
func (k *kept) hearMessage(m *pb.Membership) {
	k.mu.Lock()
	if m.Instance != k.told {
		k.mark = nil
		if k.entering != nil {
			k.entering()
		}
	}
	k.told, k.at, k.ended, k.heard = m.Instance, int(m.Aggregator), m.Ended, true
	if m.Committed != nil {
		k.mark = m.Committed
	}
	if m.Plan != nil {
		k.plan = m.Plan
	}
	k.mu.Unlock()
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// hasChanged reports whether the server has told another instance than that which it gave at first.
func (k *kept) hasChanged(first uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.heard && k.told != first
}

// currentInstance returns the instance for calls, and what is closed when it has ended and the
// worker has settled.
func (k *kept) currentInstance() (instance uint64, settled <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.instance, k.settled
}

// KeepLog gives a worker's log what the server tells of it, and settles when the server has lost
// the aggregator, until ctx or the admission ends. When full has a token, the log has no room, and
// the server harvests at once. Without KeepLog, a membership with KeepsLog must not be used. The
// error is why the worker cannot go on.
func (m *Membership) KeepLog(ctx context.Context, log Log, full <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()
	var asks sync.WaitGroup
	defer asks.Wait()
	defer cancel(nil)
	asks.Go(func() { m.askForHarvests(ctx, full) })
	k := &m.kept
	var passed uint64 // the instance that the worker cannot enter
	for {
		k.mu.Lock()
		mark, told, at, ended, ends := k.mark, k.told, k.at, k.ended, k.ended != k.settledFor
		enters := !ends && k.instance == 0 && told != 0 && told != passed
		k.mark = nil
		if told != k.instance {
			mark = nil
		}
		k.mu.Unlock()
		var err error
		switch {
		case ends:
			err = m.settle(ctx, log, ended)
		case enters:
			if failed := m.enter(ctx, log, told, at); failed != nil && ctx.Err() == nil {
				passed = told
				m.cfg.logger().Warn("this worker sends hot rows to the server, although the job has an aggregator again", "error", failed)
			}
		case mark != nil:
			var committed aggregator.Mark
			if committed, err = markOfMessage(mark); err == nil {
				err = log.Committed(ctx, committed)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-k.news:
		case <-ctx.Done():
			return nil
		}
	}
}

// askForHarvests makes the server harvest whenever the log is full: the next harvest may be due in
// an hour. It is a goroutine of its own, because that waits for the settlement if the generation
// ends.
func (m *Membership) askForHarvests(ctx context.Context, full <-chan struct{}) {
	for {
		select {
		case <-full:
		case <-ctx.Done():
			return
		}
		_ = m.Report(ctx, 0, 0, false) // or the worker's other calls say why
		select {
		case <-time.After(markEvery): // the mark makes no room before
		case <-ctx.Done():
			return
		}
	}
}

// settle ends the worker's part in a generation, whether or not it has entered that: calls and ends
// of steps from before its end do not count for any worker.
func (m *Membership) settle(ctx context.Context, log Log, ended uint64) error {
	k := &m.kept
	s := &m.servers[0]
	req := &pb.SettleRequest{Job: m.job, Sender: m.worker, Token: s.token, Instance: ended}
	k.mu.Lock()
	if k.here != nil {
		req.Epoch = uint32(k.here.epoch)
	}
	k.mu.Unlock()
	settle := func(ctx context.Context) (answer *pb.SettleResponse, err error) {
		err = Repeat(ctx, func(ctx context.Context) (err error) {
			answer, err = s.Settle(ctx, req)
			return err
		})
		return answer, callError(s.role, "settle", err)
	}
	err := log.Settle(ctx, func(ctx context.Context, next uint32) (aggregator.Mark, error) {
		req.Next = next
		answer, err := settle(ctx)
		if err != nil {
			return aggregator.Mark{}, err
		}
		return markOfMessage(answer.Mark)
	})
	if err != nil {
		return fmt.Errorf("settling after the loss of the aggregator: %w", err)
	}
	k.mu.Lock()
	k.instance, k.settledFor = 0, ended
	close(k.settled)
	k.settled = make(chan struct{})
	k.here.endStreams()
	k.here = nil
	k.mu.Unlock()
	req.Settled = true
	_, err = settle(ctx)
	return err
}

// enterLimit is how long a worker waits for the aggregator of a new generation, which the server
// has reached. It need not hurry, as its hot rows go to the server meanwhile. If that host has got
// another Ethernet address, the kernel takes eight seconds to doubt the one that it knows, and
// sends the next SYN up to fifteen after the first.
const enterLimit = 20 * time.Second

// enter joins an instance of the job at another aggregator.
func (m *Membership) enter(ctx context.Context, log Log, instance uint64, at int) (err error) {
	cfg := m.cfg
	cfg.Limit = min(cfg.Limit, enterLimit)
	addresses := cfg.aggregators()
	if at >= len(addresses) {
		return cfg.unknownStandby(at)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k := &m.kept
	k.mu.Lock()
	if k.told != instance {
		k.mu.Unlock()
		return errMoved
	}
	k.entering = cancel
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		k.entering = nil
		k.mu.Unlock()
	}()
	here := &admittedAt{}
	here.conn, err = access.Dial(ctx, access.TheSwitch(), addresses[at], cfg.Security, cfg.Limit, cfg.Log, cfg.Dial...)
	if err != nil {
		return err
	}
	var admission context.Context
	admission, here.end = context.WithCancel(m.ctx)
	stays := context.AfterFunc(ctx, here.end)
	defer stays()
	defer func() {
		if err != nil {
			here.endStreams()
		}
	}()
	client := pb.NewAggregatorClient(here.conn)
	// It is asked first: what it or the worker refuses must change nothing there, where another job
	// may be.
	offer, err := WhileTaken(ctx, cfg.Limit, cfg.Log, func(ctx context.Context) (*pb.Admission, error) {
		return checkAt(ctx, &cfg, client.Check)
	})
	if err != nil {
		return access.CallError(fmt.Sprintf("%s at %v", access.SwitchDaemon, addresses[at]), "join", err)
	}
	if offer != nil {
		if _, err = m.termsOf(instance, offer); err != nil {
			return err
		}
	}
	var admitted *pb.Admission
	admitted, here.leave, err = joinAt(admission, &cfg, access.SwitchDaemon, addresses[at], client.Join, client.Leave, nil,
		func(err error) { m.aggregatorLost(&cfg, err) })
	if err != nil {
		return err
	}
	terms, err := m.termsOf(instance, admitted)
	here.epoch = terms.AggregatorEpoch
	// From here on calls name the instance: frames may go there before Enter has returned, or although
	// it fails because the generation has ended meanwhile. Then the worker settles.
	k.mu.Lock()
	if err == nil && m.ended.Load() { // which released what was there before
		err = errLeft
	}
	if err == nil {
		k.instance, k.here = instance, here
	}
	k.mu.Unlock()
	if err == nil {
		err = log.Enter(ctx, Admission{Aggregator: at, Epoch: here.epoch, Stripes: terms.Stripes, Dense: terms.Dense})
	}
	if err != nil {
		k.mu.Lock()
		if k.here == here && k.told == instance {
			k.instance, k.here = 0, nil
		}
		k.mu.Unlock()
		_ = here.leave(Departure{Unused: true})
		return err
	}
	stays()
	return nil
}

// termsOf reads what an aggregator tells of the job, and refuses another instance, and other terms
// than the worker's.
func (m *Membership) termsOf(instance uint64, admitted *pb.Admission) (*Membership, error) {
	terms := &Membership{job: m.job}
	if err := terms.take(&pb.Membership{Instance: instance}, admitted); err != nil {
		return terms, err
	}
	if terms.Mode != m.Mode || terms.Arithmetic != m.Arithmetic || terms.Exp != m.Exp {
		return terms, fmt.Errorf("the aggregator runs job %d in mode %v with arithmetic %v and exponent %d, not %v, %v and %d",
			m.job, terms.Mode, terms.Arithmetic, terms.Exp, m.Mode, m.Arithmetic, m.Exp)
	}
	return terms, nil
}

func markOfMessage(m *pb.HarvestMark) (aggregator.Mark, error) {
	var one Harvest
	if err := one.takeMarks(&pb.HarvestChunk{Marks: []*pb.HarvestMark{m}}); err != nil {
		return aggregator.Mark{}, err
	}
	return one.Marks[0], nil
}

// inGeneration makes a call of a server for the current generation. If that has ended, it makes the
// call again when the worker has settled.
func (m *Membership) inGeneration(ctx context.Context, call func(ctx context.Context, instance uint64) error) error {
	for {
		instance, settled := m.kept.currentInstance()
		err := call(ctx, instance)
		if !isFenced(err) {
			return err
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// aggregatorLost is called when the aggregator's stream has ended. A worker that keeps a log waits
// for the server, which decides whether the aggregator is lost; but the aggregator may also have
// withdrawn this worker alone.
func (m *Membership) aggregatorLost(cfg *JoinConfig, err error) {
	if m.KeepsLog && status.Code(err) != codes.PermissionDenied {
		cfg.logger().Warn("the aggregator has ended, or is out of reach: the worker waits for the server to notice",
			"error", err)
		return
	}
	why := ofAggregator(err, access.CallError(access.SwitchDaemon, "withdrew this worker", err))
	if m.KeepsLog && cfg.Rewinds { // a worker that was suspended is withdrawn everywhere: the server's reason counts
		select {
		case <-m.ctx.Done():
			return
		case <-time.After(DefaultGrace):
		}
		why = reasonError{why, ErrRewound} // the server takes its next admission for that of a lost worker
	}
	m.lose(why, cfg.Lost)
}

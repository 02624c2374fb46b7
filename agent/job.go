// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
)

const (
	// turnEntries is how many entries of a client are taken in one turn.
	turnEntries = 32
	// pollEvery is the number of turns between polls of the sockets while the worker does not sleep.
	pollEvery = 256
)

// job is the host's part in a job: its clients, and the worker that sends for them. It is the
// worker's feed: the worker's goroutine reads the rings and answers, without a switch of
// goroutines.
type job struct {
	cfg     Job
	log     *slog.Logger
	hotSet  packer.Fingerprint // zeros without a hot set
	numbers packer.Numbers     // accepted gradients; the packer checks those of fixed arithmetic
	barrier barrier
	turn    func(what string) // of a simulation, or nil
	epoll   int               // of the clients' sockets

	ctx        context.Context // ends with the sessions
	cancel     context.CancelFunc
	memory     atomic.Int64 // bytes that sessions have mapped
	gone       departed
	goroutines sync.WaitGroup

	// The fields below belong to the worker's goroutine.
	sessions []*session
	bySocket map[int32]*session
	events   [64]unix.EpollEvent
	settled  []*session // whose oldest entry can be answered
	loose    []*work    // entries that may be answered in any order
	pending  int        // entries that wait for their turn or for the worker
	turns    int        // since the last poll of the sockets
	learners []*learner // that count keys
	yield    bool       // goroutines were started that may need this thread
	idle     sys.Look   // of the worker, before it sleeps
	over     bool       // an ended session has to be detached
	ended    error      // why there are no more sessions, a Code
	finished bool
	done     chan struct{} // closed when finished

	ends tally // of sessions, by code
}

var _ transport.Feed = (*job)(nil)

// newJob attaches a job to its worker.
func newJob(cfg Job, log *slog.Logger, turn func(string)) (*job, error) {
	j := &job{
		cfg: cfg, log: log, turn: turn, idle: sys.Look{Limit: sys.DefaultLook}, bySocket: map[int32]*session{},
		gone: departed{of: map[uint32]int{}}, done: make(chan struct{}),
	}
	if turn != nil {
		j.idle.Limit = 0
	}
	if cfg.HotSet != nil {
		j.hotSet = cfg.HotSet.Fingerprint()
	}
	if cfg.Arithmetic == aggregator.Exact && !(cfg.NoWeights && cfg.Mode == aggregator.Combine) {
		j.numbers = packer.FloatsBelow(63 + cfg.Exp)
	}
	var err error
	if j.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	j.barrier.job, j.barrier.due = j, cfg.NextStep
	if err := cfg.Worker.Attach(context.Background(), j, j.epoll); err != nil {
		if errors.Is(err, transport.ErrConfig) {
			j.cancel()
			return nil, errors.Join(err, unix.Close(j.epoll))
		}
		j.End(err)
	}
	return j, nil
}

// Turn implements [transport.Feed]: it answers settled entries and takes some entries of each
// client.
func (j *job) Turn() (any bool) {
	any = len(j.loose) > 0 || len(j.settled) > 0
	j.answerSettled()
	for _, s := range j.sessions {
		any = s.beginEntries() || any
	}
	j.answerSettled() // entries that need no worker
	if any {
		j.idle.Found()
	}
	if j.turns++; j.turns >= pollEvery {
		j.pollSockets()
	}
	if j.over {
		j.removeEnded()
	}
	if j.ended != nil && j.pending == 0 && !j.finished {
		j.finished = true
		close(j.done)
	}
	return any
}

// Sleep implements [transport.Feed]: it lets the worker poll its link and the rings for a while,
// then asks the clients to wake it, and polls once more.
func (j *job) Sleep() bool {
	if j.yield {
		j.yield = false
		runtime.Gosched()
		return false
	}
	if j.idle.Again() {
		return false
	}
	for _, s := range j.sessions {
		s.mem.AgentSleeps.Store(1)
	}
	if slices.ContainsFunc(j.sessions, (*session).hasUnread) {
		j.clearSleeps()
		return false
	}
	return true
}

// Awake implements [transport.Feed].
func (j *job) Awake() {
	j.clearSleeps()
	j.pollSockets() // Turn follows
}

// clearSleeps announces to the clients that the agent is awake.
func (j *job) clearSleeps() {
	for _, s := range j.sessions {
		s.mem.AgentSleeps.Store(0)
	}
}

// pollSockets receives wake-ups, and detects closed sockets.
func (j *job) pollSockets() {
	j.turns = 0
	n, err := sys.EpollNow(j.epoll, j.events[:])
	if err != nil { // EINTR
		return
	}
	for i := range j.events[:n] {
		if s := j.bySocket[j.events[i].Fd]; s != nil {
			s.receiveWakeUp()
		}
	}
}

// answerSettled answers settled entries, one client after the other.
func (j *job) answerSettled() {
	for _, w := range j.loose {
		if w.request.Owner != nil { // a pull
			j.pending--
			w.setError(w.err)
		}
		w.answerEntry()
	}
	clear(j.loose)
	j.loose = j.loose[:0]
	for _, s := range j.settled {
		s.answerInOrder()
	}
	clear(j.settled)
	j.settled = j.settled[:0]
}

// awaitTurn is where a goroutine that is not the worker's waits until it may affect others.
func (j *job) awaitTurn(format string, args ...any) {
	if j.turn != nil {
		j.turn(fmt.Sprintf(format, args...))
	}
}

// runInWorker runs a function in the worker's goroutine. It returns false if the worker has ended.
func (j *job) runInWorker(call func()) bool {
	return j.cfg.Worker.Do(context.Background(), call) == nil
}

// addSession registers a session, unless the job refuses it.
func (j *job) addSession(s *session, welcome func(nextStep uint64) error) (err error) {
	if !j.runInWorker(func() { err = j.admitSession(s, welcome) }) {
		err = j.ended // written before the worker's end
	}
	if err != nil {
		s.cancel()
		return errors.Join(err, unix.Close(s.socket), s.mem.Close())
	}
	j.log.Info("client came", "client", s.number, "name", s.name,
		"user", s.who.Uid, "process", s.who.Pid, "bytes", s.layout.Total)
	return nil
}

// admitSession is the part of addSession that runs in the worker's goroutine.
func (j *job) admitSession(s *session, welcome func(nextStep uint64) error) error {
	if j.ended != nil {
		return j.ended
	}
	own := 0
	for _, other := range j.sessions {
		if other.who.Uid == s.who.Uid {
			own++
		}
	}
	if err := j.checkLimits(s, len(j.sessions), own, ""); err != nil {
		return err
	}
	gone, own := j.gone.countUser(s.who.Uid)
	if err := j.checkLimits(s, gone, own, ", which have ended, but whose pushes are still in flight"); err != nil {
		return err
	}
	step, err := j.barrier.addParty(s)
	if err != nil {
		return err
	}
	err = unix.EpollCtl(j.epoll, unix.EPOLL_CTL_ADD, s.socket, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.socket)})
	if err == nil {
		err = welcome(step)
	}
	if err != nil {
		j.barrier.undoAddParty(s) // closing its last descriptor removes the socket from j.epoll
		return err
	}
	if j.cfg.Record != nil {
		s.record = j.cfg.Record(int(s.who.Pid), s.name)
	}
	j.memory.Add(int64(s.layout.Total))
	j.sessions = append(j.sessions, s)
	j.bySocket[int32(s.socket)] = s
	return nil
}

// checkLimits refuses a session if the limits of all clients or of its user are reached.
func (j *job) checkLimits(s *session, others, own int, which string) error {
	switch {
	case others >= j.cfg.Limits.Clients:
		return fmt.Errorf("%w: %d%s", agentproto.Clients, others, which)
	case own >= j.cfg.Limits.UserClients:
		return fmt.Errorf("%w: %d of user %d%s", agentproto.Clients, own, s.who.Uid, which)
	}
	return nil
}

// departed counts, by user, the ended sessions that hold memory for entries in flight.
type departed struct {
	mu sync.Mutex
	of map[uint32]int
}

func (d *departed) addUser(user uint32, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of[user] += n; d.of[user] == 0 {
		delete(d.of, user)
	}
}

func (d *departed) countUser(user uint32) (all, own int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.of {
		all += n
	}
	return all, d.of[user]
}

// removeEnded removes ended sessions. Their pushes continue.
func (j *job) removeEnded() {
	j.over = false
	rest := j.sessions[:0]
	for _, s := range j.sessions {
		if s.ended == nil {
			rest = append(rest, s)
			continue
		}
		delete(j.bySocket, int32(s.socket))
		// A socket that a forked child still holds would stay in the epoll set.
		_ = unix.EpollCtl(j.epoll, unix.EPOLL_CTL_DEL, s.socket, nil)
		s.closeSocket()
		j.barrier.removeParty(s)
		code := agentproto.OK
		_ = errors.As(s.ended, &code)
		j.ends.addCode(code)
		j.log.Info("client went", "client", s.number, "name", s.name, "pushes", s.counters.pushes.Load(), "reason", s.ended)
		j.gone.addUser(s.who.Uid, 1)
		if s.own != nil {
			s.own.sessionEnded()
		}
		if s.record != nil {
			s.record.Close()
		}
		s.releaseMemory()
	}
	clear(j.sessions[len(rest):])
	j.sessions = rest
}

var errGone = errors.New("its socket is closed")

// endSessions ends all sessions with a reason that wraps a code, and refuses new ones.
func (j *job) endSessions(why error) {
	if j.ended == nil {
		j.ended = why
	}
	for _, s := range j.sessions {
		s.endSession(why)
	}
	j.removeEnded()
	j.cancel()
	j.cfg.Worker.EndStep(nil)
}

// isOver reports whether the sessions have been ended, and new ones are refused.
func (j *job) isOver() (over bool) {
	return !j.runInWorker(func() { over = j.ended != nil }) || over
}

// End implements [transport.Feed]: the sessions end with the worker.
func (j *job) End(err error) {
	j.answerSettled()
	j.endSessions(j.endReason(err))
	if !j.finished {
		j.finished = true
		close(j.done)
	}
}

// endReason returns why the worker has ended, where its operations fail with err. It wraps a code.
func (j *job) endReason(err error) error {
	if j.cfg.Why != nil {
		if why := j.cfg.Why(); why != nil {
			err = why
		}
	}
	var silent *retransmit.SilentPeerError
	switch {
	case errors.Is(err, agentproto.AggregatorLost):
		return err
	case j.cfg.NoServer && errors.As(err, &silent):
		return fmt.Errorf("%w: %w", agentproto.AggregatorLost, err)
	}
	return fmt.Errorf("%w: %w", agentproto.JobEnded, err)
}

// closeJob ends all sessions with a reason that wraps a code, refuses new ones, and waits
// until their pushes are settled. If the worker has ended, the reason was that.
func (j *job) closeJob(why error) error {
	j.runInWorker(func() { j.endSessions(why) })
	<-j.done
	j.goroutines.Wait()
	_ = j.cfg.Worker.Attach(context.Background(), nil, -1) // a worker that has ended has no feed
	return os.NewSyscallError("close", unix.Close(j.epoll))
}

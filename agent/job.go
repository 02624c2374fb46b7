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

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/internal/sys"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

const (
	// turnEntries is how many entries of a client are taken before it is the next one's turn.
	turnEntries = 32
	// lookEvery is how many turns may pass until the sockets are looked at, if the worker does not sleep.
	lookEvery = 256
)

// job is the host's part in a job: the clients, and the worker that sends for them. It is the worker's feed:
// the worker's goroutine reads the rings and answers, so that no entry waits for a change of goroutines.
type job struct {
	cfg     Job
	log     *slog.Logger
	hotSet  packer.Fingerprint // zeros if there is none
	numbers packer.Numbers     // that a gradient may be; the packer knows those of fixed arithmetic
	barrier barrier
	epoll   int // of the clients' sockets

	ctx    context.Context // ends with the sessions
	cancel context.CancelFunc
	memory atomic.Int64 // bytes that sessions have mapped
	gone   departed
	others sync.WaitGroup

	// What follows belongs to the worker's goroutine.
	sessions []*session
	bySocket map[int32]*session
	events   [64]unix.EpollEvent
	settled  []*session // whose oldest entry can be answered
	loose    []*work    // entries that can be answered in any order
	pending  int        // entries that wait for their turn or for the worker
	turns    int        // since the sockets were looked at
	learners []*learner // who count keys
	yield    bool       // goroutines were started that may need this thread
	idle     sys.Look   // of the worker, before it sleeps
	over     bool       // a session has ended and is to be detached
	ended    error      // why there are no more sessions, a Code
	finished bool
	done     chan struct{} // closed when finished

	ends tally // of sessions, by code
}

var _ transport.Feed = (*job)(nil)

// newJob attaches a job to its worker.
func newJob(cfg Job, log *slog.Logger) (*job, error) {
	j := &job{cfg: cfg, log: log, idle: sys.Look{Limit: sys.DefaultLook}, bySocket: map[int32]*session{}, gone: departed{of: map[uint32]int{}}, done: make(chan struct{})}
	if cfg.HotSet != nil {
		j.hotSet = cfg.HotSet.Fingerprint()
	}
	if cfg.Arithmetic == aggregator.Exact {
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

// Turn implements [transport.Feed]: it answers what is settled and lets each client have some of its entries taken.
func (j *job) Turn() (any bool) {
	any = len(j.loose) > 0 || len(j.settled) > 0
	j.answer()
	for _, s := range j.sessions {
		any = s.take() || any
	}
	j.answer() // what needs no worker
	if any {
		j.idle.Found()
	}
	if j.turns++; j.turns >= lookEvery {
		j.look()
	}
	if j.over {
		j.detach()
	}
	if j.ended != nil && j.pending == 0 && !j.finished {
		j.finished = true
		close(j.done)
	}
	return any
}

// Sleep implements [transport.Feed]: it lets the worker look at its link and the rings for a while, then tells the clients
// to wake it, and looks once more.
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
	if slices.ContainsFunc(j.sessions, (*session).waits) {
		j.awake()
		return false
	}
	return true
}

// Awake implements [transport.Feed].
func (j *job) Awake() {
	j.awake()
	j.look() // Turn follows
}

func (j *job) awake() {
	for _, s := range j.sessions {
		s.mem.AgentSleeps.Store(0)
	}
}

// look receives wake-ups, and finds sockets that have ended.
func (j *job) look() {
	j.turns = 0
	n, err := sys.EpollNow(j.epoll, j.events[:])
	if err != nil { // EINTR
		return
	}
	for i := range j.events[:n] {
		if s := j.bySocket[j.events[i].Fd]; s != nil {
			s.hear()
		}
	}
}

// answer answers what is settled, of each client in one go.
func (j *job) answer() {
	for _, w := range j.loose {
		if w.request.Owner != nil { // a pull
			j.pending--
			w.fail(w.err)
		}
		w.answer()
	}
	clear(j.loose)
	j.loose = j.loose[:0]
	for i := 0; i < len(j.settled); i++ { // an answer may settle another's entry
		j.settled[i].answer()
		j.settled[i] = nil
	}
	j.settled = j.settled[:0]
}

// do runs a function in the worker's goroutine. It reports whether it ran: not if the worker has ended.
func (j *job) do(call func()) bool {
	return j.cfg.Worker.Do(context.Background(), call) == nil
}

// attach makes a session known, unless the job refuses it.
func (j *job) attach(s *session, welcome func(nextStep uint64) error) (err error) {
	if !j.do(func() { err = j.admit(s, welcome) }) {
		err = j.ended // written before the worker's end
	}
	if err != nil {
		s.cancel()
		return errors.Join(err, unix.Close(s.socket), s.mem.Close())
	}
	j.log.Info("client came", "client", s.number, "name", s.name, "user", s.who.Uid, "process", s.who.Pid, "bytes", s.layout.Total)
	return nil
}

func (j *job) admit(s *session, welcome func(nextStep uint64) error) error {
	if j.ended != nil {
		return j.ended
	}
	own := 0
	for _, other := range j.sessions {
		if other.who.Uid == s.who.Uid {
			own++
		}
	}
	if err := j.room(s, len(j.sessions), own, ""); err != nil {
		return err
	}
	gone, own := j.gone.count(s.who.Uid)
	if err := j.room(s, gone, own, ", which are gone, but what they have pushed is still on its way"); err != nil {
		return err
	}
	step, err := j.barrier.join(s)
	if err != nil {
		return err
	}
	err = unix.EpollCtl(j.epoll, unix.EPOLL_CTL_ADD, s.socket, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.socket)})
	if err == nil {
		err = welcome(step)
	}
	if err != nil {
		j.barrier.unjoin(s) // with its last descriptor the socket leaves j.epoll
		return err
	}
	j.memory.Add(int64(s.layout.Total))
	j.sessions = append(j.sessions, s)
	j.bySocket[int32(s.socket)] = s
	return nil
}

// room refuses a session if there are as many others as the configuration allows, in all or of its user.
func (j *job) room(s *session, others, own int, which string) error {
	switch {
	case others >= j.cfg.Limits.Clients:
		return fmt.Errorf("%w: %d%s", agentproto.Clients, others, which)
	case own >= j.cfg.Limits.UserClients:
		return fmt.Errorf("%w: %d of user %d%s", agentproto.Clients, own, s.who.Uid, which)
	}
	return nil
}

// departed counts, by user, the sessions that have ended and hold memory for entries on their way.
type departed struct {
	mu sync.Mutex
	of map[uint32]int
}

func (d *departed) add(user uint32, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of[user] += n; d.of[user] == 0 {
		delete(d.of, user)
	}
}

func (d *departed) count(user uint32) (all, own int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.of {
		all += n
	}
	return all, d.of[user]
}

// detach forgets the sessions that have ended. What they have pushed goes on.
func (j *job) detach() {
	j.over = false
	rest := j.sessions[:0]
	for _, s := range j.sessions {
		if s.ended == nil {
			rest = append(rest, s)
			continue
		}
		delete(j.bySocket, int32(s.socket))
		// A descriptor that a forked child holds would stay in the set.
		_ = unix.EpollCtl(j.epoll, unix.EPOLL_CTL_DEL, s.socket, nil)
		s.hangUp()
		j.barrier.leave(s)
		code := agentproto.OK
		_ = errors.As(s.ended, &code)
		j.ends.add(code)
		j.log.Info("client went", "client", s.number, "name", s.name, "pushes", s.counters.pushes.Load(), "reason", s.ended)
		j.gone.add(s.who.Uid, 1)
		s.release()
	}
	clear(j.sessions[len(rest):])
	j.sessions = rest
}

// errGone ends the sessions of clients that have closed their socket, or died.
var errGone = errors.New("its socket is closed")

// finish ends all sessions with a reason that wraps a code, and refuses further ones.
func (j *job) finish(why error) {
	if j.ended == nil {
		j.ended = why
	}
	for _, s := range j.sessions {
		s.end(why)
	}
	j.detach()
	j.cancel()
	j.cfg.Worker.LeaveStep()
}

// End implements [transport.Feed]: the sessions end with the worker.
func (j *job) End(err error) {
	j.answer()
	if j.cfg.Why != nil {
		if why := j.cfg.Why(); why != nil {
			err = why
		}
	}
	j.finish(fmt.Errorf("%w: %w", agentproto.JobEnded, err))
	if !j.finished {
		j.finished = true
		close(j.done)
	}
}

// close ends all sessions with a reason that wraps a code, refuses further ones, and
// waits until what they have pushed is settled. If the worker has ended, that was the reason.
func (j *job) close(why error) error {
	j.do(func() { j.finish(why) })
	<-j.done
	j.others.Wait()
	_ = j.cfg.Worker.Attach(context.Background(), nil, -1) // if the worker has ended, it has no feed any more
	return os.NewSyscallError("close", unix.Close(j.epoll))
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

// turnEntries is how many entries of a client are taken before it is the next one's turn.
const turnEntries = 32

// job is the host's part in a job: the clients, and the worker that sends for them.
type job struct {
	cfg     Job
	log     *slog.Logger
	hotSet  packer.Fingerprint // zeros if there is none
	numbers packer.Numbers     // that a gradient may be; the packer knows those of fixed arithmetic
	barrier barrier
	settle  settler

	ctx    context.Context // ends with the sessions
	cancel context.CancelFunc
	memory atomic.Int64 // bytes that sessions have mapped
	others sync.WaitGroup

	calls chan func()   // run by the goroutine
	wake  chan struct{} // something happened that the goroutine may have to see

	// What follows belongs to the goroutine.
	sessions []*session
	ended    error // why there are no more, a Code
	newest   *transport.Ticket
	done     chan struct{} // closed when it has ended

	ends tally // of sessions, by code
}

func newJob(cfg Job, log *slog.Logger) *job {
	j := &job{
		cfg: cfg, log: log,
		calls: make(chan func()), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if cfg.HotSet != nil {
		j.hotSet = cfg.HotSet.Fingerprint()
	}
	if cfg.Arithmetic == aggregator.Exact {
		j.numbers = packer.FloatsBelow(63 + cfg.Exp)
	}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	j.barrier.job, j.barrier.due = j, cfg.NextStep
	j.settle.start()
	go j.run()
	go func() {
		select {
		case <-cfg.Worker.Done():
			j.close(agentproto.JobEnded)
		case <-j.done:
		}
	}()
	return j
}

// run is the goroutine that reads the rings.
func (j *job) run() {
	defer close(j.done)
	for j.ended == nil || len(j.sessions) > 0 {
		if !j.turn() {
			j.sleep()
		}
	}
}

// turn lets each client have some of its entries taken, and reports whether there were any.
func (j *job) turn() (any bool) {
	select {
	case call := <-j.calls:
		call()
		any = true
	default:
	}
	for _, s := range j.sessions {
		any = s.take() || any
	}
	if j.newest != nil {
		// What was pushed in this turn travels together, and now.
		j.newest.Done()
		j.newest = nil
	}
	return any
}

// sleep waits until there may be something to do. Before that it tells the clients
// to wake it, and looks once more.
func (j *job) sleep() {
	for _, s := range j.sessions {
		s.mem.AgentSleeps.Store(1)
	}
	awake := false
	for _, s := range j.sessions {
		awake = awake || s.waits()
	}
	if !awake {
		select {
		case call := <-j.calls:
			call()
		case <-j.wake:
		}
	}
	for _, s := range j.sessions {
		s.mem.AgentSleeps.Store(0)
	}
}

// poke makes the goroutine look at the rings.
func (j *job) poke() {
	select {
	case j.wake <- struct{}{}:
	default: // it will
	}
}

// post has the goroutine run a function, and waits until it has begun. It reports whether
// it runs.
func (j *job) post(call func()) bool {
	select {
	case j.calls <- call:
		return true
	case <-j.done:
		return false
	}
}

// attach makes a session known, unless the job refuses it.
func (j *job) attach(s *session, welcome func(nextStep uint64) error) error {
	answer := make(chan error, 1)
	ran := j.post(func() {
		err := j.ended
		if err == nil && len(j.sessions) >= j.cfg.Limits.Clients {
			err = fmt.Errorf("%w: %d", agentproto.Clients, len(j.sessions))
		}
		var step uint64
		if err == nil {
			step, err = j.barrier.join(s)
		}
		if err == nil {
			j.memory.Add(int64(s.layout.Total))
			if err = welcome(step); err != nil {
				j.memory.Add(-int64(s.layout.Total))
				j.barrier.leave(s)
			}
		}
		if err == nil {
			j.sessions = append(j.sessions, s)
			j.others.Go(s.listen)
			j.log.Info("client came", "client", s.number, "name", s.name, "user", s.who.Uid, "process", s.who.Pid, "bytes", s.layout.Total)
		}
		answer <- err
	})
	err := error(agentproto.JobEnded)
	if ran {
		err = <-answer
	} else if j.ended != nil { // done is closed
		err = j.ended
	}
	if err != nil {
		s.cancel()
		_ = s.mem.Close()
	}
	return err
}

// detach forgets a session whose socket has ended. What it has pushed goes on.
func (j *job) detach(s *session) {
	for i, other := range j.sessions {
		if other == s {
			j.sessions = append(j.sessions[:i:i], j.sessions[i+1:]...)
		}
	}
	s.end(errGone)
	j.barrier.leave(s)
	code := agentproto.OK
	_ = errors.As(s.ended, &code) // nothing changes it any more
	j.ends.add(code)
	j.log.Info("client went", "client", s.number, "name", s.name, "pushes", s.counters.pushes.Load(), "reason", s.ended)
	s.release()
}

// errGone ends the sessions of clients that have closed their socket, or died.
var errGone = errors.New("its socket is closed")

// close ends all sessions with a reason that wraps a code, refuses further ones, and
// waits until what they have pushed is settled. If the worker has ended, that is the reason.
func (j *job) close(why error) {
	select {
	case <-j.cfg.Worker.Done():
		why = fmt.Errorf("%w: %w", agentproto.JobEnded, j.cfg.Worker.Err())
	default:
	}
	j.post(func() {
		if j.ended == nil {
			j.ended = why
		}
		for _, s := range j.sessions {
			s.end(why)
		}
		j.cancel()
	})
	<-j.done
	j.others.Wait()
	j.settle.close()
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/linux/sys"
)

// wakeAllowance is how many wake-ups a client may send beyond its read entries and a full ring.
const wakeAllowance = 1024

// session is one client.
type session struct {
	job     *job
	number  uint32
	name    string
	who     *unix.Ucred
	socket  int
	mem     *agentproto.Memory
	layout  agentproto.Layout
	parties uint32     // in barriers, including this one; 0 if it is not a party
	own     *ownership // or nil

	ctx    context.Context // ends with the session
	cancel context.CancelFunc

	// refs keeps the memory mapped: one for the session and one for each entry in flight.
	refs   atomic.Int32
	held   atomic.Bool  // an entry waits for memory, or a push for the end of a step
	charge atomic.Int64 // bytes of entries in flight
	ending atomic.Int32 // BARRIERs and REDUCEs that are not answered
	// late means that the party has reached the end of the due step, but the host could not meet the
	// others: a push now would be in the wrong step.
	late atomic.Bool

	// The worker's goroutine's view of the rings, which is never read back from the memory.
	head  uint32                    // entries read
	taken uint64                    // the same, not wrapped
	raw   [agentproto.EntryLen]byte // the newest entry, raw
	entry agentproto.Entry          // the newest entry, parsed

	// Also of that goroutine.
	ended       error // the reason, nil while the session lasts
	first, last *work // the queue of entries in answer order; last is valid unless first is nil
	failedBy    map[Code]uint64
	failed      agentproto.Completion // of the first failed push since the last FLUSH, or REDUCE of a due step

	mu        sync.Mutex // guards the fields below
	completed uint32     // completions written
	handles   uint64     // assigned to prepared batches so far
	prepared  map[uint64]*prepared
	charged   uint64 // for them

	sums *stepSums // of the last REDUCE, shared with the host's other parties

	counters     counters
	pushedBefore uint64 // pushes before the last step that has ended; under the barrier's lock
}

// newSession makes a session with its memory; job.addSession registers it.
func (j *job) newSession(socket int, who *unix.Ucred, hello agentproto.Hello, number uint32) (*session, *os.File,
	error) {
	if err := j.checkHello(hello); err != nil {
		return nil, nil, err
	}
	layout := agentproto.LayoutOf(hello.Entries, hello.BufferBytes)
	mem, file, err := agentproto.NewMemory(layout)
	if err != nil {
		return nil, nil, err
	}
	s := &session{
		job: j, number: number, name: hello.Client, who: who, socket: socket, mem: mem, layout: layout,
		parties:  hello.Parties,
		prepared: map[uint64]*prepared{},
	}
	s.ctx, s.cancel = context.WithCancel(j.ctx)
	s.refs.Store(1)
	return s, file, nil
}

// retainMemory keeps the memory mapped until releaseMemory.
func (s *session) retainMemory() { s.refs.Add(1) }

func (s *session) releaseMemory() {
	if s.refs.Add(-1) > 0 {
		return
	}
	if err := s.mem.Close(); err != nil {
		s.job.log.Error("a client's memory is not returned", "client", s.number, "error", err)
	}
	s.job.memory.Add(-int64(s.layout.Total))
	s.job.gone.addUser(s.who.Uid, -1)
}

// receiveWakeUp receives a wake-up, or the end of the socket.
func (s *session) receiveWakeUp() {
	var b [8]byte
	n, err := sys.ReceiveNow(s.socket, b[:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
	case err != nil, n == 0:
		s.endSession(errGone)
	default:
		if n := s.counters.wakesReceived.Add(1); n > s.taken+uint64(s.layout.Entries)+wakeAllowance {
			s.endSession(agentproto.WakeFlood)
		}
	}
}

// endSession ends the session; this turn detaches it. The first reason counts.
func (s *session) endSession(why error) {
	if s.ended != nil {
		return
	}
	s.ended, s.job.over = why, true
	code := agentproto.OK
	if errors.As(why, &code) {
		s.mem.End(code, why.Error())
	}
	s.cancel()
}

// putCompletion writes the completion of an entry. The caller holds the memory. The ring is not
// full: sq_tail - cq_head was at most its size when the entry was read; a client that moves cq_head
// back harms only itself.
func (s *session) putCompletion(c *agentproto.Completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Put(s.mem.Completion(s.completed))
	s.completed++
}

// publishCompletions makes completions visible to the client, and wakes it if it sleeps. The caller
// holds the memory.
func (s *session) publishCompletions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.CQTail.Store(s.completed)
	if s.mem.ClientSleeps.Load() == 1 && s.mem.ClientSleeps.CompareAndSwap(1, 0) {
		s.counters.wakesSent.Add(1)
		agentproto.Wake(s.socket)
	}
}

// closeSocket closes the socket. Later answers send no wake-up.
func (s *session) closeSocket() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = unix.Close(s.socket)
	s.socket = -1
}

func (s *session) completionsWritten() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.completed
}

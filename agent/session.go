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

	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/internal/sys"
)

// wakeAllowance is how many more wake-ups than entries read, and those of a full ring, a client may have sent.
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
	parties uint32 // in barriers, this one included; 0 if it takes no part

	ctx    context.Context // ends with the session
	cancel context.CancelFunc

	// refs keeps the memory mapped: one for the session and one for each entry on its way.
	refs   atomic.Int32
	held   atomic.Bool  // an entry waits for memory
	charge atomic.Int64 // bytes of entries on their way

	// What the worker's goroutine knows of the rings. Nothing of it is read from the memory again.
	head  uint32                    // entries read
	taken uint64                    // the same without wrapping
	raw   [agentproto.EntryLen]byte // the newest entry, as it was read
	entry agentproto.Entry          // the same

	// More of that goroutine.
	ended       error // why
	first, last *work // entries that are answered in their order; last is good while there is a first
	failedBy    map[Code]uint64
	failed      agentproto.Completion // of the first push that failed since the last FLUSH, or REDUCE of a step that was due

	mu        sync.Mutex // of what follows
	completed uint32     // completions written
	handles   uint64     // given to prepared batches so far
	prepared  map[uint64]*prepared
	charged   uint64 // for them

	sums *stepSums // of the last REDUCE, shared with the host's other parties

	counters counters
	// Pushes before the last end of a step that it came to, and before the last step that has ended; with the barrier's lock.
	pushedAt, pushedBefore uint64
}

// newSession makes a session's memory, which job.attach makes known.
func (j *job) newSession(socket int, who *unix.Ucred, hello agentproto.Hello, number uint32) (*session, *os.File, error) {
	if err := j.check(hello); err != nil {
		return nil, nil, err
	}
	layout := agentproto.LayoutOf(hello.Entries, hello.BufferBytes)
	mem, file, err := agentproto.NewMemory(layout)
	if err != nil {
		return nil, nil, err
	}
	s := &session{
		job: j, number: number, name: hello.Client, who: who, socket: socket, mem: mem, layout: layout, parties: hello.Parties,
		prepared: map[uint64]*prepared{},
	}
	s.ctx, s.cancel = context.WithCancel(j.ctx)
	s.refs.Store(1)
	return s, file, nil
}

// hold keeps the memory mapped until release.
func (s *session) hold() { s.refs.Add(1) }

func (s *session) release() {
	if s.refs.Add(-1) > 0 {
		return
	}
	if err := s.mem.Close(); err != nil {
		s.job.log.Error("a client's memory is not returned", "client", s.number, "error", err)
	}
	s.job.memory.Add(-int64(s.layout.Total))
	s.job.gone.add(s.who.Uid, -1)
}

// hear receives a wake-up, or the end of the socket.
func (s *session) hear() {
	var b [8]byte
	n, err := sys.ReceiveNow(s.socket, b[:])
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
	case err != nil, n == 0:
		s.end(errGone)
	default:
		if n := s.counters.wakesReceived.Add(1); n > s.taken+uint64(s.layout.Entries)+wakeAllowance {
			s.end(agentproto.WakeFlood)
		}
	}
}

// end ends the session, which is detached in this turn. The first reason counts.
func (s *session) end(why error) {
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

// complete writes the completion of an entry. The caller holds the memory. There is room: sq_tail - cq_head was
// at most the size of the ring when the entry was read, and of a cq_head that went back only its writer has the damage.
func (s *session) complete(c *agentproto.Completion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Put(s.mem.Completion(s.completed))
	s.completed++
}

// publish shows the client what was completed, and wakes it if it sleeps. The caller holds the memory.
func (s *session) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.CQTail.Store(s.completed)
	if s.mem.ClientSleeps.Load() == 1 && s.mem.ClientSleeps.CompareAndSwap(1, 0) {
		s.counters.wakesSent.Add(1)
		agentproto.Wake(s.socket)
	}
}

// hangUp closes the socket. Goroutines that answer later wake no one.
func (s *session) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = unix.Close(s.socket)
	s.socket = -1
}

// written returns how many completions were written.
func (s *session) written() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.completed
}

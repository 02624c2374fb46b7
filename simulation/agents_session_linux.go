// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/simulation/world"
)

const (
	// ringEntries is the size of a session's rings, and slotRows that of the memory of each entry.
	ringEntries = agentproto.MinEntries
	slotRows    = 16
)

// ring is a client's session with an agent: its rings and its memory, as docs/agent.md describes
// them.
type ring struct {
	l      *agentsLife
	name   string
	host   string
	at     *agentRun
	era    int
	mem    *agentproto.Memory
	socket int
	next   uint64 // the step that is due, as WELCOME says
	party  bool

	tail, head uint32   // entries submitted, completions read
	slots      []*asked // entry whose memory it is; nil: none
	entries    []*asked // all, in the order of the ring

	closed bool // by the client, or its death

	// What remained when the agent was killed: nothing that its goroutines still write is visible.
	lost             bool
	lastCQ, lastHead uint32

	excuses int // dropped steps that its end has explained
}

// asked is one entry of a ring.
type asked struct {
	agentproto.Entry
	s     *ring
	slot  int
	keys  []uint64
	grads []float32
	sent  []float32 // what the codec leaves of the gradients
	done  bool
	c     agentproto.Completion

	doneAt int64 // the turn in which the client has read its completion

	gotKeys []uint64 // results
	gotRows []float32
}

// openSession opens a session with an agent. It returns nil if there is none, or it refuses.
func (l *agentsLife) openSession(act *world.Actor, at *agentRun, name string, parties int) *ring {
	if at == nil || at.agent == nil || !at.ready || at.Dead() {
		return nil
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		l.Fail("%v", err)
		return nil
	}
	s := &ring{l: l, name: name, host: at.role, at: at, era: at.era, socket: fds[0], party: parties > 0}
	s.slots = make([]*asked, ringEntries)
	hello := agentproto.Hello{
		Job: jobName, Client: name, Entries: ringEntries, Parties: uint32(parties),
		BufferBytes: max(l.of.buffer, uint64(ringEntries*s.slotBytes())),
	}
	who := &unix.Ucred{Uid: uint32(os.Geteuid()), Pid: 1}
	act.Do("HELLO of " + name)
	err = at.agent.Admit(who, hello, fds[1], func(w *agentproto.Welcome, memory *os.File) (err error) {
		s.next = w.NextStep
		s.mem, err = agentproto.OpenMemory(int(memory.Fd()), w.Layout)
		return err
	})
	act.Yield("welcome")
	if err != nil {
		l.Tell("%s is refused\n", name)
		s.closeSocket()
		if s.mem != nil {
			_ = s.mem.Close()
		}
		return nil
	}
	l.Tell("%s has a session at %s, step %d is due\n", name, at.Name(), s.next)
	l.result.Parties++
	l.sessions = append(l.sessions, s)
	at.sessions = append(at.sessions, s)
	if at.Dead() {
		s.loseAgent()
	}
	if s.party {
		l.books.partyBegins(s)
	}
	return s
}

func (s *ring) slotBytes() int { return slotRows * (8 + 4*s.l.plan.dim) }

// slotOffset returns where the keys of a slot are, and its rows.
func (s *ring) slotOffset(slot int) (keys, rows uint64) {
	keys = uint64(slot * s.slotBytes())
	return keys, keys + 8*slotRows
}

// loseAgent keeps what a client of a killed agent can see.
func (s *ring) loseAgent() {
	if s.lost {
		return
	}
	s.lost, s.lastCQ, s.lastHead = true, s.mem.CQTail.Load(), s.mem.SQHead.Load()
}

// closeSocket closes the client's end of the socket, as its death does.
func (s *ring) closeSocket() {
	s.closed = true
	if s.socket >= 0 {
		_ = unix.Close(s.socket)
		s.socket = -1
		s.signalAgent()
	}
}

func (s *ring) signalAgent() {
	if on := s.at.Link(); on != nil {
		on.Signal()
	}
}

// isOver reports whether nothing can be asked any more.
func (s *ring) isOver() bool { return s.closed || s.lost || s.mem.EndCode.Load() != 0 }

// completedIndex returns the visible index of completions, accepted that of read entries.
func (s *ring) completedIndex() uint32 {
	if s.lost {
		return s.lastCQ
	}
	return s.mem.CQTail.Load()
}

func (s *ring) acceptedIndex() uint32 {
	if s.lost {
		return s.lastHead
	}
	return s.mem.SQHead.Load()
}

// collectCompletions reads the completions that are there.
func (s *ring) collectCompletions() {
	for s.head != s.completedIndex() {
		got := agentproto.ParseCompletion(s.mem.Completion(s.head))
		s.head++
		if got.Ticket >= uint64(len(s.entries)) || s.entries[got.Ticket].done {
			s.l.Fail("%s: a completion of entry %d, of %d", s.name, got.Ticket, len(s.entries))
			return
		}
		e := s.entries[got.Ticket]
		e.done, e.c, e.doneAt = true, got, s.l.Step()
		s.readResults(e)
		s.slots[e.slot] = nil
		s.l.books.entryAnswered(e) // may collect again
	}
	if !s.closed {
		s.mem.CQHead.Store(s.head)
	}
}

// readResults copies what an entry has brought.
func (s *ring) readResults(e *asked) {
	n := int(e.N)
	if e.Op == agentproto.Reduce {
		n = min(n, int(e.c.Detail))
	}
	if e.c.Status != agentproto.OK || e.Op != agentproto.Reduce && e.Op != agentproto.Sums && e.Op != agentproto.Pull {
		return
	}
	keys, rows := s.slotOffset(e.slot)
	e.gotKeys = slices.Clone(s.mem.Keys(keys, n))
	e.gotRows = slices.Clone(s.mem.Floats(rows, n*s.l.plan.dim))
}

// endsUnanswered reports whether the end of a step is not answered.
func (s *ring) endsUnanswered() bool {
	return slices.ContainsFunc(s.entries, func(e *asked) bool {
		return !e.done && (e.Op == agentproto.Barrier || e.Op == agentproto.Reduce)
	})
}

// hasRoom reports whether another entry may be submitted.
func (s *ring) hasRoom() bool { return s.tail-s.head < ringEntries }

// submitEntry puts an entry into the ring, in which there is room.
func (s *ring) submitEntry(e *asked) {
	e.s = s
	e.slot = slices.Index(s.slots, nil)
	s.slots[e.slot] = e
	s.entries = append(s.entries, e)
	keys, rows := s.slotOffset(e.slot)
	switch e.Op {
	case agentproto.Push, agentproto.PushSums:
		e.Dim, e.N, e.Values = uint32(s.l.plan.dim), uint32(len(e.keys)), rows
		if e.Batch == 0 {
			e.Keys = keys
			copy(s.mem.Keys(keys, len(e.keys)), e.keys)
		}
		copy(s.mem.Floats(rows, len(e.grads)), e.grads)
		e.sent = slices.Clone(e.grads)
		if s.l.code != nil {
			s.l.code(e.keys, e.sent)
		}
		s.l.result.Pushes++
	case agentproto.Pull:
		e.Dim, e.N, e.Keys, e.Values = uint32(s.l.plan.dim), uint32(len(e.keys)), keys, rows
		copy(s.mem.Keys(keys, len(e.keys)), e.keys)
	case agentproto.Prepare:
		e.N, e.Keys = uint32(len(e.keys)), keys
		copy(s.mem.Keys(keys, len(e.keys)), e.keys)
	case agentproto.Reduce, agentproto.Sums:
		if e.N > 0 {
			e.Dim, e.Keys, e.Values = uint32(s.l.plan.dim), keys, rows
		}
	case agentproto.Stats:
		e.Values = keys
	}
	e.Put(s.mem.Entry(s.tail))
	s.tail++
	s.mem.SQTail.Store(s.tail)
	if s.mem.AgentSleeps.Load() == 1 && s.mem.AgentSleeps.CompareAndSwap(1, 0) {
		_ = sys.SendNow(s.socket, []byte{1})
		s.signalAgent()
	}
}

// sleepUntil waits until the agent wakes the client, or want.
func (s *ring) sleepUntil(act *world.Actor, want func() bool) {
	s.mem.ClientSleeps.Store(1)
	if s.completedIndex() == s.head && !s.isOver() {
		act.Park("reply", func() bool { return s.isOver() || s.mem.ClientSleeps.Load() == 0 || want() }, time.Time{})
	}
	if s.closed {
		return
	}
	s.mem.ClientSleeps.Store(0)
	var b [8]byte
	for {
		if n, err := sys.ReceiveNow(s.socket, b[:]); err != nil || n == 0 {
			break
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/linux/sys"
)

// The worker polls the rings before it sleeps: until then clients need not wake it.
func TestLooksBeforeSleep(t *testing.T) {
	mem, file, err := agentproto.NewMemory(agentproto.LayoutOf(8, 4096))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = mem.Close(), file.Close() }()
	j := &job{idle: sys.Look{Limit: time.Hour}}
	j.sessions = []*session{{job: j, mem: mem}}
	for range 3 {
		if j.Turn() || j.Sleep() || mem.AgentSleeps.Load() != 0 {
			t.Fatal("sleeps at once")
		}
	}
	j.idle = sys.Look{}
	if !j.Sleep() || mem.AgentSleeps.Load() != 1 {
		t.Error("does not sleep after the look")
	}
}

// ringOfOne is a job with a client whose ring has an entry, FLUSH.
func ringOfOne(t *testing.T) (*job, *session) {
	t.Helper()
	layout := agentproto.LayoutOf(8, 4096)
	mem, file, err := agentproto.NewMemory(layout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = mem.Close(), file.Close() })
	j := &job{cfg: Job{Dim: 1}}
	s := &session{job: j, mem: mem, layout: layout}
	s.refs.Store(1)
	j.sessions = []*session{s}
	(&agentproto.Entry{Op: agentproto.Flush, Tag: 7}).Put(mem.Entry(0))
	mem.SQTail.Store(1)
	return j, s
}

// The worker does not sleep while an entry waits in a ring, unless it could not be started, or its
// client has ended.
func TestDoesNotSleepBeforeAnEntry(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*session)
		sleeps bool
	}{
		"an entry":         {func(*session) {}, false},
		"an empty ring":    {func(s *session) { s.head = 1 }, true},
		"too much":         {func(s *session) { s.held.Store(true) }, true},
		"one that is over": {func(s *session) { s.ended = errGone }, true},
	} {
		j, s := ringOfOne(t)
		c.change(s)
		if got := j.Sleep(); got != c.sleeps {
			t.Errorf("%s: sleeps %v", name, got)
		}
	}
}

// A turn reports work if it took an entry, or answered one, so that the worker polls again. An
// entry that needs no worker is answered in the turn that takes it.
func TestTurnTellsWhetherItDidSomething(t *testing.T) {
	j, s := ringOfOne(t)
	turn := func(what string, want bool, answered uint32) {
		t.Helper()
		if got := j.Turn(); got != want || s.mem.CQTail.Load() != answered {
			t.Errorf("%s: %v, %d entries are answered, want %v, %d", what, got, s.mem.CQTail.Load(), want, answered)
		}
	}
	turn("an entry", true, 1)
	turn("nothing", false, 1)
	s.retainMemory()
	j.loose = append(j.loose, &work{s: s, c: agentproto.Completion{Op: agentproto.Release}})
	turn("an answer out of order", true, 2)
	turn("nothing", false, 2)
	s.retainMemory()
	w := &work{s: s, c: agentproto.Completion{Op: agentproto.Flush}}
	w.queueInOrder()
	w.Settled(nil)
	turn("an answer in its turn", true, 3)
	turn("nothing", false, 3)
	if j.pending != 0 || s.refs.Load() != 1 {
		t.Errorf("%d entries wait, %d hold the memory", j.pending, s.refs.Load())
	}
}

// When the last pending entry is settled, or the last end of a step is answered, the entry that
// waits for it is started, or known to wait.
func TestNoEntryWaitsForWhatIsOver(t *testing.T) {
	const rounds, bytes = 50_000, 4096
	s := &session{layout: agentproto.LayoutOf(8, bytes)}
	for op, charge := range map[agentproto.Op]int64{agentproto.Pull: bytes, agentproto.PushSums: 0} {
		var round, settled atomic.Int64
		var seen bool
		go func() {
			for i := range int64(rounds) {
				for round.Load() <= i {
					runtime.Gosched()
				}
				s.charge.Add(-charge)
				s.ending.Add(-1)
				seen = s.held.Load()
				settled.Add(1)
			}
		}()
		for i := range int64(rounds) {
			s.held.Store(false)
			s.charge.Store(charge)
			s.ending.Store(1)
			round.Add(1)
			begun := !s.mustWait(op, charge)
			for settled.Load() <= i {
				runtime.Gosched()
			}
			if !begun && !seen {
				t.Fatalf("operation %d, round %d: an entry waits, and what was settled has not seen it", op, i)
			}
		}
	}
}

// An entry that is charged for more than the client's memory begins alone.
func TestEntryOfAllMemoryBeginsAlone(t *testing.T) {
	const bytes = 4096
	s := &session{layout: agentproto.LayoutOf(8, bytes)}
	for _, c := range []struct {
		inFlight, charge int64
		waits            bool
	}{{0, bytes, false}, {0, bytes + 1, false}, {1, bytes - 1, false}, {1, bytes, true}} {
		s.charge.Store(c.inFlight)
		if waits := s.mustWait(agentproto.Push, c.charge); waits != c.waits {
			t.Errorf("with %d bytes in flight, an entry of %d waits: %v", c.inFlight, c.charge, waits)
		}
	}
}

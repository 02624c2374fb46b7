// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentclient

import (
	"context"
	"errors"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/agent/agentproto"
)

// An exchange is a submitted entry, as its agent sees it.
type exchange struct {
	from, to uint64
	answered bool // its region is in use until the completion, not only until the agent takes the entry
	done     bool // the completion is written
}

// ring is both ends of a session's memory: a client, and the state of its agent.
type ring struct {
	client  *Client
	memory  *os.File
	entries []*exchange // all, in their order
	taken   int         // of entries
}

// ringEntries is the maximum number of pending entries.
const ringEntries = 8

func newRing(t rapid.TB, bytes uint64) *ring {
	layout := agentproto.LayoutOf(ringEntries, bytes)
	mem, file, err := agentproto.NewMemory(layout)
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{}
	c.begin(&agentproto.Welcome{Layout: layout}, mem)
	return &ring{memory: file, client: c}
}

func (r *ring) close() { _ = errors.Join(r.client.mem.Close(), r.memory.Close()) }

// take reads the next entry as the agent: the client may reuse its region, unless the agent answers
// into it.
func (r *ring) take() {
	r.taken++
	r.client.mem.SQHead.Store(uint32(r.taken))
}

// answer writes the completion of a taken entry as the agent.
func (r *ring) answer(ticket int) {
	tail := r.client.mem.CQTail.Load()
	(&agentproto.Completion{Ticket: uint64(ticket)}).Put(r.client.mem.Completion(tail))
	r.client.mem.CQTail.Store(tail + 1)
	r.entries[ticket].done = true
}

// ended returns a context that has ended, with which the client does not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// submit submits an entry that uses bytes of the buffer area. It returns whether there was room in
// the area.
func (r *ring) submit(t rapid.TB, bytes uint64, answered bool) bool {
	c, size := r.client, r.client.welcome.Layout.BufferBytes
	at, err := c.place(ended, bytes, answered)
	if errors.Is(err, context.Canceled) {
		return false
	}
	if err != nil || at%64 != 0 || at+bytes > size {
		t.Fatalf("%d bytes at %d of %d: %v", bytes, at, size, err)
	}
	for i, e := range r.entries {
		if busy := i >= r.taken || e.answered && !e.done; busy && at < e.to && e.from < at+bytes {
			t.Fatalf("%d bytes at %d: the agent has %d to %d, of entry %d", bytes, at, e.from, e.to, i)
		}
	}
	switch ticket, err := c.Submit(ended, agentproto.Entry{}); {
	case err != nil && c.tail-c.mem.CQTail.Load() < c.welcome.Layout.Entries:
		t.Fatalf("the ring has room: %v", err)
	case err == nil && ticket != uint64(len(r.entries)):
		t.Fatalf("ticket %d of entry %d", ticket, len(r.entries))
	case err == nil:
		r.entries = append(r.entries, &exchange{from: at, to: at + bytes, answered: answered})
	}
	return true
}

// open returns the tickets of entries that the agent has taken and not answered.
func (r *ring) open() (tickets []int) {
	for i, e := range r.entries[:r.taken] {
		if !e.done {
			tickets = append(tickets, i)
		}
	}
	return tickets
}

// answerAll answers all open entries as the agent.
func (r *ring) answerAll() {
	for r.taken < len(r.entries) {
		r.take()
	}
	for _, ticket := range r.open() {
		r.answer(ticket)
	}
}

// A client gives an entry no bytes of the buffer area that its agent may still read or write, and
// can use all of it when the agent uses none, also after entries that it could not submit in time.
func TestPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 4096
		r := newRing(t, size)
		defer r.close()
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "action") {
			case 0, 1:
				r.submit(t, rapid.Uint64Range(0, size/4).Draw(t, "bytes"), rapid.Bool().Draw(t, "answered"))
			case 2:
				r.submit(t, size/8*rapid.Uint64Range(1, 8).Draw(t, "eighths"), rapid.Bool().Draw(t, "answered"))
			case 3, 4:
				if r.taken < len(r.entries) {
					r.take()
				}
			case 5:
				if open := r.open(); len(open) > 0 {
					r.answer(rapid.SampledFrom(open).Draw(t, "ticket"))
				}
			}
		}
		r.answerAll()
		if !r.submit(t, size, false) {
			t.Fatal("no room for the whole area, of which the agent uses nothing")
		}
	})
}

// No part of the area is lost between regions or at its end, and no place of the rings.
func TestPlaceFillsTheArea(t *testing.T) {
	const size, parts = 4096, ringEntries
	r := newRing(t, size)
	defer r.close()
	for i := range 5 * parts {
		if i >= parts {
			r.take()
			r.answer(i - parts)
		}
		if !r.submit(t, size/parts, true) || len(r.entries) != i+1 {
			t.Fatalf("no room for entry %d beside %d others of an eighth of the area", i, min(i, parts-1))
		}
	}
	if r.submit(t, 1, true) {
		t.Fatal("room beside eight eighths")
	}
	r.answerAll()
	for i := range r.entries {
		if got, err := r.client.Wait(ended, uint64(i)); err != nil || got.Ticket != uint64(i) {
			t.Fatalf("entry %d: %+v, %v", i, got, err)
		}
	}
	if n := len(r.client.done); n != 0 {
		t.Fatalf("%d completions are kept after the last call", n)
	}
	if head, tail := r.client.mem.CQHead.Load(), r.client.mem.CQTail.Load(); head != tail {
		t.Fatalf("the client has read all of %d completions, and told the agent of %d", tail, head)
	}
	if _, err := r.client.place(ended, size+1, false); err == nil || errors.Is(err, context.Canceled) {
		t.Fatalf("%d bytes in an area of %d", size+1, size)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentclient

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/agent/agentproto"
)

// entries submit one entry each. The contexts of those that wait have ended.
var entries = map[string]struct {
	submit                 func(c *Client, keys []uint64, floats []float32) error
	keys, floats, stats    bool // the entry points at room for them
	readsKeys, readsFloats bool // the agent reads them
	written                bool // the agent writes into the region
}{
	"push": {submit: func(c *Client, keys []uint64, floats []float32) error {
		_, err := c.Push(ended, keys, floats)
		return err
	}, readsKeys: true, readsFloats: true, keys: true, floats: true},
	"push prepared": {submit: func(c *Client, keys []uint64, floats []float32) error {
		_, err := c.PushPrepared(ended, 1, len(keys), floats)
		return err
	}, readsFloats: true, floats: true},
	"pull": {submit: func(c *Client, keys []uint64, floats []float32) error {
		return c.Pull(ended, keys, floats)
	}, readsKeys: true, keys: true, floats: true, written: true},
	"push sums": {submit: func(c *Client, keys []uint64, floats []float32) error {
		return c.PushSums(ended, keys, floats)
	}, readsKeys: true, readsFloats: true, keys: true, floats: true, written: true},
	"prepare": {submit: func(c *Client, keys []uint64, _ []float32) error {
		_, err := c.Prepare(ended, keys)
		return err
	}, readsKeys: true, keys: true},
	"sums": {submit: func(c *Client, keys []uint64, floats []float32) error {
		return c.Sums(ended, 0, keys, floats)
	}, keys: true, floats: true, written: true},
	"stats": {submit: func(c *Client, _ []uint64, _ []float32) error {
		_, err := c.Stats(ended)
		return err
	}, stats: true, written: true},
}

// The arrays of an entry are in its region of the buffer area, which later entries do not use, keys
// and floats side by side, with the caller's values. If the agent writes there, the region stays in
// use until it has answered.
func TestEntriesStayInTheirRegions(t *testing.T) {
	for name, entry := range entries {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				const size = 8192
				r := newRing(t, size)
				defer r.close()
				c := r.client
				c.welcome.Dim = rapid.Uint32Range(1, 4).Draw(t, "dim")
				other := region{to: 64 * rapid.Uint64Range(0, size/64/2).Draw(t, "used"), ticket: 1 << 62, answered: true}
				c.regions = append(c.regions, other)
				keys := rapid.SliceOfN(rapid.Uint64(), 1, 60).Draw(t, "keys")
				n := len(keys) * int(c.welcome.Dim)
				floats := rapid.SliceOfN(rapid.Float32Range(-1, 1), n, n).Draw(t, "floats")
				if err := entry.submit(c, slices.Clone(keys), slices.Clone(floats)); err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				e, err := agentproto.ParseEntry(c.mem.Entry(0), size)
				if err != nil || len(c.regions) != 2 || c.regions[0] != other {
					t.Fatalf("regions %v, entry %+v: %v", c.regions, e, err)
				}
				own := c.regions[1]
				from := max(own.from, other.to)
				inside := func(what string, at, bytes uint64) {
					if at < from || at+bytes > own.to {
						t.Fatalf("%s at %d to %d, of %d to %d", what, at, at+bytes, from, own.to)
					}
					from = at + bytes
				}
				if entry.keys {
					inside("keys", e.Keys, uint64(8*len(keys)))
				}
				if entry.floats {
					inside("floats", e.Values, uint64(4*n))
				}
				if entry.stats {
					inside("statistics", e.Values, agentproto.StatsLen)
				}
				if entry.readsKeys && !slices.Equal(c.mem.Keys(e.Keys, len(keys)), keys) ||
					entry.readsFloats && !slices.Equal(c.mem.Floats(e.Values, n), floats) {
					t.Fatal("the agent finds other keys or gradients")
				}
				if own.ticket != 0 || entry.written && !own.answered {
					t.Fatalf("the agent writes into %+v", own)
				}
			})
		})
	}
}

// An entry whose context ends before the ring has a place for it does not take another entry's
// answer.
func TestEntriesWithoutPlaceAreNotAnswered(t *testing.T) {
	r := newRing(t, 4096)
	defer r.close()
	for i := range ringEntries + 1 {
		if i == ringEntries { // the ring is full: the client reads this completion, which belongs to no call
			r.take()
			r.answer(0)
		}
		if !r.submit(t, 64, false) || len(r.entries) != i+1 {
			t.Fatalf("entry %d has no place", i)
		}
	}
	if err := r.client.Flush(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v of an entry that was not submitted", err)
	}
}

// Reduce reads all sums of a step, even if they do not fit the buffer area at once.
func TestReduceReadsAllSums(t *testing.T) {
	const size = 4096
	for _, c := range []struct{ dim, rows int }{{1, 0}, {1, 1}, {2, 256}, {2, 257}, {5, 1000}, {1022, 3}} {
		r := newRing(t, size)
		r.client.welcome.Dim = uint32(c.dim)
		socket, err := connect(t, r.client).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() { answered <- r.sums(ctx, socket, uint64(c.rows)) }()
		keys, sums, err := r.client.Reduce(ctx, 7)
		cancel()
		if err := errors.Join(err, <-answered); err != nil {
			t.Fatal(err)
		}
		if len(keys) != c.rows || len(sums) != c.rows*c.dim {
			t.Fatalf("%d keys and %d sums of %d rows", len(keys), len(sums), c.rows)
		}
		for i, key := range keys {
			if key != uint64(i) || sums[i*c.dim] != float32(i) || sums[(i+1)*c.dim-1] != float32(i) {
				t.Fatalf("row %d of %+v: key %d, sums %v", i, c, key, sums[i*c.dim:(i+1)*c.dim])
			}
		}
		r.close()
	}
}

// sums answers a Reduce as the agent, and the calls for its rows until the client has all: row i is
// key i, and i in all its sums.
func (r *ring) sums(ctx context.Context, socket syscall.RawConn, rows uint64) error {
	mem := r.client.mem
	for head, given := uint32(0), uint64(0); head == 0 || given < rows; head++ {
		for mem.SQTail.Load() == head {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			runtime.Gosched()
		}
		e, err := agentproto.ParseEntry(mem.Entry(head), r.client.welcome.Layout.BufferBytes)
		if err != nil {
			mem.End(agentproto.BadEntry, err.Error())
			return err
		}
		got := agentproto.Completion{Ticket: uint64(head), Op: e.Op}
		if e.Op == agentproto.Reduce {
			got.Detail = rows
		}
		keys, floats := mem.Keys(e.Keys, int(e.N)), mem.Floats(e.Values, int(e.N*e.Dim))
		for i := range keys {
			keys[i] = e.Step + uint64(i)
		}
		for i := range floats {
			floats[i] = float32(int(e.Step) + i/int(e.Dim))
		}
		given += uint64(e.N)
		mem.SQHead.Store(head + 1)
		got.Put(mem.Completion(head))
		mem.CQTail.Store(head + 1)
		if mem.ClientSleeps.CompareAndSwap(1, 0) {
			_ = socket.Control(func(fd uintptr) { agentproto.Wake(int(fd)) })
		}
	}
	return nil
}

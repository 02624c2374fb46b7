// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentclient

import (
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/agentproto"
)

// entries submit one entry each. Of those that wait, the context has ended.
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

// What an entry points at lies in its region of the buffer area, where later entries leave it alone, keys and floats side by
// side, and holds what the caller gave. If the agent writes there, the region is the agent's until it has answered.
func TestEntriesStayInTheirRegions(t *testing.T) {
	for name, entry := range entries {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				const size = 8192
				r := newRing(t, 8, size)
				defer r.close()
				c := r.client
				c.welcome.Dim = rapid.Uint32Range(1, 4).Draw(t, "dim")
				c.next = 64 * rapid.Uint64Range(0, size/64).Draw(t, "next")
				keys := rapid.SliceOfN(rapid.Uint64(), 1, 60).Draw(t, "keys")
				n := len(keys) * int(c.welcome.Dim)
				floats := rapid.SliceOfN(rapid.Float32Range(-1, 1), n, n).Draw(t, "floats")
				if err := entry.submit(c, keys, floats); err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				e, err := agentproto.ParseEntry(c.mem.Entry(0), size)
				if err != nil || len(c.regions) != 1 {
					t.Fatalf("regions %v, entry %+v: %v", c.regions, e, err)
				}
				own := c.regions[0]
				from := own.from
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

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/libra-ina/libra/internal/linux/neigh"
)

// hopCache has the next hops of recent destinations. The watch of a connection keeps them up to
// date, and removes those that were not used since its last look.
type hopCache struct {
	of   sync.Map // of netip.Addr to *hop
	mu   sync.Mutex
	size int // guarded by mu, as are changes
}

// hop is the kernel's answer for an address.
type hop struct {
	neigh.Hop
	used atomic.Bool
}

// maxHops is the number of cached answers. A program that answers every sender sends to as many
// addresses as strangers invent.
const maxHops = 4096

func (h *hopCache) findHop(to netip.Addr) (*hop, bool) {
	known, ok := h.of.Load(to)
	if !ok {
		return nil, false
	}
	way := known.(*hop)
	if !way.used.Load() {
		way.used.Store(true)
	}
	return way, true
}

// putHop caches an answer of the kernel. When there is no room it drops all others.
func (h *hopCache) putHop(to netip.Addr, at neigh.Hop) *hop {
	way := &hop{Hop: at}
	way.used.Store(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.of.Swap(to, way); known {
		return way
	}
	if h.size++; h.size > maxHops {
		h.size = 0
		h.of.Clear()
	}
	return way
}

func (h *hopCache) dropHop(to netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.of.LoadAndDelete(to); known {
		h.size--
	}
}

// refreshHops asks the kernel about all hops again. A neighbour that does not answer any more is
// dropped: the next packet for it waits until it does.
func (h *hopCache) refreshHops(link string) {
	var table neigh.Table
	h.of.Range(func(key, value any) bool {
		to, way := key.(netip.Addr), value.(*hop)
		if !way.used.Swap(false) {
			h.dropHop(to)
			return true
		}
		switch now, ok, err := neigh.Again(link, to, &table, false); {
		case !ok || err != nil:
			h.dropHop(to)
		case now != way.Hop:
			h.putHop(to, now)
		}
		return true
	})
}

// clearHops drops all hops.
func (h *hopCache) clearHops() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.size = 0
	h.of.Clear()
}

// nextHop returns the next hop to an address.
func (c *UDPConn) nextHop(to netip.Addr) (*hop, error) {
	if way, ok := c.hops.findHop(to); ok {
		return way, nil
	}
	left, err := c.remaining(&c.writeDeadline)
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.closed, context.CancelFunc(func() {})
	if left >= 0 {
		ctx, cancel = context.WithTimeout(ctx, left)
	}
	defer cancel()
	c.asking.RLock()
	defer c.asking.RUnlock()
	if c.closed.Err() != nil {
		return nil, net.ErrClosed
	}
	var at neigh.Hop
	err = c.home.runInside(func() (err error) {
		at, err = neigh.Resolve(ctx, c.now.Load().name, to)
		return err
	})
	switch {
	case c.closed.Err() != nil:
		return nil, net.ErrClosed
	case ctx.Err() != nil:
		return nil, errors.Join(os.ErrDeadlineExceeded, err)
	case err != nil:
		return nil, err
	}
	return c.hops.putHop(to, at), nil
}

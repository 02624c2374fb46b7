// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

const ringJob, ringEpoch = 5, 9

// latency is the time that a frame takes. It keeps virtual time going.
const latency = 20 * time.Microsecond

// network connects workers. What is sent arrives, unless fate says otherwise.
type network struct {
	mu    sync.Mutex
	hosts []*host
	// fate is asked, if it is not nil, how many copies of a payload arrive, and how much later than it
	// should. payload is the network's own: fate may change it.
	fate func(from, to int, h wire.Header, payload []byte) (copies int, late time.Duration)
}

// host is a worker's link.
type host struct {
	link.Link // nil: methods that a Ring does not call

	net    *network
	id     int
	local  wire.Endpoint
	window int
	bufs   [][]byte
	free   []link.Buf
	inbox  []link.Packet
	wake   chan struct{}
	closed bool
	short  int  // every so many frames, Send accepts none
	full   bool // Send accepts none
	sent   int
	stats  link.Stats

	broken  error         // of Send, for repetitions
	stopped time.Duration // for which the next Wait stops the process
}

type path wire.Endpoint

func (p path) To() wire.Endpoint { return wire.Endpoint(p) }

func newNetwork(workers int) *network {
	n := &network{}
	for i := range workers {
		h := &host{
			net: n, id: i, window: wire.DefaultWindow, wake: make(chan struct{}, 1),
			local: wire.Endpoint{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Port: wire.DefaultPort},
		}
		for b := range wire.DefaultWindow + 2 {
			h.bufs, h.free = append(h.bufs, make([]byte, wire.DefaultPayload)), append(h.free, link.Buf(b))
		}
		n.hosts = append(n.hosts, h)
	}
	return n
}

// config returns the configuration of a worker that does not poll, as time is virtual.
func (n *network) config(place, values int) Config {
	cfg := Config{Link: n.hosts[place], Place: place, Job: ringJob, Epoch: ringEpoch, Values: values, Look: -1}
	for _, h := range n.hosts {
		cfg.Workers = append(cfg.Workers, h.local)
	}
	return cfg
}

// rings returns the ends of all workers.
func (n *network) rings(t testing.TB, values int, change func(*Config)) (all []*Ring) {
	t.Helper()
	for i := range n.hosts {
		cfg := n.config(i, values)
		if change != nil {
			change(&cfg)
		}
		all = append(all, open(t, cfg))
	}
	return all
}

func open(t testing.TB, cfg Config) *Ring {
	t.Helper()
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// reduceAll lets all workers reduce at the same time, and returns their errors.
func reduceAll(all []*Ring, vectors [][]float32) []error {
	var group sync.WaitGroup
	errs := make([]error, len(all))
	for i, r := range all {
		group.Go(func() { errs[i] = r.Reduce(vectors[i]) })
	}
	group.Wait()
	return errs
}

// closeAll closes all at the same time.
func closeAll(all []*Ring) {
	var group sync.WaitGroup
	for _, r := range all {
		group.Go(func() { _ = r.Close() })
	}
	group.Wait()
}

// deliver brings a payload to whoever has an address.
func (n *network) deliver(from *host, to netip.AddrPort, payload []byte) {
	for _, h := range n.hosts {
		if h.local.AddrPort() != to {
			continue
		}
		copies, late := 1, time.Duration(0)
		payload = append([]byte(nil), payload...)
		if n.fate != nil {
			head, _ := wire.ParseHeader(payload)
			copies, late = n.fate(from.id, h.id, head, payload)
		}
		for range copies {
			mem := append(make([]byte, 0, wire.DefaultPayload), payload...)
			time.AfterFunc(latency+late, func() { h.push(from.local, mem) })
			late += latency
		}
	}
}

func (h *host) push(src wire.Endpoint, payload []byte) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.inbox = append(h.inbox, link.Packet{Packet: wire.Packet{Src: src, Dst: h.local, Payload: payload}})
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *host) Local() wire.Endpoint { return h.local }

func (h *host) Limits() link.Limits {
	return link.Limits{MaxPayload: wire.DefaultPayload, Window: h.window}
}

func (h *host) Path(_ context.Context, to wire.Endpoint) (link.Path, error) { return path(to), nil }

func (h *host) Alloc() (link.Buf, bool) {
	last := len(h.free) - 1
	if last < 0 {
		return 0, false
	}
	b := h.free[last]
	h.free = h.free[:last]
	return b, true
}

func (h *host) Payload(b link.Buf) []byte { return h.bufs[b] }

func (h *host) Free(b link.Buf) {
	clear(h.bufs[b]) // whoever repeats it is noticed
	h.free = append(h.free, b)
}

func (h *host) Send(frames []link.Frame) (int, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.closed {
		return 0, net.ErrClosed
	}
	for i, f := range frames {
		if f.Retx && h.broken != nil {
			return i, h.broken
		}
		if h.sent++; h.full || h.short > 0 && h.sent%h.short == 0 {
			return i, nil
		}
		payload := h.bufs[f.Buf][:f.Len]
		if f.Retx {
			wire.MarkRetx(payload)
		}
		h.net.deliver(h, f.To.To().AddrPort(), payload)
	}
	return len(frames), nil
}

func (h *host) Receive(pkts []link.Packet) (int, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.closed {
		return 0, net.ErrClosed
	}
	n := copy(pkts, h.inbox)
	h.inbox = append(h.inbox[:0], h.inbox[n:]...)
	return n, nil
}

func (h *host) Reply(pkts []link.Packet) error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	for _, p := range pkts {
		if p.Reply > 0 {
			h.net.deliver(h, p.Src.AddrPort(), p.Payload[:p.Reply])
		}
	}
	return nil
}

func (h *host) Wait(limit time.Duration) error {
	h.net.mu.Lock()
	stopped := h.stopped
	h.stopped = 0
	h.net.mu.Unlock()
	time.Sleep(stopped)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-h.wake:
	case <-timer.C:
	}
	return nil
}

func (h *host) Stats() link.Stats { return h.stats }

func (h *host) Close() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.closed = true
	return nil
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

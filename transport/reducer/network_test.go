// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"bytes"
	"context"
	"math"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

const jobID, jobEpoch = 5, 9

// plenty is more frames than a test sends.
const plenty = math.MaxInt

// stale is in buffers that are free. Whoever leaves it in a frame is noticed: of floats it is none,
// and with it the sum of two integers overflows.
const stale = 0x7f

var switchAt = wire.Endpoint{IP: netip.MustParseAddr("10.0.0.254"), Port: wire.DefaultPort}

// network has the model of an aggregator in its middle: a frame that is sent has been answered when
// Send returns, unless loses says otherwise.
type network struct {
	mu    sync.Mutex
	model *aggregator.Model
	hosts []*host
	reply []byte

	// loses is asked, if it is not nil, whether a payload is lost: of a worker, or to it.
	loses func(worker int, up bool, h wire.Header) bool
}

// host is a worker's link. Its buffers are as many as the window of a link.
type host struct {
	link.Link // nil: methods that a Reducer does not call

	net    *network
	id     int
	local  wire.Endpoint
	bufs   [][]byte
	free   []link.Buf
	inbox  []link.Packet
	spare  [][]byte
	lent   [][]byte
	wake   chan struct{}
	timer  *time.Timer
	closed bool

	room  int  // frames that Send accepts
	full  bool // Send accepts none
	calls int  // of Send
	sent  []wire.Header
	at    []time.Time // of sent
	stats link.Stats
}

type path wire.Endpoint

func (p path) To() wire.Endpoint { return wire.Endpoint(p) }

// newNetwork returns a network with the links of a job's admitted workers, whose ids are 10, 20 and
// so on.
func newNetwork[T Value](t testing.TB, shape Shape, cfg aggregator.Config) *network {
	t.Helper()
	job, err := Job[T](shape)
	if err != nil {
		t.Fatal(err)
	}
	job.ID, job.Epoch = jobID, jobEpoch
	n := &network{reply: make([]byte, aggregator.MaxReplyPayload)}
	if n.model, err = aggregator.NewModel(cfg); err != nil {
		t.Fatal(err)
	}
	if err := n.model.AddJob(job); err != nil {
		t.Fatal(err)
	}
	for i := range shape.Workers {
		h := &host{
			net: n, id: i, wake: make(chan struct{}, 1), room: plenty,
			local: wire.Endpoint{IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Port: wire.DefaultPort},
		}
		for b := range wire.DefaultWindow {
			h.bufs = append(h.bufs, bytes.Repeat([]byte{stale}, wire.DefaultPayload))
			h.free = append(h.free, link.Buf(b))
			h.spare = append(h.spare, make([]byte, wire.DefaultPayload))
		}
		n.hosts = append(n.hosts, h)
	}
	return n
}

// admit admits the first workers to the job.
func (n *network) admit(t testing.TB, workers int) {
	t.Helper()
	for i, h := range n.hosts[:workers] {
		s := aggregator.SenderConfig{ID: idOf(i), Epoch: jobEpoch, IP: h.local.IP, Port: h.local.Port}
		if err := n.model.AddSender(jobID, s); err != nil {
			t.Fatal(err)
		}
	}
}

func idOf(worker int) uint16 { return uint16(10 * (1 + worker)) }

// config returns the configuration of a worker that does not poll, as time may be virtual.
func (n *network) config(worker int, shape Shape) Config {
	return Config{
		Link: n.hosts[worker], Job: jobID, Sender: idOf(worker), Epoch: jobEpoch, Aggregator: switchAt, Shape: shape, Look: -1,
	}
}

// workers returns the Reducers of all workers, which are admitted.
func workers[T Value](t testing.TB, n *network, shape Shape) (all []*Reducer[T]) {
	t.Helper()
	n.admit(t, shape.Workers)
	for i := range shape.Workers {
		all = append(all, open[T](t, n.config(i, shape)))
	}
	return all
}

func open[T Value](t testing.TB, cfg Config) *Reducer[T] {
	t.Helper()
	r, err := New[T](t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (n *network) lost(worker int, up bool, payload []byte) bool {
	if n.loses == nil {
		return false
	}
	h, _ := wire.ParseHeader(payload)
	return n.loses(worker, up, h)
}

// deliver gives the aggregator a worker's frame, and its answer to those that it is for.
func (n *network) deliver(from *host, payload []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost(from.id, true, payload) {
		return
	}
	v, size := n.model.ProcessPayload(from.local.AddrPort(), payload, n.reply)
	switch v.Action {
	case aggregator.Reply:
		n.answer(from, n.reply[:size])
	case aggregator.Broadcast:
		for _, h := range n.hosts {
			n.answer(h, n.reply[:size])
		}
	}
}

// answer puts a payload into a worker's inbox. The caller holds the lock.
func (n *network) answer(to *host, payload []byte) {
	if !n.lost(to.id, false, payload) {
		to.push(switchAt, payload)
	}
}

// push puts a payload into the inbox. The caller holds the network's lock.
func (h *host) push(src wire.Endpoint, payload []byte) {
	last := len(h.spare) - 1
	mem := h.spare[last]
	h.spare = h.spare[:last]
	mem = mem[:copy(mem, payload)]
	h.inbox = append(h.inbox, link.Packet{Packet: wire.Packet{Src: src, Dst: h.local, Payload: mem}})
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *host) Local() wire.Endpoint { return h.local }

func (h *host) Limits() link.Limits {
	return link.Limits{MaxPayload: wire.DefaultPayload, Window: wire.DefaultWindow}
}

func (h *host) Path(_ context.Context, to wire.Endpoint) (link.Path, error) { return path(to), nil }

func (h *host) Alloc() (link.Buf, bool) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
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
	for i := range h.bufs[b] { // whoever repeats it is noticed
		h.bufs[b][i] = stale
	}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.free = append(h.free, b)
}

func (h *host) Send(frames []link.Frame) (int, error) {
	if h.closed {
		return 0, net.ErrClosed
	}
	h.calls++
	for i, f := range frames {
		if !h.hasRoom() {
			return i, nil
		}
		payload := h.bufs[f.Buf][:f.Len]
		if f.Retx {
			wire.MarkRetx(payload)
		}
		head, _ := wire.ParseHeader(payload)
		if len(h.sent) < cap(h.sent) {
			h.sent, h.at = append(h.sent, head), append(h.at, time.Now())
		}
		h.net.deliver(h, payload)
	}
	return len(frames), nil
}

func (h *host) hasRoom() bool {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.room--
	return h.room != -1 && !h.full
}

// change changes what the worker's goroutine uses.
func (h *host) change(f func()) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	f()
}

func (h *host) Receive(pkts []link.Packet) (int, error) {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	if h.closed {
		return 0, net.ErrClosed
	}
	h.spare = append(h.spare, h.lent...)
	h.lent = h.lent[:0]
	n := copy(pkts, h.inbox)
	for _, p := range pkts[:n] {
		h.lent = append(h.lent, p.Payload[:cap(p.Payload)])
	}
	h.inbox = append(h.inbox[:0], h.inbox[n:]...)
	return n, nil
}

func (h *host) Wait(limit time.Duration) error {
	if h.timer == nil {
		h.timer = time.NewTimer(limit)
	}
	h.timer.Reset(limit)
	select {
	case <-h.wake:
	case <-h.timer.C:
	}
	h.timer.Stop()
	return nil
}

func (h *host) Stats() link.Stats { return h.stats }

func (h *host) Close() error {
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.closed = true
	return nil
}

// record makes the host remember the headers of the next frames that it sends.
func (h *host) record() { h.sent, h.at = make([]wire.Header, 0, 10_000), make([]time.Time, 0, 10_000) }

// waitAll lets all workers wait for an operation at the same time.
func waitAll[T Value](t *testing.T, all []*Reducer[T], op Op, sums [][]T) {
	t.Helper()
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() {
			if err := r.Wait(op, sums[i]); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		})
	}
	group.Wait()
}

// startAll starts an operation at all workers, in their order, with values 1, 2, 4 and so on.
func startAll[T Value](t *testing.T, all []*Reducer[T]) (op Op) {
	t.Helper()
	for i, r := range all {
		values := make([]T, r.cfg.Shape.Width)
		for k := range values {
			values[k] = T(int32(1) << i)
		}
		var err error
		if op, err = r.Start(values); err != nil {
			t.Fatal(err)
		}
	}
	return op
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

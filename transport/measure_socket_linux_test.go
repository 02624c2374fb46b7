// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// injected is the time that a test puts into a part.
const injected = 3 * time.Millisecond

// relay passes datagrams between a worker and its server, and calls a function before it passes
// each.
type relay struct {
	conn     *net.UDPConn
	server   netip.AddrPort
	toServer func()
	toWorker func()
}

func startRelay(t *testing.T, server netip.AddrPort) *relay {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &relay{conn: conn, server: server, toServer: func() {}, toWorker: func() {}}
}

func (r *relay) at() netip.AddrPort { return r.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// run passes datagrams until the relay is closed.
func (r *relay) run() {
	buf := make([]byte, 2048)
	var worker netip.AddrPort
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		to := worker
		if from == r.server {
			r.toWorker()
		} else {
			r.toServer()
			worker, to = from, r.server
		}
		_, _ = r.conn.WriteToUDPAddrPort(buf[:n], to)
	}
}

// slowLink is a link that takes time to free a buffer or to reply.
type slowLink struct {
	link.Link
	free, reply time.Duration
}

func (l *slowLink) Unwrap() link.Link { return l.Link }

func (l *slowLink) Free(b link.Buf) {
	time.Sleep(l.free)
	l.Link.Free(b)
}

func (l *slowLink) Reply(pkts []link.Packet) error {
	time.Sleep(l.reply)
	return l.Link.Reply(pkts)
}

// occupied makes a loop sleep, and returns when it does.
func occupied(ctx context.Context, do func(context.Context, func()) error) {
	begun := make(chan struct{})
	go func() {
		_ = do(ctx, func() {
			close(begun)
			time.Sleep(injected)
		})
	}()
	select {
	case <-begun:
	case <-ctx.Done():
	}
}

// TestPartsOverSockets puts 3 ms into each part of a frame's time in turn, over sockets: 85 % of it
// appears there, and not in another part. What a packet waits for in its socket while the loop is
// busy is a queue, because the kernel says when the packet arrived.
func TestPartsOverSockets(t *testing.T) {
	const (
		hotKey, coldKey       = 1000, 1 << 40
		model, server, worker = -1, 0, 1 // hosts
	)
	parts := []string{"network", "server queue", "server process", "worker queue", "worker process"}
	for name, c := range map[string]struct {
		part    string
		key     uint64
		slow    map[int]slowLink
		handler time.Duration
		on      func(ctx context.Context, r *relay, c *testCluster)
	}{
		"network": {part: "network", key: coldKey, on: func(_ context.Context, r *relay, _ *testCluster) {
			r.toServer = func() { time.Sleep(injected) }
		}},
		"way back": {part: "network", key: coldKey, on: func(_ context.Context, r *relay, _ *testCluster) {
			r.toWorker = func() { time.Sleep(injected) }
		}},
		"model":          {part: "network", key: hotKey, slow: map[int]slowLink{model: {reply: injected}}},
		"server process": {part: "server process", key: coldKey, handler: injected},
		"server queue": {part: "server queue", key: coldKey, on: func(ctx context.Context, r *relay, c *testCluster) {
			r.toServer = func() { occupied(ctx, c.server.Do) }
		}},
		"worker process": {part: "worker process", key: coldKey, slow: map[int]slowLink{worker: {free: injected}}},
		"worker queue": {part: "worker queue", key: coldKey, on: func(ctx context.Context, r *relay, c *testCluster) {
			r.toWorker = func() { occupied(ctx, c.workers[0].Do) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{sample: 1, layout: packer.Dense}
			sockets := udpFabric(t, o)
			cl := newCluster(t, modelFabric(t, func(host int) link.Link {
				l := c.slow[host]
				l.Link = sockets.link(host)
				return &l
			}), o)
			cl.ledger.refuse = func(wire.Rows) error { time.Sleep(c.handler); return nil }
			r := startRelay(t, cl.server.link.Local().AddrPort())
			o.tamper = func(cfg *WorkerConfig) { cfg.Server.Port = r.at().Port() }
			w := cl.worker(worker, o)
			cl.workers = append(cl.workers, w)
			// The server knows the worker by the relay's address.
			if err := errors.Join(cl.server.Remove(ctx, worker), cl.server.Admit(ctx, worker, r.at(), testServerEpoch)); err != nil {
				t.Fatal(err)
			}
			if c.on != nil {
				c.on(ctx, r, cl)
			}
			go r.run()
			join := telemetry.NewJoiner()
			const frames = 20
			for range frames {
				ticket, err := w.Push(ctx, []uint64{c.key}, make([]float32, testDim))
				if err == nil {
					err = ticket.Wait(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			// A record is written after the ticket is settled.
			if err := errors.Join(w.Do(ctx, func() {}), cl.server.Do(ctx, func() {})); err != nil {
				t.Fatal(err)
			}
			records, _ := w.Recorder().Records(nil)
			for _, rec := range records {
				join.AddWorker(rec)
			}
			records, _ = cl.server.Recorder().Records(nil)
			for _, rec := range records {
				join.AddServer(rec)
			}
			times := map[string][]time.Duration{}
			for _, row := range join.EndRound(nil, true) {
				if row.State != telemetry.Whole {
					continue
				}
				for i, d := range []time.Duration{row.Network, row.ServerQueue, row.ServerProcess, row.Queue, row.Process} {
					times[parts[i]] = append(times[parts[i]], d)
				}
				if !row.Stamped || row.Server != telemetry.NoServer && !row.ServerStamped {
					t.Errorf("%+v has no times of arrival", row)
				}
			}
			if n := len(times[c.part]); n < frames/2 || join.Impossible > 0 {
				t.Fatalf("%d of %d frames have parts: %+v", n, frames, join.Joined)
			}
			// On a busy machine a datagram may be passed on late, when its loop has slept for a while.
			slices.Sort(times[c.part])
			got := times[c.part][len(times[c.part])*3/4]
			if got < injected*85/100 {
				t.Errorf("%s takes %v", c.part, got)
			}
			for _, part := range parts {
				if least := slices.Min(times[part]); part != c.part && least >= injected*85/100 {
					t.Errorf("%s takes %v, and %s %v at least", c.part, got, part, least)
				}
			}
		})
	}
}

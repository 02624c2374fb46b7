// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
)

// breakable listens for the connections of a service, and can break them all at once, and for ever.
type breakable struct {
	mu     sync.Mutex
	broken bool
	all    []io.Closer
}

// listen is [Machine].Listen.
func (b *breakable) listen(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, err
	}
	return breakableListener{l, b}, nil
}

func (b *breakable) breakAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = true
	for _, c := range b.all {
		_ = c.Close()
	}
}

type breakableListener struct {
	net.Listener
	of *breakable
}

func (l breakableListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.of.mu.Lock()
		broken := l.of.broken
		l.of.all = append(l.of.all, c)
		l.of.mu.Unlock()
		if !broken {
			return c, nil
		}
		_ = c.Close()
	}
}

// Hosts that leave while the switch ends, or when it has, leave nothing behind that only the switch
// had, although no harvest was due. They come back without it, and finish.
func TestHostsLeaveWithoutTheSwitch(t *testing.T) {
	for name, leaves := range map[string]func(h *restarts, leave func()){
		"while it ends": func(h *restarts, leave func()) {
			var end sync.WaitGroup
			end.Go(h.stopSwitch)
			leave()
			end.Wait()
		},
		"when it has ended": func(h *restarts, leave func()) {
			h.stopSwitch()
			leave()
		},
		"while it cannot be reached": func(h *restarts, leave func()) { // the server notices after its lease
			h.control.breakAll()
			leave()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const agents = 2
			h := startHosts(t, agents, false, func(c *cluster.Config) { c.Job.Harvest = time.Hour })
			for i := range agents {
				h.pushes(h.dial(i), 1)
			}
			leaves(h, func() {
				var left sync.WaitGroup
				for i, a := range h.agents {
					a.end()
					left.Go(func() {
						if err := <-a.ended; err != nil {
							t.Errorf("agent %d: %v", i, err)
						}
					})
				}
				left.Wait()
			})
			for i := range agents {
				h.start(i, true)
				h.pushes(h.dial(i), 1)
			}
			h.finish(false)
			for _, key := range []uint64{restartHot, restartCold} {
				row := make([]float32, 4)
				h.store.Read([]uint64{key}, row)
				if want := -float32(2 * agents); row[0] != want {
					t.Errorf("key %d has %v, want %v", key, row[0], want)
				}
			}
		})
	}
}

// A host whose log is full does not wait for the next harvest, which may be due in an hour.
func TestFullLogIsHarvested(t *testing.T) {
	h := startHosts(t, 1, false, func(c *cluster.Config) { c.Job.Harvest, c.Job.ReplayMiB = time.Hour, 1 })
	c, err := cluster.Read(h.file)
	if err != nil {
		t.Fatal(err)
	}
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, hot.Len())
	for i := range keys {
		keys[i] = hot.Key(uint32(i))
	}
	grads := make([]float32, 4*len(keys))
	for i := range grads {
		grads[i] = 1
	}
	to, err := agentclient.Dial(t.Context(), h.socket(0), agentproto.Hello{Job: "rows", Parties: 1, BufferBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const pushes = 400 // of 8 KiB at least
	for range pushes {
		if _, err := to.Push(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	_ = to.Close()
	h.finish(true)
	row := make([]float32, 4)
	for _, key := range keys {
		if h.store.Read([]uint64{key}, row); row[0] != -pushes {
			t.Fatalf("key %d has %v, want %v", key, row[0], -pushes)
		}
	}
}

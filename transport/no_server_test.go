// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// withoutServer makes workers do without the server of their cluster.
func withoutServer(cfg *WorkerConfig) {
	cfg.NoServer, cfg.Server, cfg.ServerEpoch = true, wire.Endpoint{}, 0
}

// Hot rows are summed exactly without a server. Whatever else a push has, or asks for, is refused
// as a whole and alone, also if it shares frames with others.
func TestWorkerWithoutServer(t *testing.T) {
	for name, faults := range map[string]link.Faults{"": {}, "faults": {Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Seed: 3}} {
		t.Run(name, func(t *testing.T) {
			o := clusterOptions{workers: 1, faults: faults, tamper: withoutServer}
			c := newCluster(t, memFabric(t, o), o)
			w, want := c.workers[0], newLedger()
			hot, cold := []uint64{1003, 1000, 1199, 1003}, []uint64{1003, 5, 1000, 6}
			grads := make([]float32, len(hot)*testDim)
			for i := range grads {
				grads[i] = float32(i+1) / 8
			}
			refused := func(what string, err error, pull bool) {
				t.Helper()
				var no interface{ ColdKey() (uint64, bool) }
				if !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &no) {
					t.Fatalf("%s: %v", what, err)
				}
				if key, pushed := no.ColdKey(); pushed == pull || pushed && key != 5 || strings.Contains(err.Error(), "hot set only") == pull {
					t.Errorf("%s: %v", what, err)
				}
			}
			prepared, err := w.Prepare(hot)
			if err != nil {
				t.Fatal(err)
			}
			preparedCold, err := w.Prepare(cold)
			if err != nil {
				t.Fatal(err)
			}
			var tickets []*Ticket
			for range 20 {
				later, err := w.PushLater(t.Context(), hot, grads)
				if err != nil {
					t.Fatal(err)
				}
				alone, err := w.PushLater(t.Context(), cold, grads)
				if err != nil {
					t.Fatal(err)
				}
				again, err := prepared.Push(t.Context(), grads)
				if err != nil {
					t.Fatal(err)
				}
				tickets = append(tickets, later, again)
				refused("a queued push", alone.Wait(t.Context()), false)
				_, err = w.Push(t.Context(), cold, grads)
				refused("a push", err, false)
				_, err = preparedCold.Push(t.Context(), grads)
				refused("a prepared push", err, false)
				refused("a pull", w.Pull(t.Context(), hot, slices.Clone(grads)), true)
				refused("a search", preparedCold.Locate(t.Context()), true)
				want.addBatch(hot, grads)
				want.addBatch(hot, grads)
			}
			for _, ticket := range tickets {
				if err := ticket.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
			refused("a flush", w.Flush(t.Context()), false)
			var ended error
			if err := w.Do(t.Context(), func() { w.EndStep(&Step{Done: func(err error) { ended = err }}) }); err != nil {
				t.Fatal(err)
			}
			refused("the end of a step", ended, true)
			bank, err := c.plane.Swap(testJob)
			if err != nil {
				t.Fatal(err)
			}
			got := newLedger().total(c.hot, bank.Slots)
			for key, row := range want.sums {
				if !slices.Equal(got[key], row) {
					t.Errorf("key %d has the sums %v, want %v", key, got[key], row)
				}
			}
			if len(got) != len(want.sums) {
				t.Errorf("%d rows have sums, want %d", len(got), len(want.sums))
			}
			if s, err := w.Stats(t.Context()); err != nil || s.Cold.Sent != 0 || s.RowsCold != 0 || s.Hot.Sent == 0 {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// A worker without a server has none, and something to push.
func TestWorkerWithoutServerIsChecked(t *testing.T) {
	network := newMemNet()
	at, l := network.open("10.0.0.3:1").Local(), network.open("10.0.0.1:1")
	for want, change := range map[string]func(*WorkerConfig){
		"WorkerConfig.NoServer, but Server or MoreServers is set": func(c *WorkerConfig) { c.Server = at },
		"or MoreServers is set":                                   func(c *WorkerConfig) { c.MoreServers = []Peer{{At: at}} },
		"NoServer without a hot set":                              func(c *WorkerConfig) { c.HotSet, c.Dim = nil, 1 },
	} {
		cfg := WorkerConfig{Link: l, HotSet: testHotSet(t), Aggregator: at, NoServer: true}
		change(&cfg)
		if _, err := NewWorker(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

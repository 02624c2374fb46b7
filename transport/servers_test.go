// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// shards are the servers of a job besides the first, and their ledgers.
type shards struct {
	servers []*Server
	ledgers []*ledger
}

// newSharded starts a cluster whose workers have several servers.
func newSharded(t *testing.T, f func(testing.TB, clusterOptions) fabric, o clusterOptions, servers int) (*testCluster, *shards) {
	t.Helper()
	s, workers := &shards{}, o.workers
	o.workers = 0
	c := newCluster(t, f(t, o), o)
	s.servers, s.ledgers = []*Server{c.server}, []*ledger{c.ledger}
	for i := 1; i < servers; i++ {
		l := newLedger()
		l.numbering = uint32(i) << 16
		server, err := NewServer(ServerConfig{Link: c.open(100+i, o), Job: testJob, Dim: testDim, Handler: l})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		s.servers, s.ledgers = append(s.servers, server), append(s.ledgers, l)
	}
	given := o.tamper
	o.tamper = func(cfg *WorkerConfig) {
		for i, server := range s.servers[1:] {
			epoch := uint16(testServerEpoch + 1 + i)
			if err := server.Admit(t.Context(), cfg.Sender, cfg.Link.Local().AddrPort(), epoch); err != nil {
				t.Fatal(err)
			}
			at := server.link.Local()
			at.MAC = [6]byte{}
			cfg.MoreServers = append(cfg.MoreServers, Peer{at, epoch})
		}
		if given != nil {
			given(cfg)
		}
	}
	for i := range workers {
		c.workers = append(c.workers, c.worker(uint16(i+1), o))
	}
	return c, s
}

// held returns the contents of the whole cluster, and checks that each server has only its own
// rows.
func (s *shards) held(t *testing.T, c *testCluster) map[uint64][]int64 {
	t.Helper()
	bank, err := c.plane.Swap(testJob)
	if err != nil {
		t.Fatal(err)
	}
	return s.total(t, c, bank.Slots)
}

// total is held with the sums of the hot rows, by rank.
func (s *shards) total(t *testing.T, c *testCluster, hot []int64) map[uint64][]int64 {
	t.Helper()
	all := newLedger()
	for i, server := range s.servers {
		err := server.Do(t.Context(), func() {
			for key, row := range s.ledgers[i].sums {
				if owner := packer.Split(len(s.servers)).Owner(c.hot, key); owner != i {
					t.Errorf("server %d has key %d, which is server %d's", i, key, owner)
				}
				for col, units := range row {
					all.add(key, col, units)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.total(c.hot, hot)
}

// TestServers pushes through one, two and three servers, with and without faults: each gradient
// is added once, at the server that its row belongs to.
func TestServers(t *testing.T) {
	for name, f := range map[string]func(testing.TB, clusterOptions) fabric{"memory": memFabric, "udp": udpFabric} {
		for _, faults := range []link.Faults{{}, harsh} {
			for servers := 1; servers <= 3; servers++ {
				t.Run(strings.Join([]string{name, map[bool]string{true: "faults", false: "no faults"}[faults != link.Faults{}], string(rune('0' + servers))}, "/"), func(t *testing.T) {
					c, s := newSharded(t, f, clusterOptions{workers: 2, flow: hasty, faults: faults, layout: packer.Dense}, servers)
					want := pushAll(deadline(t), t, c.workers, 7, 40, 60)
					if diff := cmp.Diff(want, s.held(t, c)); diff != "" {
						t.Error(diff)
					}
					for i, l := range s.ledgers {
						if len(l.sums) == 0 {
							t.Errorf("server %d has no rows", i)
						}
					}
				})
			}
		}
	}
}

// TestPullFromServers pulls hot and cold rows, in any order and more than once.
func TestPullFromServers(t *testing.T) {
	ctx := deadline(t)
	c, _ := newSharded(t, memFabric, clusterOptions{workers: 1, flow: hasty, faults: harsh}, 3)
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 20 {
		keys, _ := batch(rng, n*n)
		dst := make([]float32, len(keys)*testDim)
		if err := c.workers[0].Pull(ctx, keys, dst); err != nil {
			t.Fatal(err)
		}
		for i, x := range dst {
			if want := weight(keys[i/testDim], i%testDim); x != want {
				t.Fatalf("float %d of %d rows is %v, not %v", i, len(keys), x, want)
			}
		}
	}
}

// TestRowNumbersOfServers pushes prepared batches to three servers, each of which renumbers its
// rows at different times.
func TestRowNumbersOfServers(t *testing.T) {
	for name, f := range map[string]link.Faults{"no faults": {}, "faults": harsh} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			c, s := newSharded(t, memFabric, clusterOptions{workers: 1, flow: hasty, faults: f}, 3)
			w, want := c.workers[0], newLedger()
			rng := rand.New(rand.NewPCG(5, 6))
			type prepared struct {
				*Prepared
				keys []uint64
			}
			var batches []prepared
			for i := range 6 {
				keys, _ := batch(rng, 20+rng.IntN(20)+400*(i/3)) // some of them share frames
				p, err := w.Prepare(keys)
				if err != nil {
					t.Fatal(err)
				}
				batches = append(batches, prepared{p, keys})
			}
			for n := range 300 {
				b := batches[rng.IntN(6)]
				grads := make([]float32, len(b.keys)*testDim)
				for k := range grads {
					grads[k] = float32(rng.NormFloat64())
				}
				want.addBatch(b.keys, grads)
				push := b.PushLater
				if rng.IntN(2) == 0 {
					push = b.Push
				}
				if _, err := push(ctx, grads); err != nil {
					t.Fatal(err)
				}
				if n%20 == 19 {
					at := rng.IntN(3)
					if err := s.servers[at].Do(ctx, s.ledgers[at].renumber); err != nil {
						t.Fatal(err)
					}
				}
				if n%25 == 24 {
					if err := w.Flush(ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			if diff := cmp.Diff(withoutZeros(want.sums), s.held(t, c)); diff != "" {
				t.Error(diff)
			}
			stats, err := w.Stats(ctx)
			if err != nil || stats.RowsAt == 0 || stats.Renamed == 0 {
				t.Errorf("%d rows by number, %d by key after that, %v", stats.RowsAt, stats.Renamed, err)
			}
		})
	}
}

// newPeered returns a worker without a goroutine, and its peers: the aggregator, and three servers.
func newPeered(t *testing.T) (*Worker, []*memLink) {
	t.Helper()
	network := newMemNet()
	var peers []*memLink
	var servers []Peer
	for i, at := range []string{"10.0.0.1:19522", "10.0.0.2:19522", "10.0.0.4:19522", "10.0.0.5:19522"} {
		peers = append(peers, network.open(at))
		servers = append(servers, Peer{peers[i].local, testServerEpoch + uint16(i)})
	}
	w, err := makeWorker(t.Context(), WorkerConfig{
		Link: network.open("10.0.0.3:19522"), Job: testJob, Sender: 1, HotSet: testHotSet(t), Layout: packer.Dense, Stripes: wire.DefaultStripes,
		Aggregator: peers[0].local, AggregatorEpoch: testEpoch,
		Server: servers[1].At, ServerEpoch: servers[1].Epoch, MoreServers: servers[2:],
	})
	if err != nil {
		t.Fatal(err)
	}
	w.clock = func() retransmit.Time { return 0 }
	return w, peers
}

// pushToAll pushes rows of all peers in one turn.
func (w *Worker) pushToAll(t *testing.T) {
	t.Helper()
	keys, grads := batch(rand.New(rand.NewPCG(4, 4)), 1500)
	w.acceptOperation(&operation{keys: keys, values: grads, ticket: &Ticket{done: make(chan struct{})}, released: make(chan struct{})})
	if _, err := w.turn(); err != nil {
		t.Fatal(err)
	}
}

// TestEachPeerIsAsked pushes rows of the aggregator and of three servers in one batch of frames:
// the last frame for each asks for an answer, so that none of them comes after a timeout.
func TestEachPeerIsAsked(t *testing.T) {
	w, peers := newPeered(t)
	w.pushToAll(t)
	for i, peer := range peers {
		frames := arrived(t, peer)
		if len(frames) < 2 || len(frames) > 15 { // every sixteenth asks anyway
			t.Fatalf("peer %d gets %d frames", i, len(frames))
		}
		for k, h := range frames {
			want := wire.FlagQuiet
			if k == len(frames)-1 {
				want = wire.FlagCover
			}
			if h.Flags&^wire.FlagDense != want {
				t.Errorf("frame %d of %d for peer %d has the flags %v, want %v", k, len(frames), i, h.Flags, want)
			}
		}
	}
}

// TestFlushWaitsForEachPeer answers a worker's frames one peer after the other, each of them last
// once: Flush returns when all are answered.
func TestFlushWaitsForEachPeer(t *testing.T) {
	w, peers := newPeered(t)
	for last := range peers {
		w.pushToAll(t)
		fl := &flush{done: make(chan error, 1)}
		w.addFlush(fl)
		for i := range peers {
			if _, err := w.turn(); err != nil {
				t.Fatal(err)
			}
			if len(fl.done) > 0 {
				t.Fatalf("after the answers of %d of %d peers, peer %d last, Flush has returned", i, len(peers), last)
			}
			peer := peers[(last+1+i)%len(peers)]
			for _, h := range arrived(t, peer) {
				peer.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), w.link.(*memLink).local)
			}
		}
		if _, err := w.turn(); err != nil {
			t.Fatal(err)
		}
		if len(fl.done) == 0 {
			t.Fatalf("all frames are answered, and Flush has not returned")
		}
		if err := <-fl.done; err != nil {
			t.Error(err)
		}
	}
}

// TestServerThatDoesNotAnswer ends a push and a pull with an error that names the server, while the
// others have the acknowledged gradients.
func TestServerThatDoesNotAnswer(t *testing.T) {
	ctx := deadline(t)
	flow := hasty
	flow.Silence = 200 * time.Millisecond
	c, s := newSharded(t, memFabric, clusterOptions{workers: 1, flow: flow}, 3)
	w := c.workers[0]
	if err := s.servers[2].Close(); err != nil {
		t.Fatal(err)
	}
	keys, grads := batch(rand.New(rand.NewPCG(3, 3)), 300)
	ticket, err := w.Push(ctx, keys, grads)
	if err == nil {
		err = ticket.Wait(ctx)
	}
	var push *PushError
	var peer *PeerError
	if !errors.As(err, &push) || push.Acked == 0 || push.Unacked == 0 || !errors.As(err, &peer) || !errors.As(err, new(*retransmit.SilentPeerError)) {
		t.Fatalf("the push ends with %v", err)
	}
	if at := s.servers[2].link.Local().AddrPort(); peer.Addr != at || !strings.Contains(err.Error(), "parameter server 2 of 3") {
		t.Errorf("the error does not name server 2 at %v: %v", at, err)
	}
	if err := w.Pull(ctx, keys, make([]float32, len(grads))); !errors.As(err, &peer) {
		t.Errorf("a pull ends with %v", err)
	}
	whole := newLedger()
	whole.addBatch(keys, grads)
	for i := range 2 { // whose windows had room for all
		err := s.servers[i].Do(ctx, func() {
			for key, row := range s.ledgers[i].sums {
				if !cmp.Equal(row, whole.sums[key]) {
					t.Errorf("server %d holds %d of key %d, not %d", i, row, key, whole.sums[key])
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestServerAddresses refuses peers whose answers could not be distinguished.
func TestServerAddresses(t *testing.T) {
	at := func(host byte) wire.Endpoint {
		return wire.Endpoint{IP: newMemNet().addr("10.0.0." + string('0'+rune(host))), Port: 1}
	}
	mapped := at(1)
	mapped.IP = netip.AddrFrom16(mapped.IP.As16())
	for want, peers := range map[string][]Peer{
		"aggregator and parameter server 1 of 2 (by index, from 0) have the same address":                                 {{At: mapped}},
		"parameter server 0 of 2 (by index, from 0) and parameter server 1 of 2 (by index, from 0) have the same address": {{At: at(2)}},
		"aggregator and parameter server 2 of 3 (by index, from 0) have the same address":                                 {{At: at(3)}, {At: at(1)}},
		"33 parameter servers, possible are 1 to 32":                                                                      make([]Peer, wire.MaxServers),
	} {
		cfg := WorkerConfig{Link: newMemNet().open("10.0.0.9:1"), HotSet: testHotSet(t), Aggregator: at(1), Server: at(2), MoreServers: peers}
		if _, err := NewWorker(t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

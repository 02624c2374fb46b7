package transport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

const (
	testJob   = 7
	testEpoch = 3
	testDim   = 3
	testHot   = 200 // rows: the keys 1000, 1001, ...
)

// ledger is a parameter server's store that only sums, in fixed point.
type ledger struct {
	format fixedpoint.Format
	dim    int
	sums   map[uint64][]int64
	refuse func(wire.Rows) error
}

func newLedger() *ledger {
	return &ledger{format: fixedpoint.Format{Exp: fixedpoint.DefaultExp}, dim: testDim, sums: map[uint64][]int64{}}
}

func (l *ledger) add(key uint64, col int, units int64) {
	row := l.sums[key]
	if row == nil {
		row = make([]int64, l.dim)
		l.sums[key] = row
	}
	row[col] += units
}

func (l *ledger) addBatch(keys []uint64, grads []float32) {
	for i, g := range grads {
		units, err := l.format.FromFloat32(g)
		if err != nil {
			panic(err)
		}
		l.add(keys[i/l.dim], i%l.dim, units)
	}
}

func (l *ledger) Accumulate(rows wire.Rows) error {
	if l.refuse != nil {
		if err := l.refuse(rows); err != nil {
			return err
		}
	}
	row := make([]float32, rows.Dim)
	for i := range rows.Count {
		rows.Row(i, row)
		l.addBatch([]uint64{rows.Key(i)}, row)
	}
	return nil
}

// Read gives a row that its key determines.
func (l *ledger) Read(key uint64, dst []float32) {
	for c := range dst {
		dst[c] = weight(key, c)
	}
}

func weight(key uint64, col int) float32 { return float32(key%4096) + float32(col)/8 }

// total returns the ledger's sums and those of aggregator banks, by key.
func (l *ledger) total(hot *packer.HotSet, banks ...[]int64) map[uint64][]int64 {
	t := newLedger()
	for key, row := range l.sums {
		for c, units := range row {
			t.add(key, c, units)
		}
	}
	for _, bank := range banks {
		for rank, units := range bank {
			if units != 0 {
				t.add(hot.Key(uint32(rank/testDim)), rank%testDim, units)
			}
		}
	}
	return withoutZeros(t.sums)
}

// withoutZeros drops the rows whose sums are all zero: an aggregator does not
// tell them from untouched ones.
func withoutZeros(sums map[uint64][]int64) map[uint64][]int64 {
	for key, row := range sums {
		zero := true
		for _, units := range row {
			zero = zero && units == 0
		}
		if zero {
			delete(sums, key)
		}
	}
	return sums
}

func testHotSet(t testing.TB) *packer.HotSet {
	t.Helper()
	keys := make([]uint64, testHot)
	for i := range keys {
		keys[i] = 1000 + uint64(i)
	}
	h, err := packer.NewHotSet(testDim, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// batch makes n rows, about half of them hot.
func batch(rng *rand.Rand, n int) (keys []uint64, grads []float32) {
	for range n {
		key := 1000 + rng.Uint64N(testHot)
		if rng.IntN(2) == 0 {
			key = 1 << 40 * (1 + rng.Uint64N(500))
		}
		keys = append(keys, key)
		for range testDim {
			grads = append(grads, float32(rng.NormFloat64()))
		}
	}
	return keys, grads
}

// testCluster is an aggregator, a server and workers on links of one kind.
type testCluster struct {
	t       testing.TB
	hot     *packer.HotSet
	model   *aggregator.Model
	agg     *AggregatorServer
	server  *Server
	ledger  *ledger
	link    func(host int) Link // 1 aggregator, 2 server, 3... workers
	workers []*Worker
}

type clusterOptions struct {
	mode    aggregator.Mode
	layout  packer.Layout
	stripes int
	flow    retransmit.Config
	tamper  func(*WorkerConfig)
}

// memCluster puts a cluster on a network in memory, with faults at the links of
// workers and server.
func memCluster(t testing.TB, workers int, f Faults, o clusterOptions) *testCluster {
	network := newMemNet()
	return newCluster(t, workers, o, func(host int) Link {
		return faulty(t, network.open(fmt.Sprintf("10.0.0.%d:19522", host)), f, host)
	})
}

// udpCluster puts a cluster on the loopback interface.
func udpCluster(t testing.TB, workers int, f Faults, o clusterOptions) *testCluster {
	return newCluster(t, workers, o, func(host int) Link {
		l, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		return faulty(t, l, f, host)
	})
}

func faulty(t testing.TB, l Link, f Faults, host int) Link {
	t.Helper()
	if host < 2 || !f.Any() {
		return l
	}
	f.Seed += uint64(host)
	l, err := WithFaults(l, f)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newCluster(t testing.TB, workers int, o clusterOptions, link func(host int) Link) *testCluster {
	t.Helper()
	if o.stripes == 0 {
		o.stripes = wire.MaxStripes
	}
	c := &testCluster{t: t, hot: testHotSet(t), ledger: newLedger(), link: link}
	var err error
	if c.model, err = aggregator.NewModel(aggregator.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := c.model.AddJob(aggregator.JobConfig{ID: testJob, Epoch: testEpoch, Mode: o.mode, Slots: c.hot.Slots()}); err != nil {
		t.Fatal(err)
	}
	if c.agg, err = NewAggregatorServer(link(1), c.model); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.agg.Close() })
	c.server, err = NewServer(ServerConfig{Link: link(2), Job: testJob, Epoch: testEpoch, Dim: testDim, Handler: c.ledger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.server.Close() })
	for i := range workers {
		c.workers = append(c.workers, c.worker(uint16(i+1), o))
	}
	return c
}

// worker starts and admits one more worker.
func (c *testCluster) worker(id uint16, o clusterOptions) *Worker {
	c.t.Helper()
	l := c.link(2 + int(id))
	ip := l.Local().IP
	if err := c.model.AddSender(testJob, aggregator.SenderConfig{ID: id, IP: ip}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.server.Admit(c.t.Context(), id, ip); err != nil {
		c.t.Fatal(err)
	}
	cfg := WorkerConfig{
		Link: l, Job: testJob, Sender: id, Epoch: testEpoch, HotSet: c.hot,
		Layout: o.layout, Stripes: o.stripes, Flow: o.flow,
		Aggregator: c.agg.loop.link.Local(), Server: c.server.link.Local(),
	}
	if o.tamper != nil {
		o.tamper(&cfg)
	}
	w, err := NewWorker(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { w.Close() })
	return w
}

// sums returns all that aggregator and server hold.
func (c *testCluster) sums() map[uint64][]int64 {
	c.t.Helper()
	bank, err := c.model.Swap(testJob)
	if err != nil {
		c.t.Fatal(err)
	}
	var total map[uint64][]int64
	if err := c.server.Do(c.t.Context(), func() { total = c.ledger.total(c.hot, bank.Slots) }); err != nil {
		c.t.Fatal(err)
	}
	return total
}

// pushAll lets every worker push batches, several at a time, and returns what
// the sums must be.
func pushAll(ctx context.Context, t testing.TB, workers []*Worker, seed uint64, batches, rows int) map[uint64][]int64 {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	want := newLedger()
	for i, w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			var tickets []*Ticket
			for range batches {
				keys, grads := batch(rng, 1+rng.IntN(2*rows))
				ticket, err := w.Push(ctx, keys, grads)
				if err != nil {
					t.Errorf("worker %d: %v", i, err)
					return
				}
				mu.Lock()
				want.addBatch(keys, grads)
				mu.Unlock()
				clear(keys) // Push has copied them
				clear(grads)
				tickets = append(tickets, ticket)
			}
			for _, ticket := range tickets {
				if err := ticket.Wait(ctx); err != nil {
					t.Errorf("worker %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	return withoutZeros(want.sums)
}

// deadline bounds a test that would hang.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

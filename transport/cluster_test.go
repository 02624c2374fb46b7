// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

const (
	testJob         = 7
	testEpoch       = 3
	testServerEpoch = 11 // a different one, so that the flows cannot be confused
	testDim         = 3
	testHot         = 200 // rows: the keys 1000, 1001, ...
)

// ledger is a parameter server's store that only adds, in fixed point.
type ledger struct {
	format fixedpoint.Format
	dim    int
	sums   map[uint64][]int64
	refuse func(wire.Rows) error

	keys      []uint64 // of the rows that have numbers, by number - 1
	numbers   map[uint64]uint32
	numbering uint32
}

func newLedger() *ledger {
	return &ledger{format: fixedpoint.Format{Exp: fixedpoint.DefaultExp}, dim: testDim, sums: map[uint64][]int64{}, numbers: map[uint64]uint32{}}
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

// Find assigns numbers to rows at their first request.
func (l *ledger) Find(keys []uint64, numbers []uint32) uint32 {
	for i, key := range keys {
		n, known := l.numbers[key]
		if !known && l.sums[key] != nil {
			l.keys = append(l.keys, key)
			n = uint32(len(l.keys))
			l.numbers[key] = n
		}
		numbers[i] = n
	}
	return l.numbering
}

func (l *ledger) AccumulateAt(rows wire.Rows) error {
	if rows.Numbering != l.numbering {
		return wire.Refusal{Code: wire.CodeNumbering, Value: l.numbering}
	}
	row := make([]float32, rows.Dim)
	for i := range rows.Count {
		if n := int(rows.Number(i)); n == 0 || n > len(l.keys) {
			return wire.Refusal{Code: wire.CodeRowNumber, Index: uint16(i), Value: uint32(len(l.keys))}
		}
	}
	for i := range rows.Count {
		rows.Row(i, row)
		l.addBatch([]uint64{l.keys[rows.Number(i)-1]}, row)
	}
	return nil
}

// renumber forgets the numbers of all rows, and assigns new ones on request.
func (l *ledger) renumber() {
	l.keys, l.numbers = nil, map[uint64]uint32{}
	l.numbering++
}

// Read returns rows that depend only on their keys.
func (l *ledger) Read(keys []uint64, dst []float32) {
	for i := range dst {
		dst[i] = weight(keys[i/testDim], i%testDim)
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

// withoutZeros drops the rows whose sums are all zero: an aggregator cannot distinguish them from
// untouched ones.
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

// batch returns n rows, about half of them hot.
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

// fabric is the network of a cluster.
type fabric struct {
	link       func(host int) link.Link  // 0 server, 1... workers
	in         func(host int, fn func()) // runs fn where the host's link can resolve addresses
	plane      aggregator.Plane
	aggregator wire.Endpoint
}

// testCluster is an aggregator, a server and workers.
type testCluster struct {
	fabric
	t       testing.TB
	hot     *packer.HotSet
	server  *Server
	ledger  *ledger
	workers []*Worker
}

type clusterOptions struct {
	workers int
	hot     *packer.HotSet // nil is testHotSet
	faults  link.Faults    // at the links of workers and server
	mode    aggregator.Mode
	layout  packer.Layout
	stripes int // 0 is all
	// Properties of the job besides the mode; rounds admit the number of workers.
	arithmetic aggregator.Arithmetic
	exp        int // 0 is the arithmetic's default
	rounds     bool
	negotiate  bool
	limit      time.Duration // of a round
	flow       retransmit.Config
	sample     int                                               // of telemetry
	codec      codec.Config                                      // of cold rows
	arrive     func(sender, epoch uint16, end wire.StepEnd) bool // the server's
	tamper     func(*WorkerConfig)
}

func (o clusterOptions) unit() int {
	if o.exp == 0 {
		return aggregator.DefaultExp(o.arithmetic)
	}
	return o.exp
}

// memFabric is a network in memory with the Go aggregator.
func memFabric(t testing.TB, _ clusterOptions) fabric {
	network := newMemNet()
	return modelFabric(t, func(host int) link.Link { return network.open(fmt.Sprintf("10.0.0.%d:19522", host+10)) })
}

// udpFabric is the loopback interface with the Go aggregator.
func udpFabric(t testing.TB, _ clusterOptions) fabric {
	return modelFabric(t, func(int) link.Link {
		l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			t.Fatal(err)
		}
		return l
	})
}

func modelFabric(t testing.TB, open func(host int) link.Link) fabric {
	t.Helper()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := open(-1)
	agg, err := NewAggregatorServer(AggregatorConfig{Link: l, Model: model})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agg.Close() })
	return fabric{link: open, in: func(_ int, fn func()) { fn() }, plane: model, aggregator: l.Local()}
}

// newCluster starts a server and admitted workers on a fabric.
func newCluster(t testing.TB, f fabric, o clusterOptions) *testCluster {
	t.Helper()
	c := &testCluster{fabric: f, t: t, hot: o.hot, ledger: newLedger()}
	if c.hot == nil {
		c.hot = testHotSet(t)
	}
	job := aggregator.JobConfig{ID: testJob, Epoch: testEpoch, Mode: o.mode, Arithmetic: o.arithmetic, Exp: o.unit(), Slots: c.hot.Slots()}
	if o.rounds {
		job.Workers, job.MaxStripes = o.workers, o.stripes
	}
	if err := c.plane.AddJob(job); err != nil {
		t.Fatal(err)
	}
	var err error
	c.server, err = NewServer(ServerConfig{Link: c.open(0, o), Job: testJob, Dim: testDim, Handler: c.ledger, Arrive: o.arrive, Sample: o.sample, Codec: o.codec})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.server.Close() })
	for i := range o.workers {
		c.workers = append(c.workers, c.worker(uint16(i+1), o))
	}
	return c
}

// open opens the link of a host.
func (c *testCluster) open(host int, o clusterOptions) (l link.Link) {
	c.t.Helper()
	c.in(host, func() { l = c.link(host) })
	if o.faults == (link.Faults{}) {
		return l
	}
	f := o.faults
	f.Seed += uint64(host)
	l, err := link.WithFaults(l, f)
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

// worker starts and admits one more worker.
func (c *testCluster) worker(id uint16, o clusterOptions) (w *Worker) {
	c.t.Helper()
	l := c.open(int(id), o)
	local := l.Local()
	if err := c.plane.AddSender(testJob, aggregator.SenderConfig{
		ID: id, Epoch: testEpoch, IP: local.IP, MAC: local.MAC, Port: local.Port,
	}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.server.Admit(c.t.Context(), id, local.AddrPort(), testServerEpoch); err != nil {
		c.t.Fatal(err)
	}
	server := c.server.link.Local()
	server.MAC = [6]byte{} // to be resolved
	cfg := WorkerConfig{
		Link: l, Job: testJob, Sender: id, AggregatorEpoch: testEpoch, ServerEpoch: testServerEpoch, HotSet: c.hot,
		Layout: o.layout, Stripes: o.stripes, Flow: o.flow,
		Aggregator: c.aggregator, Server: server,
		Mode: o.mode, Arithmetic: o.arithmetic, Exp: o.unit(), Negotiate: o.negotiate, RoundLimit: o.limit, Sample: o.sample, Codec: o.codec,
	}
	if o.rounds {
		cfg.Workers = o.workers
	}
	if cfg.Stripes == 0 {
		cfg.Stripes = wire.DefaultStripes
	}
	if o.tamper != nil {
		o.tamper(&cfg)
	}
	var err error
	c.in(int(id), func() { w, err = NewWorker(c.t.Context(), cfg) })
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { w.Close() })
	return w
}

// sums returns all sums of aggregator and server.
func (c *testCluster) sums() map[uint64][]int64 {
	c.t.Helper()
	bank, err := c.plane.Swap(testJob)
	if err != nil {
		c.t.Fatal(err)
	}
	var total map[uint64][]int64
	if err := c.server.Do(c.t.Context(), func() { total = c.ledger.total(c.hot, bank.Slots) }); err != nil {
		c.t.Fatal(err)
	}
	return total
}

// pushAll lets every worker push batches, several at a time, and returns the expected sums.
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
				want.addBatch(keys, asReceived(w, keys, grads))
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

// asReceived returns the gradients of a push as the server and the aggregator get them: cold rows
// have gone through the worker's codec.
func asReceived(w *Worker, keys []uint64, grads []float32) []float32 {
	if w.decoder == nil {
		return grads
	}
	grads = slices.Clone(grads)
	packer.CodeCold(w.decoder.Codec, w.cfg.HotSet, keys, grads)
	return grads
}

// eventLimit bounds the wait for an event that a test expects, on a machine that is busy with
// other programs, too.
const eventLimit = 2 * time.Minute

// deadline limits a test that would hang.
func deadline(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	t.Cleanup(cancel)
	return ctx
}

// refused adds up refusals of all codes.
func refused(counts []uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

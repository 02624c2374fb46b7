// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

const testSlots = testHot * testDim

// vectors returns a hot vector for each worker, whose size grows with the round.
func vectors(workers, round int) [][]float32 {
	v := make([][]float32, workers)
	for i := range v {
		rng := rand.New(rand.NewPCG(uint64(round), uint64(i)))
		v[i] = make([]float32, testSlots)
		for k := range v[i] {
			v[i][k] = float32(rng.NormFloat64()) * float32(int(1)<<(round%8))
		}
	}
	return v
}

// sumsOf returns the possible sums of a round: one, or with table-lookup arithmetic one for each
// order of the workers' frames.
func sumsOf(t testing.TB, o clusterOptions, grads [][]float32) [][]float32 {
	sums := make([]float32, testSlots)
	switch o.arithmetic {
	case aggregator.Exact:
		f := fixedpoint.Format{Exp: fixedpoint.DefaultExp}
		for k := range sums {
			var sum int64
			for _, g := range grads {
				units, err := f.FromFloat32(g[k])
				if err != nil {
					t.Error(err)
				}
				sum += units
			}
			sums[k] = f.ToFloat32(sum)
		}
	case aggregator.Fixed:
		scale := scaled.Scale{Exp: -o.unit()}
		if o.negotiate {
			scale = scaleOf(t, grads)
		}
		for k := range sums {
			var sum int32
			for _, g := range grads {
				n, err := scale.FromFloat32(g[k])
				if err != nil {
					t.Error(err)
				}
				sum = scaled.Add(sum, n)
			}
			sums[k] = scale.ToFloat32(sum)
		}
	case aggregator.LUT:
		tables := lutTables()
		var all [][]float32
		permutations(len(grads), func(order []int) {
			sums := make([]float32, testSlots)
			for k := range sums {
				var sum uint32
				for _, i := range order {
					sum = tables.Add(sum, math.Float32bits(grads[i][k]))
				}
				sums[k] = math.Float32frombits(sum)
			}
			all = append(all, sums)
		})
		return all
	}
	return [][]float32{sums}
}

var lutTables = sync.OnceValue(func() *lut.Adder {
	tables, err := lut.New(lut.Config{})
	if err != nil {
		panic(err)
	}
	return tables
})

// scaleOf returns the scale that workers with these gradients agree on.
func scaleOf(t testing.TB, grads [][]float32) scaled.Scale {
	var largest uint8
	for _, g := range grads {
		e, err := scaled.LargestExponent(g)
		if err != nil {
			t.Error(err)
		}
		largest = max(largest, e)
	}
	scale, err := scaled.ScaleFor(largest, len(grads))
	if err != nil {
		t.Error(err)
	}
	return scale
}

func permutations(n int, do func([]int)) {
	order := make([]int, 0, n)
	var used int
	var next func()
	next = func() {
		if len(order) == n {
			do(order)
			return
		}
		for i := range n {
			if used>>i&1 == 0 {
				used |= 1 << i
				order = append(order, i)
				next()
				order = order[:len(order)-1]
				used &^= 1 << i
			}
		}
	}
	next()
}

// reduceAll lets all workers reduce for a number of rounds and returns every worker's sums of every
// round. Each worker runs as fast as the others allow.
func reduceAll(ctx context.Context, t testing.TB, workers []*Worker, rounds int) (sums [][][]float32) {
	t.Helper()
	sums = make([][][]float32, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() {
			for round := range rounds {
				v := vectors(len(workers), round)[i] // becomes the sums
				if err := w.Reduce(ctx, v, v); err != nil {
					t.Errorf("worker %d, round %d: %v", i, round, err)
					return
				}
				sums[i] = append(sums[i], v)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return sums
}

// checkSums compares the sums of every worker and round, group by group.
func checkSums(t testing.TB, o clusterOptions, sums [][][]float32) {
	t.Helper()
	stripes := o.stripes
	if stripes == 0 {
		stripes = wire.DefaultStripes
	}
	for round := range sums[0] {
		possible := sumsOf(t, o, vectors(len(sums), round))
		for first := 0; first < testSlots; first += stripes * wire.Lanes {
			end := min(first+stripes*wire.Lanes, testSlots)
			found := false
			for _, want := range possible {
				found = found || cmp.Equal(want[first:end], sums[0][round][first:end])
			}
			if !found {
				t.Fatalf("round %d, ranks %d to %d: sums (-want +got):\n%.1000s", round, first, end-1,
					cmp.Diff(possible[0][first:end], sums[0][round][first:end]))
			}
			for i := range sums {
				if diff := cmp.Diff(sums[0][round][first:end], sums[i][round][first:end]); diff != "" {
					t.Fatalf("round %d: worker %d has other sums than worker 0:\n%.1000s", round, i, diff)
				}
			}
		}
	}
}

// brisk limits how long a lost frame or result delays a round.
var brisk = retransmit.Config{InitialRTO: 5 * time.Millisecond, MinRTO: 2 * time.Millisecond, MaxRTO: 10 * time.Millisecond}

// synchronous returns the options of a synchronous job.
func synchronous(o clusterOptions) clusterOptions {
	o.mode, o.rounds = aggregator.Sync, true
	if o.flow == (retransmit.Config{}) {
		o.flow = brisk
	}
	return o
}

// lagging is harsh with very late copies, which arrive some rounds late.
var lagging = link.Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.05, LateDelay: 100}

// TestReduce checks that every worker gets the correct sums of every round, bit for bit, whatever
// the network does.
func TestReduce(t *testing.T) {
	fixed := func(o clusterOptions) clusterOptions {
		o.arithmetic, o.exp = aggregator.Fixed, -12
		return o
	}
	negotiated := func(o clusterOptions) clusterOptions {
		o.arithmetic, o.negotiate = aggregator.Fixed, true
		return o
	}
	for _, c := range []struct {
		name    string
		fabric  func(testing.TB, clusterOptions) fabric
		options clusterOptions
		rounds  int
	}{
		{"one worker", memFabric, clusterOptions{workers: 1, stripes: 10}, 5},
		{"memory", memFabric, clusterOptions{workers: 3, stripes: 10}, 40},
		{"memory, one stripe", memFabric, clusterOptions{workers: 3, stripes: 1}, 40},
		{"memory, window of two", memFabric, clusterOptions{workers: 3, stripes: 1, flow: retransmit.Config{Size: 2}}, 10},
		{"memory, faults", memFabric, clusterOptions{workers: 3, stripes: 2, faults: lagging}, 25},
		{"memory, faults, small window", memFabric, clusterOptions{workers: 2, stripes: 1, faults: lagging, flow: retransmit.Config{Size: 8, InitialRTO: brisk.InitialRTO, MinRTO: brisk.MinRTO, MaxRTO: brisk.MaxRTO}}, 15},
		{"memory, faults, fixed", memFabric, fixed(clusterOptions{workers: 3, stripes: 2, faults: lagging}), 25},
		{"memory, faults, negotiated", memFabric, negotiated(clusterOptions{workers: 3, stripes: 2, faults: lagging}), 25},
		{"memory, faults, lut", memFabric, clusterOptions{workers: 3, stripes: 2, faults: lagging, arithmetic: aggregator.LUT}, 25},
		{"udp", udpFabric, clusterOptions{workers: 3, stripes: 2}, 20},
		{"udp, faults, negotiated", udpFabric, negotiated(clusterOptions{workers: 3, stripes: 2, faults: lagging}), 15},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := synchronous(c.options)
			cl := newCluster(t, c.fabric(t, o), o)
			checkSums(t, o, reduceAll(deadline(t), t, cl.workers, c.rounds))
			checkRounds(t, cl, o, c.rounds)
		})
	}
}

// checkRounds compares the counters of aggregator and workers.
func checkRounds(t *testing.T, c *testCluster, o clusterOptions, rounds int) {
	t.Helper()
	groups := (testSlots + o.stripes*wire.Lanes - 1) / (o.stripes * wire.Lanes)
	n, err := c.plane.JobCounters(testJob)
	if err != nil {
		t.Fatal(err)
	}
	if n.Rounds != uint64(rounds*groups) || n.Applied != uint64(rounds*groups*o.workers) {
		t.Errorf("the aggregator counted %d rounds and %d contributions in %d × %d", n.Rounds, n.Applied, rounds, groups)
	}
	for i, w := range c.workers {
		s, err := w.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(rounds * groups)
		if o.negotiate {
			want += uint64(rounds)
		}
		if s.Results != want || refused(s.Refusals[:]) != 0 || s.Malformed != 0 {
			t.Errorf("worker %d: %d results of %d, %+v", i, s.Results, want, s)
		}
		if testing.Verbose() {
			t.Logf("worker %d: %+v", i, s)
		}
	}
}

// deafLink loses all frames to all senders.
type deafLink struct{ link.Link }

func (l deafLink) Receive(pkts []link.Packet) (int, error) {
	n, err := l.Link.Receive(pkts)
	heard := 0
	for _, p := range pkts[:n] {
		if h, err := wire.ParseHeader(p.Payload); err != nil || h.Flags&wire.FlagAll == 0 {
			pkts[heard] = p
			heard++
		}
	}
	return heard, err
}

// TestReduceAsksForResults has a worker that never gets an answer to all.
func TestReduceAsksForResults(t *testing.T) {
	o := synchronous(clusterOptions{workers: 3, stripes: 1, arithmetic: aggregator.Fixed, negotiate: true})
	o.tamper = func(c *WorkerConfig) {
		if c.Sender == 2 {
			c.Link = deafLink{c.Link}
		}
	}
	c := newCluster(t, memFabric(t, o), o)
	checkSums(t, o, reduceAll(deadline(t), t, c.workers, 4))
	checkRounds(t, c, o, 4)
}

// TestReduceWaitsForLateWorker lets one worker start long after the others: that is not a loss.
func TestReduceWaitsForLateWorker(t *testing.T) {
	const late = time.Second
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 3, stripes: 1, flow: retransmit.Config{MinRTO: 20 * time.Millisecond, MaxRTO: 100 * time.Millisecond}})
	c := newCluster(t, memFabric(t, o), o)
	v := vectors(3, 0)
	var wg sync.WaitGroup
	for i, w := range c.workers {
		wg.Go(func() {
			if i == 2 {
				time.Sleep(late)
			}
			if err := w.Reduce(ctx, v[i], v[i]); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	checkSums(t, o, [][][]float32{{v[0]}, {v[1]}, {v[2]}})
	for i, w := range c.workers[:2] {
		s, err := w.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.Waits.Sent == 0 || s.Waits.Retransmitted == 0 {
			t.Errorf("worker %d did not wait or never asked: %+v", i, s.Waits)
		}
		if s.Hot.SRTT > late/2 {
			t.Errorf("worker %d takes waiting for a round trip: %v", i, s.Hot.SRTT)
		}
	}
}

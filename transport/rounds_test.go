package transport

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/internal/scaled"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

const testSlots = testHot * testDim

// vectors returns the hot vectors of so many workers, of a size that grows with
// the round.
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

// sumsOf returns what the sums of a round must be: one possibility, or with
// table-lookup arithmetic one for each order in which the workers' frames can
// have come.
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
		scale := scaled.Scale{Exp: -o.exp}
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

// reduceAll lets all workers reduce for so many rounds and returns every
// worker's sums of every round. Each worker goes as fast as the others let it.
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
		stripes = wire.MaxStripes
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

// synchronous returns the options of a synchronous job.
func synchronous(o clusterOptions) clusterOptions {
	o.mode, o.rounds = aggregator.Sync, true
	if o.flow == (retransmit.Config{}) {
		o.flow = hasty
	}
	return o
}

// lagging is harsh with very late copies that come some rounds late.
var lagging = Faults{Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.05, LateDelay: 100}

// TestReduce checks that every worker gets the true sums of every round, bit for
// bit, whatever the network does.
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
		{"memory, faults, small window", memFabric, clusterOptions{workers: 2, stripes: 1, faults: lagging, flow: retransmit.Config{Size: 8, MaxRTO: 50 * time.Millisecond}}, 15},
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
		if s.Results != want || s.Refusals.Total() != 0 || s.Malformed != 0 {
			t.Errorf("worker %d: %d results of %d, %+v", i, s.Results, want, s)
		}
		if testing.Verbose() {
			t.Logf("worker %d: %+v", i, s)
		}
	}
}

// deafLink loses everything that goes to all senders.
type deafLink struct{ Link }

func (l deafLink) Receive(pkts []Packet) (int, error) {
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

// TestReduceWaitsForLateWorker lets one worker begin long after the others: that
// is no loss.
func TestReduceWaitsForLateWorker(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 3, stripes: 1, flow: retransmit.Config{MinRTO: 20 * time.Millisecond, MaxRTO: 100 * time.Millisecond}})
	c := newCluster(t, memFabric(t, o), o)
	v := vectors(3, 0)
	var wg sync.WaitGroup
	for i, w := range c.workers {
		wg.Go(func() {
			if i == 2 {
				time.Sleep(400 * time.Millisecond)
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
		if s.Hot.SRTT > 200*time.Millisecond {
			t.Errorf("worker %d takes waiting for a round trip: %v", i, s.Hot.SRTT)
		}
	}
}

// TestReduceMissesWorker has one worker of three take part in the first round
// only. The others must say what is missing, and are good for other things.
func TestReduceMissesWorker(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 3, stripes: 1, limit: 300 * time.Millisecond})
	c := newCluster(t, memFabric(t, o), o)
	reduceAll(ctx, t, c.workers, 1)
	var wg sync.WaitGroup
	for i, w := range c.workers[:2] {
		wg.Go(func() {
			v := make([]float32, testSlots)
			var round *RoundError
			var missing *NoResultError
			err := w.Reduce(ctx, v, v)
			if !errors.As(err, &round) || !errors.As(err, &missing) {
				t.Errorf("worker %d: error %v, want a RoundError of a NoResultError", i, err)
				return
			}
			want := RoundError{Parts: 28, Waiting: 28, Round: 1, Err: missing}
			if *round != want || missing.Waited < o.limit {
				t.Errorf("worker %d: %+v, %+v", i, *round, *missing)
			}
			t.Log(err)
			if err := w.Reduce(ctx, v, v); !errors.Is(err, ErrOutOfStep) || !errors.As(err, &missing) {
				t.Errorf("worker %d, next reduce: %v", i, err)
			}
			keys, rows := rowsOf(20)
			if err := w.Pull(ctx, keys, rows); err != nil {
				t.Errorf("worker %d, pull: %v", i, err)
			}
			s, err := w.Stats(ctx)
			if free := len(w.link.(*memLink).free); err != nil || free != linkBuffers {
				t.Errorf("worker %d: %d of %d buffers are free, %v, %+v", i, free, linkBuffers, err, s)
			}
		})
	}
	wg.Wait()
}

// TestReduceSilentAggregator has nobody answer.
func TestReduceSilentAggregator(t *testing.T) {
	w, _ := muteRounds(t, retransmit.Config{Silence: 50 * time.Millisecond})
	v := make([]float32, testSlots)
	err := w.Reduce(deadline(t), v, v)
	var round *RoundError
	var peer *PeerError
	var silent *retransmit.SilentPeerError
	if !errors.As(err, &round) || !errors.As(err, &peer) || !errors.As(err, &silent) {
		t.Fatalf("error %v, want a RoundError of a PeerError of a SilentPeerError", err)
	}
	if round.Parts != 3 || round.Unacked != 3 || round.Done+round.Waiting+round.Unsent != 0 {
		t.Errorf("%+v", *round)
	}
	t.Log(err)
	if err := w.Reduce(deadline(t), v, v); !errors.As(err, &silent) {
		t.Errorf("afterwards: %v", err)
	}
}

// muteRounds is [mute] for a synchronous job of two workers with a negotiated
// scale.
func muteRounds(t testing.TB, flow retransmit.Config) (*Worker, *memLink) {
	network := newMemNet()
	agg := network.open("10.0.0.1:19522")
	w, err := NewWorker(t.Context(), roundsConfig(t, network, flow))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w, agg
}

func roundsConfig(t testing.TB, network *memNet, flow retransmit.Config) WorkerConfig {
	return WorkerConfig{
		Link: network.open("10.0.0.3:19522"), Job: testJob, Sender: 1, Epoch: testEpoch, HotSet: testHotSet(t), Flow: flow, Stripes: wire.MaxStripes,
		Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Workers: 2,
		Aggregator: wire.Endpoint{IP: network.addr("10.0.0.1"), Port: 19522}, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 19522},
	}
}

// TestReduceCancelled gives up: before anything is sent that changes nothing,
// afterwards the worker is out of step.
func TestReduceCancelled(t *testing.T) {
	w, _ := muteRounds(t, retransmit.Config{Silence: time.Hour})
	v := make([]float32, testSlots)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Reduce(ended, v, v); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	for i, want := range []error{context.DeadlineExceeded, ErrOutOfStep} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		err := w.Reduce(ctx, v, v)
		cancel()
		if !errors.Is(err, want) {
			t.Errorf("call %d: error %v, want %v", i, err, want)
		}
	}
}

// TestReduceCallersTakeTurns has several callers wait, give up, and be there at
// the end.
func TestReduceCallersTakeTurns(t *testing.T) {
	w, _ := muteRounds(t, retransmit.Config{Silence: time.Hour})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if i == 0 {
				ctx = t.Context()
			}
			v := make([]float32, testSlots)
			err := w.Reduce(ctx, v, v)
			if !errors.Is(err, ErrClosed) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrOutOfStep) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// TestReduceRefuses checks what is refused before anything is sent.
func TestReduceRefuses(t *testing.T) {
	ctx := deadline(t)
	for _, c := range []struct {
		arithmetic aggregator.Arithmetic
		bad        float32
		outside    bool // the job's range, but finite
	}{
		{aggregator.Exact, float32(math.NaN()), false},
		{aggregator.Exact, 1 << 17, true},
		{aggregator.Fixed, float32(math.Inf(-1)), false},
		{aggregator.Fixed, -1 << 11, true},
		{aggregator.LUT, float32(math.Inf(1)), false},
	} {
		o := synchronous(clusterOptions{workers: 1, arithmetic: c.arithmetic})
		cl := newCluster(t, memFabric(t, o), o)
		w := cl.workers[0]
		v := make([]float32, testSlots)
		v[7] = c.bad
		err := w.Reduce(ctx, v, v)
		var notFinite *packer.NotFiniteError
		var outside *packer.RangeError
		if c.outside && (!errors.As(err, &outside) || outside.Index != 7 || outside.Key != 1002) ||
			!c.outside && (!errors.As(err, &notFinite) || notFinite.Index != 7 || notFinite.Key != 1002) {
			t.Errorf("%v, %v: error %v", c.arithmetic, c.bad, err)
		}
		if err := w.Reduce(ctx, v[:9], v[:9]); err == nil {
			t.Errorf("%v: a part of the vector was taken", c.arithmetic)
		}
		if _, err := w.Push(ctx, []uint64{5, 1000}, v[10:16]); !errors.Is(err, ErrMode) {
			t.Errorf("%v: push of a hot row: %v", c.arithmetic, err)
		}
		if s, err := w.Stats(ctx); err != nil || s.Hot.Sent+s.Cold.Sent != 0 {
			t.Errorf("%v: %d frames were sent, %v", c.arithmetic, s.Hot.Sent+s.Cold.Sent, err)
		}
		v[7] = 1 // it goes on
		if err := w.Reduce(ctx, v, v); err != nil || v[7] != 1 {
			t.Errorf("%v: %v", c.arithmetic, err)
		}
	}
	o := clusterOptions{workers: 1}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	if err := w.Reduce(ctx, nil, nil); !errors.Is(err, ErrMode) {
		t.Errorf("reduce in combine mode: %v", err)
	}
	if _, err := w.NegotiateScale(ctx, nil); !errors.Is(err, ErrMode) {
		t.Errorf("negotiation with exact arithmetic: %v", err)
	}
}

// TestReduceRefused provokes refusals by the aggregator.
func TestReduceRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		tamper func(*WorkerConfig)
		want   wire.Refusal
		says   string
	}{
		{"epoch", func(c *WorkerConfig) { c.Epoch++ }, wire.Refusal{Code: wire.CodeWrongEpoch, Value: testEpoch}, "wrong epoch"},
		{"sender", func(c *WorkerConfig) { c.Sender = 99 }, wire.Refusal{Code: wire.CodeUnknownSender}, "sender 99"},
		{"stripes", func(c *WorkerConfig) { c.Stripes = 1 }, wire.Refusal{Code: wire.CodeLength, Value: 2}, "expects 2"},
		{"not a group", func(c *WorkerConfig) { c.Stripes = 3 }, wire.Refusal{Code: wire.CodeLength, Value: 2}, "expects 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := deadline(t)
			o := synchronous(clusterOptions{workers: 1, stripes: 2, tamper: c.tamper})
			w := newCluster(t, memFabric(t, o), o).workers[0]
			v := make([]float32, testSlots)
			err := w.Reduce(ctx, v, v)
			var round *RoundError
			var peer *PeerError
			var r wire.Refusal
			if !errors.As(err, &round) || !errors.As(err, &peer) || !errors.As(err, &r) || r != c.want || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v\nwant the refusal %v, saying %q", err, c.want, c.says)
			}
			t.Log(err)
			if err := w.Reduce(ctx, v, v); !errors.Is(err, ErrOutOfStep) || !errors.As(err, &r) {
				t.Errorf("next reduce: %v", err)
			}
		})
	}
}

// TestReduceOverflow has the sum of two workers leave the range of exact
// arithmetic: the second one is refused, the first one waits in vain.
func TestReduceOverflow(t *testing.T) {
	ctx := deadline(t)
	o := synchronous(clusterOptions{workers: 2, limit: 300 * time.Millisecond})
	c := newCluster(t, memFabric(t, o), o)
	refused, missing := 0, 0
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, w := range c.workers {
		wg.Go(func() {
			v := make([]float32, testSlots)
			v[250] = 1<<17 - 1
			err := w.Reduce(ctx, v, v)
			mu.Lock()
			defer mu.Unlock()
			var peer *PeerError
			switch {
			case errors.Is(err, wire.Refusal{Code: wire.CodeOverflow}) && errors.As(err, &peer) && peer.Key == 1083:
				refused++
			case errors.As(err, new(*NoResultError)):
				missing++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if refused != 1 || missing != 1 {
		t.Errorf("%d workers were refused, %d missed the other", refused, missing)
	}
}

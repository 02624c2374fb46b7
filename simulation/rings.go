// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/simulation/world"
	ringpkg "github.com/libra-ina/libra/transport/ring"
	"github.com/libra-ina/libra/wire"
)

// RunRings runs a life of a ring in a bubble of testing/synctest, and returns its result. An error
// is a [Violation], or the simulation's own.
func RunRings(in Bubble, o Options) (r RingsResult, err error) {
	Rings.labelled(o, func() { in(func() { r, err = liveRing(o) }) })
	return r, err
}

// ringLife is the life of workers that add long vectors around a ring: each is a program that calls
// a ringpkg.Ring.
type ringLife struct {
	*world.World

	options Options
	plan    plan
	values  int // of a vector
	ops     int
	codec   codec.Config
	workers []*ringed
	results [][]float32 // by operation, as far as they were needed
	rest    [][]float32 // by worker: what codes have cut off until then
	result  RingsResult
}

// ringed is one of the workers.
type ringed struct {
	life    *ringLife
	place   int
	host    *world.Host
	link    *world.Link
	act     *world.Actor // its program, where that does not call the link
	started int          // operations
	ended   bool
	failed  error
}

// ringLimit is how long rings wait for a worker that is dead. All trouble is shorter.
const ringLimit = 5 * time.Second

func liveRing(o Options) (RingsResult, error) {
	s := &ringLife{options: o, plan: newPlan(world.Seed(o.Seed).Stream(streamPlan), o, Rings)}
	rng := o.named("ring")
	workers := 2 + rng.IntN(7)
	s.values, s.ops = 1+rng.IntN(1<<(2+rng.IntN(12))), 2+rng.IntN(12)
	if rng.IntN(2) == 0 {
		s.codec = codec.Config{Bound: 1 + rng.IntN(14), Scale: rng.IntN(5) - 2}
	}
	if o.Cut.Workers > 0 {
		workers = min(workers, max(2, o.Cut.Workers))
	}
	s.ops = max(1, s.ops>>o.Cut.Halves)
	conditions := s.plan.worldConditions()
	conditions.Payload = 600 + rng.IntN(900)
	conditions.Inbox = max(conditions.Inbox, 2)
	s.World = world.New(world.Options{
		Seed: world.Seed(o.Seed), Trace: o.Trace, Life: s, Bound: bound, Conditions: conditions,
	})
	s.Trace("seed %d: %d workers, %d values, %d operations, %+v, %+v\n", o.Seed, workers, s.values, s.ops, s.codec, s.plan)
	s.setUp(workers)
	s.planTrouble()
	s.Run(func() bool { return s.allEnded() && s.Idle() })
	s.checkEnd()
	s.End()
	s.result.Lives, s.result.Workers = 1, workers
	s.result.Steps, s.result.Virtual, s.result.Digest = s.Step(), s.Elapsed(), s.Digest()
	s.result.Traffic, s.result.Short = s.Net.Traffic(), s.Short
	return s.result, violation(o, s.World)
}

// setUp starts the workers.
func (s *ringLife) setUp(workers int) {
	var at []wire.Endpoint
	for i := range workers {
		w := &ringed{life: s, place: i}
		w.host = s.NewHost(fmt.Sprintf("worker %d", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), framePort))
		s.workers, at = append(s.workers, w), append(at, w.host.Endpoint())
		s.rest = append(s.rest, make([]float32, s.values))
	}
	for i, w := range s.workers {
		w.link = s.Open(w.host, w.host.Name(), unwatched{})
		w.act = s.NewActor("program of "+w.host.Name(), w.host)
		cfg := ringpkg.Config{
			Link: w.link, Workers: at, Place: i, Job: job, Epoch: 77, Values: s.values, Codec: s.codec,
			Limit: ringLimit, Look: -1,
		}
		rng := s.options.random(streamCaller + uint64(i+1)<<32)
		w.act.Start(func() {
			w.failed = w.runProgram(cfg, rng)
			w.ended = true
		})
	}
}

// runProgram is a worker's program.
func (w *ringed) runProgram(cfg ringpkg.Config, rng *rand.Rand) error {
	s := w.life
	r, err := ringpkg.New(context.Background(), cfg)
	if err != nil {
		return err
	}
	defer func() {
		stats := r.Stats()
		s.result.Repeats += int(stats.Window.Retransmitted)
		s.result.Duplicates += int(stats.Duplicates)
		_ = r.Close()
	}()
	values := make([]float32, s.values)
	for w.started < s.ops {
		switch rng.IntN(6) {
		case 0: // it computes
			w.act.Sleep("computes", time.Duration(rng.IntN(3000))*time.Microsecond)
		case 1:
			if err := r.Poll(); err != nil {
				return err
			}
		default:
			op := w.started
			w.started++
			s.giveValues(w.place, op, values)
			if err := r.Reduce(values); err != nil {
				return err
			}
			w.compareResults(op, values)
			s.result.Results++
		}
	}
	return nil
}

// giveValues fills a vector with a worker's values of an operation. Some are zero, and some small.
func (s *ringLife) giveValues(worker, op int, values []float32) {
	for i := range values {
		n := valueOf(worker, op, i)
		values[i] = 0
		if n&3 != 0 {
			values[i] = float32(math.Ldexp(float64(n), -16-int(n>>2&15)))
		}
	}
}

// compareResults compares the results of an operation with the reference's, bit for bit.
func (w *ringed) compareResults(op int, values []float32) {
	s := w.life
	for _, other := range s.workers {
		if other.started <= op {
			s.Fail("worker %d has the result of operation %d, which worker %d has not started", w.place, op, other.place)
		}
	}
	for len(s.results) <= op {
		s.results = append(s.results, s.referenceResult(len(s.results)))
	}
	for i, v := range values {
		if want := s.results[op][i]; math.Float32bits(v) != math.Float32bits(want) {
			s.Fail("worker %d: value %d of operation %d is %v, want %v", w.place, i, op, v, want)
			return
		}
	}
}

// referenceResult computes the result of an operation, after those before it.
func (s *ringLife) referenceResult(op int) []float32 {
	n := len(s.workers)
	vectors := make([][]float32, n)
	for w := range vectors {
		vectors[w] = make([]float32, s.values)
		s.giveValues(w, op, vectors[w])
		for i, cut := range s.rest[w] {
			vectors[w][i] += cut
		}
	}
	var c codec.Codec
	if s.codec.Bound != 0 {
		c, _ = codec.New(s.codec) // a ring has made one
	}
	sums := make([]float32, s.values)
	size := codec.Group * ((s.values + codec.Group*n - 1) / (codec.Group * n))
	for begin := 0; begin < s.values; begin += size {
		sum := sums[begin:min(begin+size, s.values)]
		for k := range n {
			w := (begin/size + k) % n
			for i, own := range vectors[w][begin:][:len(sum)] {
				if k == 0 {
					sum[i] = own
				} else {
					sum[i] += own
				}
			}
			if s.codec.Bound == 0 {
				continue
			}
			coded := c.Append(nil, sum)
			decoded := make([]float32, len(sum))
			if err := c.Decode(decoded, coded); err != nil {
				s.Fail("%v", err)
			}
			for i, d := range decoded {
				s.rest[w][begin+i] = sum[i] - d
			}
			copy(sum, decoded)
		}
	}
	return sums
}

func (s *ringLife) allEnded() bool {
	return !slices.ContainsFunc(s.workers, func(w *ringed) bool { return !w.ended })
}

// Collect implements [world.Life]: nothing happens behind the schedule's back.
func (s *ringLife) Collect() {}

// Turned implements [world.Life].
func (s *ringLife) Turned(*world.Host) {}

// Leaves implements [world.Life]. It checks that values go only to workers that are in their
// operation, and may spoil a frame.
func (s *ringLife) Leaves(_, to *world.Host, payload []byte, _ bool) {
	h, err := wire.ParseHeader(payload)
	if err != nil || h.Type != wire.TypeBlock || to == nil {
		return
	}
	b, _, err := wire.ParseBlock(payload)
	if err != nil {
		s.Fail("worker %d sends a malformed BLOCK: %v", h.Sender, err)
		return
	}
	at := slices.IndexFunc(s.workers, func(w *ringed) bool { return w.host == to })
	if started := s.workers[at].started; b.Count > 0 && int(b.Operation) > started {
		s.Fail("worker %d sends values of operation %d to worker %d, which has started %d", h.Sender, b.Operation, at, started)
	}
	switch {
	case s.options.fault == spoilsSum && b.Count > 0 && b.Bound == 0 && h.Seq%16 == 15:
		payload[wire.BlockHead+1] ^= 1
	case s.options.fault == staysAbsent && b.Count == 0 && h.Sender == 1:
		b.Operation--
		b.Put(payload)
	}
}

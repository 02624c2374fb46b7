// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// summers are hosts of a job without an optimiser, with some ranks on each.
type summers struct {
	t       *testing.T
	hot     *packer.HotSet
	code    func(keys []uint64, grads []float32) // what the job's codec does to gradients, or nil
	workers []*transport.Worker                  // by host
	ranks   []*agentclient.Client
	pushed  uint64 // gradients, by all ranks in all steps
	dropped int    // steps with a sum that is too large
}

const sumsDim = 4

// startSummers starts a job with the given number of ranks on each host, perhaps with a codec.
func startSummers(t *testing.T, frames bool, coding cluster.Codec, perHost ...int) *summers {
	t.Helper()
	c := newCluster(t, len(perHost))
	c.Data, c.Model.Optimizer, c.Model.LearningRate, c.Model.InitialAccumulator = cluster.Data{}, "none", 0, 0
	c.Codec = coding
	startSwitch(t, c)
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	dir, err := os.MkdirTemp("", "libra-node-*") // the path of a socket is short
	if err := errors.Join(err, c.Write(file)); err != nil {
		t.Fatal(err)
	}
	s := &summers{t: t}
	if s.hot, err = loadHotSet(c, sumsDim); err != nil {
		t.Fatal(err)
	}
	if s.code, err = Coding(c, s.hot); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var processes errgroup.Group
	t.Cleanup(func() {
		stop()
		_ = os.RemoveAll(dir)
	})
	processes.Go(func() error {
		_, err := RunServer(context.Background(), Env{Config: c, Log: testLog(t)})
		return err
	})
	for i, ranks := range perHost {
		socket, ready := filepath.Join(dir, fmt.Sprint(i)), make(chan struct{})
		on := AgentMachine{SumsInFrames: frames, Job: func(j *agent.Job) { s.workers = append(s.workers, j.Worker) }, drop: func() error { return nil }}
		failed := make(chan error, 1)
		processes.Go(func() error {
			err := on.RunAgent(ctx, &cluster.Agent{Socket: socket, Jobs: []cluster.AgentJob{
				{Name: "sums", Cluster: file, Worker: uint16(i + 1), Finish: true},
			}}, testLog(t), func() { close(ready) })
			failed <- err
			return err
		})
		select {
		case <-ready:
		case err := <-failed:
			t.Fatal(err)
		}
		for range ranks {
			client, err := agentclient.Dial(t.Context(), socket, agentproto.Hello{Job: "sums", Parties: uint32(ranks), BufferBytes: 1 << 18})
			if err != nil {
				t.Fatal(err)
			}
			s.ranks = append(s.ranks, client)
		}
	}
	t.Cleanup(func() { // before the directory is removed
		for _, c := range s.ranks {
			_ = c.Close()
		}
		stop()
		if err := processes.Wait(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// batch is what a rank pushes at once.
type batch struct {
	keys     []uint64
	grads    []float32
	prepared bool
}

// received returns the ranks' batches as the job's codec changes them.
func (s *summers) received(ranks [][]batch) [][]batch {
	if s.code == nil {
		return ranks
	}
	all := make([][]batch, len(ranks))
	for i, batches := range ranks {
		for _, b := range batches {
			b.grads = slices.Clone(b.grads)
			s.code(b.keys, b.grads)
			all[i] = append(all[i], b)
		}
	}
	return all
}

// total adds up all ranks' batches in exact arithmetic, and rounds once. It also returns the first
// key whose sum has no float32, if there is one.
func total(ranks [][]batch) (keys []uint64, sums []float32, large *uint64) {
	exact := map[uint64]*[sumsDim]*big.Float{}
	for _, batches := range ranks {
		for _, b := range batches {
			for i, x := range b.grads {
				key := b.keys[i/sumsDim]
				if exact[key] == nil {
					exact[key] = new([sumsDim]*big.Float)
					for col := range exact[key] {
						exact[key][col] = new(big.Float).SetPrec(1000)
					}
				}
				sum := exact[key][i%sumsDim]
				sum.Add(sum, new(big.Float).SetFloat64(float64(x)))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(exact)) {
		zero, row := true, []float32(nil)
		for _, sum := range exact[key] {
			x, _ := sum.Float32()
			if math.IsInf(float64(x), 0) && large == nil {
				large = &key
			}
			zero = zero && sum.Sign() == 0
			row = append(row, x+0) // not -0
		}
		if !zero {
			keys, sums = append(keys, key), append(sums, row...)
		}
	}
	return keys, sums, large
}

// step pushes the ranks' batches, while the hosts' workers wait if they are to add them up, and
// compares the sums that each rank gets with the exact ones.
func (s *summers) step(number uint64, wait bool, ranks [][]batch) (failed error) {
	keys, sums, large := total(s.received(ranks))
	if large != nil {
		s.dropped++
	}
	ctx := s.t.Context()
	var held errgroup.Group
	release := make(chan struct{})
	if wait {
		for _, w := range s.workers {
			holds := make(chan struct{})
			held.Go(func() error {
				return w.Do(ctx, func() {
					close(holds)
					<-release
				})
			})
			<-holds
		}
	}
	handles := make([][]uint64, len(ranks))
	var all errgroup.Group
	for i, batches := range ranks {
		handles[i] = make([]uint64, len(batches))
		for j, b := range batches {
			s.pushed += uint64(len(b.grads))
			if b.prepared && !wait {
				handle, err := s.ranks[i].Prepare(ctx, b.keys)
				if err != nil {
					return err
				}
				handles[i][j] = handle
			}
		}
	}
	var pushed errgroup.Group
	for i, batches := range ranks {
		pushed.Go(func() (err error) {
			for j, b := range batches {
				if handle := handles[i][j]; handle != 0 {
					_, err = s.ranks[i].PushPrepared(ctx, handle, len(b.keys), b.grads)
				} else {
					_, err = s.ranks[i].Push(ctx, b.keys, b.grads)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := pushed.Wait()
	close(release)
	if err := errors.Join(err, held.Wait()); err != nil {
		return err
	}
	for i, c := range s.ranks {
		all.Go(func() error {
			gotKeys, gotSums, err := c.Reduce(ctx, number)
			var why *agentclient.Failed
			switch {
			case large != nil:
				if !errors.As(err, &why) || why.Status != agentproto.Dropped || !why.KeyKnown || why.Key != *large ||
					why.Peer != agentproto.Server || wire.Code(why.Refusal) != wire.CodeOverflow {
					return fmt.Errorf("rank %d: the sum of key %d has no float32, but the answer is %w", i, *large, err)
				}
				return nil
			case err != nil:
				return fmt.Errorf("rank %d: %w", i, err)
			case !slices.Equal(gotKeys, keys):
				return fmt.Errorf("rank %d gets the keys %v, exactly they are %v", i, gotKeys, keys)
			}
			for at, x := range gotSums {
				if math.Float32bits(x) != math.Float32bits(sums[at]) {
					key := keys[at/sumsDim]
					_, isHot := s.hot.Rank(key)
					return fmt.Errorf("rank %d: the sum of key %d (hot: %v), column %d, is %g, exactly it is %g", i, key, isHot, at%sumsDim, x, sums[at])
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// gradients are those of a kind: what a step's ranks push.
var gradients = map[string]func(rng *rand.Rand) float32{
	"ordinary":      func(rng *rand.Rand) float32 { return float32(rng.NormFloat64()) },
	"tiny":          func(rng *rand.Rand) float32 { return float32(rng.NormFloat64() * 1e-9) },
	"of both kinds": func(rng *rand.Rand) float32 { return float32(math.Ldexp(rng.NormFloat64(), rng.IntN(40)-30)) },
	"large":         func(rng *rand.Rand) float32 { return 1000 + float32(rng.IntN(20)) },
	"scaled":        func(rng *rand.Rand) float32 { return float32(rng.NormFloat64() * 65536 * 2) },
	"subnormal":     func(rng *rand.Rand) float32 { return math.Float32frombits(rng.Uint32N(2)<<31 | rng.Uint32N(1<<24)) },
	"of all kinds": func(rng *rand.Rand) float32 {
		return math.Float32frombits(rng.Uint32N(2)<<31 | rng.Uint32N(0x7e000000))
	},
	"up to the most": func(rng *rand.Rand) float32 {
		return math.Float32frombits(rng.Uint32N(2)<<31 | rng.Uint32N(0x7f800000))
	},
	"near ties": func(rng *rand.Rand) float32 {
		return []float32{1, 0x1p-24, -0x1p-24, 0x1p-149, -0x1p-149, 0x1p-70, 0, 1 + 0x1p-23}[rng.IntN(8)]
	},
}

// pushAllKinds takes steps with gradients of each kind. It returns how many gradients hosts have
// added up, and how many frames were refused because a sum was out of range.
func (s *summers) pushAllKinds(seed uint64) (added, refused uint64) {
	rng := rand.New(rand.NewPCG(1, seed))
	number := uint64(0)
	for _, kind := range slices.Sorted(maps.Keys(gradients)) {
		for _, wait := range []bool{false, true} {
			// Few keys, so that rows of several ranks and of one batch meet; half of them
			// are hot.
			keys := func(n int) (keys []uint64) {
				for range n {
					key := rng.Uint64N(9)
					if rng.IntN(2) == 0 {
						key = s.hot.Key(uint32(key))
					} else {
						key += 1 << 40
					}
					keys = append(keys, key)
				}
				return keys
			}
			ranks := make([][]batch, len(s.ranks))
			for i := range ranks {
				batches, rows := 1+rng.IntN(3), 30
				if wait { // as many as hosts add up
					batches, rows = 8, 80
				}
				for range batches {
					b := batch{keys: keys(rows), prepared: rng.IntN(2) == 0}
					for range rows * sumsDim {
						b.grads = append(b.grads, gradients[kind](rng))
					}
					ranks[i] = append(ranks[i], b)
				}
			}
			if err := s.step(number, wait, ranks); err != nil {
				s.t.Fatalf("step %d, gradients %s: %v", number, kind, err)
			}
			number++
		}
	}
	for _, w := range s.workers {
		stats, err := w.Stats(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		added += stats.PairsAdded
		refused += stats.Refusals[wire.CodeOverflow]
	}
	return added, refused
}

// The sums of a job with a codec are exact, too: those of hot rows, wherever they are added, of
// what was pushed, and those of cold rows of what its codes decode to.
func TestSumsOfCodedRowsAreExact(t *testing.T) {
	var added, refused uint64
	for at, perHost := range [][]int{{2, 2}, {4}} {
		t.Run(fmt.Sprint(perHost), func(t *testing.T) {
			a, r := startSummers(t, at%2 == 0, cluster.Codec{Bound: new(8), Scale: 3}, perHost...).pushAllKinds(uint64(at))
			added, refused = added+a, refused+r
		})
	}
	if added == 0 || refused == 0 {
		t.Errorf("hosts have added up %d gradients, and the aggregator has refused %d frames", added, refused)
	}
}

// The sum that every rank gets is the float32 nearest to the exact one, in every bit: of gradients
// from the least subnormal to the largest float32, of hot and cold rows, of 2 to 8 ranks on one
// host or several, whether hosts add them up before they send them or the aggregator refuses their
// sums; in frames and by the service. A sum that has no float32 drops its step for all, with its
// key, and the next step works.
func TestSumsOfAllMagnitudesAreExact(t *testing.T) {
	var added, refused, pushed uint64
	dropped := 0
	for at, perHost := range [][]int{{1, 1}, {3}, {2, 2}, {1, 4}, {3, 2, 1}, {7}, {4, 4}} {
		t.Run(fmt.Sprint(perHost), func(t *testing.T) {
			s := startSummers(t, at%2 == 0, cluster.Codec{}, perHost...)
			a, r := s.pushAllKinds(uint64(at))
			added, refused = added+a, refused+r
			pushed, dropped = pushed+s.pushed, dropped+s.dropped
		})
	}
	t.Logf("of %d gradients, hosts have added up %d; the aggregator has refused %d frames, and %d steps were dropped", pushed, added, refused, dropped)
	if added == 0 || refused == 0 || dropped == 0 {
		t.Error("not all ways were tried")
	}
}

// The first gradient that the job's unit rounds to 0 is told once, with its key and a remedy.
func TestVanishingGradientsAreToldOnce(t *testing.T) {
	var server, host lines
	from, served := agentJob(t, &server)
	j, err := (AgentMachine{}).joinJob(t.Context(), from, host.logger())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []float32{1e-3, 1e-15, 1e-16} {
		ticket, err := j.Worker.Push(t.Context(), []uint64{1 << 40}, []float32{x, 1, x, 1})
		if err == nil {
			err = ticket.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	stats, err := j.Worker.Stats(t.Context())
	if err != nil || stats.Vanished != 4 {
		t.Errorf("%d gradients, %v", stats.Vanished, err)
	}
	text := host.String()
	if strings.Count(text, "rounded to 0") != 1 || !strings.Contains(text, "lower job.exponent") ||
		!strings.Contains(text, fmt.Sprintf("key=%d gradient=1e-15 unit=2^-46", uint64(1)<<40)) {
		t.Errorf("the log has %s", text)
	}
	if err := errors.Join(j.leaveJob(true), <-served.ended); err != nil {
		t.Error(err)
	}
}

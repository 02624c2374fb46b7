// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// TestNegotiateScale checks that all workers learn the right scale of every
// iteration, also in a job that harvests, while they push.
func TestNegotiateScale(t *testing.T) {
	const iterations = 30
	for name, f := range map[string]link.Faults{"": {}, "faults": lagging} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			o := clusterOptions{workers: 3, arithmetic: aggregator.Fixed, exp: -20, rounds: true, stripes: 10, flow: hasty, faults: f}
			c := newCluster(t, memFabric(t, o), o)
			var wg sync.WaitGroup
			for i, w := range c.workers {
				wg.Go(func() {
					for n := range iterations {
						grads := vectors(3, n)
						ticket, err := w.Push(ctx, []uint64{1000}, []float32{0.5, -1, 2})
						if err != nil {
							t.Error(err)
							return
						}
						exp, err := w.NegotiateScale(ctx, grads[i])
						if want := -scaleOf(t, grads).Exp; err != nil || exp != want {
							t.Errorf("worker %d, iteration %d: exponent %v, %v; want %v", i, n, exp, err, want)
							return
						}
						if err := ticket.Wait(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			n, err := c.plane.JobCounters(testJob)
			if err != nil || n.Scales != iterations || n.Applied != 3*iterations {
				t.Errorf("%d scales, %d frames, %v", n.Scales, n.Applied, err)
			}
			bank, err := c.plane.Swap(testJob)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]int64{iterations * 3 << 19, -iterations * 3 << 20, iterations * 3 << 21}, bank.Slots[:3]); diff != "" {
				t.Errorf("sums (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNegotiateScaleFails(t *testing.T) {
	o := clusterOptions{workers: 2, arithmetic: aggregator.Fixed, rounds: true, stripes: 10, limit: 50 * time.Millisecond}
	c := newCluster(t, memFabric(t, o), o)
	w := c.workers[0]
	ctx := deadline(t)
	for _, at := range []int{0, testDim, 10_000} { // the last is beyond the hot vector
		grads := make([]float32, at+1)
		grads[at] = float32(math.NaN())
		var bad *packer.NotFiniteError
		_, err := w.NegotiateScale(ctx, grads)
		if want := map[int]uint64{0: 1000, testDim: 1001}[at]; !errors.As(err, &bad) || bad.Index != at || bad.Key != want {
			t.Errorf("NaN at %d: %v", at, err)
		}
	}
	var round *RoundError
	var missing *NoResultError
	_, err := w.NegotiateScale(ctx, []float32{1})
	if !errors.As(err, &round) || !errors.As(err, &missing) || !round.Scale || round.Waiting != 1 || round.Round != 0 {
		t.Fatalf("error %v, want a RoundError of a NoResultError", err)
	}
	t.Log(err)
	if _, err := w.NegotiateScale(ctx, []float32{1}); !errors.Is(err, ErrOutOfStep) {
		t.Errorf("next: %v", err)
	}
	// A worker's pushes do not depend on others.
	ticket, err := w.Push(ctx, []uint64{1000, 5}, make([]float32, 2*testDim))
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if err != nil {
		t.Error(err)
	}

	// An aggregator without negotiation.
	o = clusterOptions{workers: 1, mode: aggregator.FetchAdd, tamper: func(c *WorkerConfig) { c.Arithmetic, c.Workers = aggregator.Fixed, 1 }}
	w = newCluster(t, memFabric(t, o), o).workers[0]
	if _, err := w.NegotiateScale(ctx, []float32{1}); !errors.As(err, &round) || !errors.Is(err, wire.Refusal{Code: wire.CodeMode}) {
		t.Errorf("exact job: %v", err)
	}
}

// TestPushSumOfIntegers fetches the sums of a job with fixed arithmetic, which saturate.
func TestPushSumOfIntegers(t *testing.T) {
	for _, layout := range []packer.Layout{packer.LaneAligned, packer.Dense} {
		o := clusterOptions{workers: 2, mode: aggregator.FetchAdd, arithmetic: aggregator.Fixed, exp: -4, layout: layout}
		c := newCluster(t, memFabric(t, o), o)
		ctx := deadline(t)
		keys, grads := []uint64{1000, 1199}, []float32{0.5, -0.0625, 0.03125, 1<<27 - 8, -(1<<27 - 8), 0}
		want := [][]float32{
			{0.5, -0.0625, 0.0625, 1<<27 - 8, -(1<<27 - 8), 0},
			{1, -0.125, 0.125, 1 << 27, -(1 << 27), 0}, // the largest, as float32
		}
		for i, w := range c.workers {
			sums := make([]float32, len(grads))
			if err := w.PushSum(ctx, keys, grads, sums); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want[i], sums); diff != "" {
				t.Errorf("%v, worker %d (-want +got):\n%s", layout, i, diff)
			}
		}
		var outside *packer.RangeError
		grads[4] = -(1 << 27)
		if _, err := c.workers[0].Push(ctx, keys, grads); !errors.As(err, &outside) || outside.Index != 4 || outside.Key != 1199 {
			t.Errorf("error %v, want a RangeError at 4", err)
		}
		// In the queue it fails alone.
		bad, err1 := c.workers[0].PushLater(ctx, keys, grads)
		good, err2 := c.workers[0].PushLater(ctx, []uint64{1000}, make([]float32, testDim))
		if err := errors.Join(err1, err2, good.Wait(ctx)); err != nil {
			t.Error(err)
		}
		if err := bad.Wait(ctx); !errors.As(err, &outside) {
			t.Errorf("queued: error %v, want a RangeError", err)
		}
	}
}

// TestLUTPush checks that floats of a lut job are sent unchanged, and that sums are returned so.
func TestLUTPush(t *testing.T) {
	o := clusterOptions{workers: 1, mode: aggregator.FetchAdd, arithmetic: aggregator.LUT}
	w := newCluster(t, memFabric(t, o), o).workers[0]
	grads := []float32{0.1, -3e-30, 3e30}
	sums := make([]float32, testDim)
	if err := w.PushSum(deadline(t), []uint64{1000}, grads, sums); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(grads, sums); diff != "" {
		t.Error(diff)
	}
}

// BenchmarkNegotiateScale measures one negotiation between four workers.
func BenchmarkNegotiateScale(b *testing.B) {
	for name, fabric := range map[string]func(testing.TB, clusterOptions) fabric{"memory": memFabric, "udp": udpFabric} {
		b.Run(name, func(b *testing.B) {
			o := clusterOptions{workers: 4, arithmetic: aggregator.Fixed, rounds: true, stripes: 10}
			c := newCluster(b, fabric(b, o), o)
			grads := make([][]float32, o.workers)
			for i := range grads {
				grads[i] = []float32{1}
			}
			b.ResetTimer()
			errs := make(chan error, o.workers)
			for i, w := range c.workers {
				go func() {
					var err error
					for n := 0; n < b.N && err == nil; n++ {
						_, err = w.NegotiateScale(context.Background(), grads[i])
					}
					errs <- err
				}()
			}
			for range c.workers {
				if err := <-errs; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

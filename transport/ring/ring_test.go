// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// reference computes what a ring computes, block by block. It replaces all vectors by the result,
// and rest by what codes cut off.
func reference(vectors, rest [][]float32, with codec.Config) {
	n, length := len(vectors), len(vectors[0])
	var c codec.Codec
	if with.Bound != 0 {
		var err error
		if c, err = codec.New(with); err != nil {
			panic(err)
		}
	}
	size := (length + 64*n - 1) / (64 * n) * 64
	for b := range n {
		begin := min(b*size, length)
		end := min(begin+size, length)
		sum := make([]float32, end-begin)
		for k := range n {
			w := (b + k) % n
			for i := range sum {
				own := vectors[w][begin+i] + rest[w][begin+i]
				if k > 0 {
					own += sum[i]
				}
				sum[i], rest[w][begin+i] = own, 0
			}
			if with.Bound != 0 {
				decoded := make([]float32, len(sum))
				if err := c.Decode(decoded, c.Append(nil, sum)); err != nil {
					panic(err)
				}
				for i, d := range decoded {
					rest[w][begin+i] = sum[i] - d
				}
				sum = decoded
			}
		}
		for _, v := range vectors {
			copy(v[begin:end], sum)
		}
	}
}

func randomVectors(rng *rand.Rand, workers, values int) (vectors [][]float32) {
	for range workers {
		v := make([]float32, values)
		for i := range v {
			switch rng.IntN(4) {
			case 0:
			case 1:
				v[i] = float32(rng.NormFloat64())
			default:
				v[i] = float32(rng.NormFloat64() * 0.01)
			}
		}
		vectors = append(vectors, v)
	}
	return vectors
}

func cloned(vectors [][]float32) (c [][]float32) {
	for _, v := range vectors {
		c = append(c, slices.Clone(v))
	}
	return c
}

func zeros(workers, values int) (z [][]float32) {
	for range workers {
		z = append(z, make([]float32, values))
	}
	return z
}

// check compares vectors with the reference's, bit for bit.
func check(t *testing.T, got, want [][]float32) {
	t.Helper()
	for w := range got {
		for i, v := range got[w] {
			if math.Float32bits(v) != math.Float32bits(want[w][i]) {
				t.Fatalf("worker %d: value %d is %v, want %v", w, i, v, want[w][i])
			}
		}
	}
}

// operate lets rings reduce random vectors, and compares with the reference.
func operate(t *testing.T, all []*Ring, rng *rand.Rand, operations int) {
	t.Helper()
	values, with := all[0].cfg.Values, all[0].cfg.Codec
	rest := zeros(len(all), values)
	for range operations {
		vectors := randomVectors(rng, len(all), values)
		want := cloned(vectors)
		reference(want, rest, with)
		for w, err := range reduceAll(all, vectors) {
			if err != nil {
				t.Fatalf("worker %d: %v", w, err)
			}
		}
		check(t, vectors, want)
	}
}

// Rings of all sizes have the sums of the reference, with codes and without, bit for bit, and what
// codes cut off is not lost.
func TestSums(t *testing.T) {
	for workers := 2; workers <= 8; workers++ {
		for _, values := range []int{1, 63, 64, 65, 1000, 3000} {
			for _, with := range []codec.Config{{}, {Bound: 10}, {Bound: 6, Scale: -3}} {
				t.Run(fmt.Sprintf("%d workers, %d values, bound %d", workers, values, with.Bound), func(t *testing.T) {
					inBubble(t, func(t *testing.T) {
						rng := rand.New(rand.NewPCG(uint64(workers), uint64(values)))
						all := newNetwork(workers).rings(t, values, func(c *Config) { c.Codec = with })
						defer closeAll(all)
						operate(t, all, rng, 3)
					})
				})
			}
		}
	}
}

// Over many operations, the results and what is left sum up to all that was given.
func TestNothingIsLost(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		all := newNetwork(4).rings(t, 500, func(c *Config) { c.Codec = codec.Config{Bound: 4} })
		defer closeAll(all)
		given, got := make([]float64, 500), make([]float64, 500)
		for range 20 {
			vectors := randomVectors(rng, 4, 500)
			for _, v := range vectors {
				for i, x := range v {
					given[i] += float64(x)
				}
			}
			for _, err := range reduceAll(all, vectors) {
				if err != nil {
					t.Fatal(err)
				}
			}
			for i, x := range vectors[2] {
				got[i] += float64(x)
			}
		}
		for i := range got {
			for _, r := range all {
				got[i] += float64(r.rest[i])
			}
			if math.Abs(got[i]-given[i]) > 1e-4 {
				t.Errorf("value %d: %v were given, %v are there", i, given[i], got[i])
			}
		}
	})
}

// Sums that leave the range of float32 are infinite at all workers, and spoil no later operation.
func TestOverflow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		all := newNetwork(3).rings(t, 10, func(c *Config) { c.Codec = codec.Config{Bound: 10} })
		defer closeAll(all)
		for op, want := range []float32{float32(math.Inf(1)), 3} {
			vectors := zeros(3, 10)
			for _, v := range vectors {
				v[7] = []float32{math.MaxFloat32, 1}[op]
			}
			for _, err := range reduceAll(all, vectors) {
				if err != nil {
					t.Fatal(err)
				}
			}
			for w, v := range vectors {
				if v[7] != want || v[6] != 0 {
					t.Errorf("operation %d, worker %d: %v", op, w, v)
				}
			}
		}
	})
}

// Workers that come at different times wait for each other, and nothing is sent to one that has not
// come.
func TestWorkersWait(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(4)
		in := make([]uint32, 4) // operation that a worker is in
		n.fate = func(_, to int, h wire.Header, payload []byte) (int, time.Duration) {
			if b, _, err := wire.ParseBlock(payload); h.Type == wire.TypeBlock && err == nil && b.Count > 0 && b.Operation > in[to] {
				t.Errorf("values of operation %d for worker %d, which is in %d", b.Operation, to, in[to])
			}
			return 1, 0
		}
		all := n.rings(t, 5000, nil)
		defer closeAll(all)
		vectors := zeros(4, 5000)
		done := make(chan error)
		for i, r := range all {
			go func() {
				for op := range 5 {
					time.Sleep(time.Duration((i+op)%4) * 300 * time.Millisecond)
					n.mu.Lock()
					in[i]++
					n.mu.Unlock()
					vectors[i][4321] = 1
					if err := r.Reduce(vectors[i]); err != nil || vectors[i][4321] != 4 {
						done <- fmt.Errorf("worker %d, operation %d: %v, %w", i, op, vectors[i][4321], err)
						return
					}
				}
				done <- nil
			}()
		}
		for range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// Two ends that one goroutine drives allocate nothing.
func TestNoAllocations(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for _, with := range []codec.Config{{}, {Bound: 10}} {
			n := &direct{}
			all := []*Ring{open(t, n.config(0, with)), open(t, n.config(1, with))}
			vectors := randomVectors(rand.New(rand.NewPCG(1, 1)), 2, directValues)
			drive := func() {
				for i, r := range all {
					r.begin(vectors[i])
				}
				for !all[0].isOver() || !all[1].isOver() {
					for _, r := range all {
						if _, err := r.work(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			drive()
			if allocs := testing.AllocsPerRun(10, drive); allocs > 0 {
				t.Errorf("bound %d: %v allocations", with.Bound, allocs)
			}
		}
	})
}

func TestRefusesValues(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		all := newNetwork(2).rings(t, 3, nil)
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
			var refused *ValueError
			if err := all[0].Reduce([]float32{1, bad, 2}); !errors.As(err, &refused) || refused.Index != 1 {
				t.Errorf("%v: %v", bad, err)
			} else if !strings.Contains(err.Error(), "value 1 is") {
				t.Error(err)
			}
		}
		if err := all[0].Reduce(make([]float32, 4)); !errors.Is(err, ErrUse) {
			t.Error(err)
		}
		operate(t, all, rand.New(rand.NewPCG(1, 1)), 2) // nothing of it remains
		closeAll(all)
		if err := all[0].Reduce(make([]float32, 3)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if err := all[0].Poll(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

// Poll answers a worker that still repeats, without waiting, and so does Close, for a while.
func TestPollAndClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(2)
		all := n.rings(t, 100, nil)
		deaf := true // worker 1 does not get its last ACKs
		n.fate = func(_, to int, h wire.Header, _ []byte) (int, time.Duration) {
			if deaf && to == 1 && h.Type == wire.TypeAck {
				return 0, 0
			}
			return 1, 0
		}
		operate(t, all, rand.New(rand.NewPCG(1, 1)), 1)
		if all[1].window.Outstanding() == 0 {
			t.Fatal("it has the ACKs")
		}
		deaf = false
		for range 1000 {
			time.Sleep(time.Millisecond)
			for _, r := range all {
				if err := r.Poll(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if out := all[1].window.Outstanding(); out != 0 {
			t.Errorf("%d frames are not acknowledged", out)
		}
		deaf = true
		operate(t, all, rand.New(rand.NewPCG(2, 1)), 1)
		began := time.Now()
		closed := make(chan error)
		go func() { closed <- all[1].Close() }()
		synctest.Wait()
		deaf = false
		go func() { closed <- all[0].Poll() }() // once is enough
		if err := errors.Join(<-closed, all[0].Close()); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("closing took %v", took)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

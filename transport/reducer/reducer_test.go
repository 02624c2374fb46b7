// SPDX-License-Identifier: Apache-2.0

package reducer

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

var (
	small      = Shape{Workers: 2, Width: 8, InFlight: 4, Exp: -20}
	smallAcked = Shape{Workers: 2, Width: 8, InFlight: 4, Exp: -20, Acked: true}
)

// Sums are those of all workers, for all shapes, in whichever order the caller waits.
func TestSums(t *testing.T) {
	for _, shape := range []Shape{
		{Workers: 1, Width: 1, InFlight: 1}, {Workers: 2, Width: 8, InFlight: 1}, {Workers: 3, Width: 22, InFlight: 2},
		{Workers: 2, Width: 23, InFlight: 3}, {Workers: 2, Width: 220, InFlight: 256}, {Workers: 64, Width: 44, InFlight: 5},
		{Workers: 1, Width: 1, InFlight: 1, Acked: true}, {Workers: 3, Width: 8, InFlight: 1, Acked: true},
		{Workers: 2, Width: 23, InFlight: 3, Acked: true}, {Workers: 64, Width: 44, InFlight: 5, Acked: true},
		{Workers: 3, Width: 1, InFlight: 256}, {Workers: 2, Width: 1, InFlight: 7}, {Workers: 4, Width: 8, InFlight: 64},
		{Workers: 64, Width: 10, InFlight: 3}, {Workers: 3, Width: 2, InFlight: 16, Acked: true},
		{Workers: 2, Width: 8, InFlight: 2, Acked: true},
	} {
		shape.Exp = -20
		t.Run(fmt.Sprintf("%+v, int32", shape), func(t *testing.T) {
			checkSums(t, shape, func(rng *rand.Rand) int32 { return int32(rng.Uint32()) >> 7 })
		})
		t.Run(fmt.Sprintf("%+v, float32", shape), func(t *testing.T) {
			checkSums(t, shape, func(rng *rand.Rand) float32 { return float32(int32(rng.Uint32())>>13) / (1 << 20) })
		})
	}
}

func checkSums[T Value](t *testing.T, shape Shape, draw func(*rand.Rand) T) {
	all := workers[T](t, newNetwork[T](t, shape, aggregator.Config{}), shape)
	ops := max(2*shape.InFlight, 400/shape.Workers)
	want := make([][]T, ops)
	given := make([][][]T, len(all))
	rng := rand.New(rand.NewPCG(1, 2))
	for op := range want {
		want[op] = make([]T, shape.Width)
		for i := range all {
			values := make([]T, shape.Width)
			for k := range values {
				values[k] = draw(rng)
				want[op][k] += values[k]
			}
			given[i] = append(given[i], values)
		}
	}
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() {
			p := program[T]{r: r, calls: rand.New(rand.NewPCG(3, 4)), own: rand.New(rand.NewPCG(5, uint64(i))), values: given[i], want: want}
			if err := p.run(); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
			if r.Stats().Results != uint64(ops) || r.Stats().Frames > uint64(ops) {
				t.Errorf("worker %d: %+v", i, r.Stats())
			}
		})
	}
	group.Wait()
	c, err := all[0].link.(*host).net.model.JobCounters(jobID)
	frames := all[0].Stats().Frames
	if err != nil || c.Rounds != frames || c.Applied != frames*uint64(len(all)) || c.Refused.Total() != 0 {
		t.Errorf("%+v, %v", c, err)
	}
	if bundled := frames < uint64(ops); bundled != (shape.Bundle() > 1 && shape.InFlight > 1) {
		t.Errorf("%d operations in %d frames", ops, frames)
	}
}

// No worker passes a barrier before all have come to it.
func TestBarrier(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		all := workers[int32](t, newNetwork[int32](t, small, aggregator.Config{}), small)
		if _, err := all[0].Start(make([]int32, small.Width)); err != nil { // and an operation before it
			t.Fatal(err)
		}
		passed := make(chan error)
		go func() { passed <- all[0].Barrier() }()
		for range 3 {
			if err := all[1].link.Wait(1); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-passed:
				t.Fatalf("passed alone: %v", err)
			default:
			}
		}
		if _, err := all[1].Start(make([]int32, small.Width)); err != nil {
			t.Fatal(err)
		}
		if err := all[1].Barrier(); err != nil {
			t.Error(err)
		}
		if err := <-passed; err != nil {
			t.Error(err)
		}
	})
}

// narrow is a link for few and short frames.
type narrow struct {
	*host
	payload, window int
}

func (n narrow) Limits() link.Limits { return link.Limits{MaxPayload: n.payload, Window: n.window} }

// A configuration that cannot work is refused with the field and its value.
func TestBadConfig(t *testing.T) {
	n := newNetwork[int32](t, small, aggregator.Config{})
	for want, change := range map[string]func(*Config){
		"Width is 0;":                        func(c *Config) { c.Shape.Width = 0 },
		"Width is 221;":                      func(c *Config) { c.Shape.Width = 221 },
		"InFlight is 0;":                     func(c *Config) { c.Shape.InFlight = 0 },
		"InFlight is 257;":                   func(c *Config) { c.Shape.InFlight = 257 },
		"sync mode needs the number":         func(c *Config) { c.Shape.Workers = 0 },
		"65 workers":                         func(c *Config) { c.Shape.Workers = 65 },
		"exponent 61 is not in":              func(c *Config) { c.Shape.Exp = 61 },
		"Link is missing":                    func(c *Config) { c.Link = nil },
		"Limit -1ns is negative":             func(c *Config) { c.Limit = -1 },
		"need payloads of 1372 bytes, the":   func(c *Config) { c.Shape.Width, c.Link = 220, narrow{n.hosts[0], 1371, 2} },
		"expect at most 2 frames: use fewer": func(c *Config) { c.Link = narrow{n.hosts[0], 500, 2} },
	} {
		cfg := n.config(0, small)
		change(&cfg)
		if _, err := New[int32](t.Context(), cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	cfg := n.config(0, small)
	cfg.Shape.Width, cfg.Link = 220, narrow{n.hosts[0], 1372, wire.DefaultWindow}
	if _, err := New[int32](t.Context(), cfg); err != nil {
		t.Errorf("payloads that just fit: %v", err)
	}
}

// A call that does not fit says what would, and changes nothing.
func TestWrongCalls(t *testing.T) {
	all := workers[float32](t, newNetwork[float32](t, small, aggregator.Config{}), small)
	r := all[0]
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	refused := func(want string, is error, err error) {
		t.Helper()
		var value *ValueError
		if is != nil && !errors.Is(err, is) || is == nil && !errors.As(err, &value) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	start := func(values ...float32) error {
		_, err := r.Start(append(values, make([]float32, small.Width)...)[:max(len(values), small.Width)])
		return err
	}
	refused("9 values, an operation of this job has 8", ErrUse, start(make([]float32, 9)...))
	refused("value 1 is NaN", nil, start(1, nan))
	refused("value 0 is -Inf", nil, start(inf))
	refused("value 2 is -8.796093e+12", nil, start(0, 0, -(1<<43)))
	refused("operation 0 is not in flight", ErrUse, r.Wait(0, nil))
	for range small.InFlight {
		if err := start(math.Nextafter32(1<<43, 0), 1); err != nil {
			t.Fatal(err)
		}
	}
	refused("4 operations are in flight, as many as this job has: Wait for operation 0 first", ErrUse, start(1))
	refused("4 operations are in flight", ErrUse, r.Barrier())
	refused("room for 7 sums", ErrUse, r.Wait(1, make([]float32, 7)))
	for range small.InFlight {
		if _, err := all[1].Start(make([]float32, small.Width)); err != nil {
			t.Fatal(err)
		}
	}
	sums := make([]float32, small.Width)
	if err := r.Wait(1, sums); err != nil || sums[0] != math.Nextafter32(1<<43, 0) || sums[1] != 1 || sums[2] != 0 {
		t.Errorf("%v, %v", sums, err)
	}
	refused("operation 1 is not in flight: it was not started, or was waited for before", ErrUse, r.Wait(1, sums))
	refused("Wait for operation 0 first", ErrUse, start(1))
	if err := r.Wait(0, nil); err != nil {
		t.Error(err)
	}
	if err := start(2); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{start(1), r.Wait(2, nil), r.Poll(), r.Barrier()} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// A Reducer allocates nothing once it exists.
func TestNoAllocation(t *testing.T) {
	for _, shape := range []Shape{small, smallAcked} {
		checkNoAllocation(t, shape)
	}
}

func checkNoAllocation(t *testing.T, shape Shape) {
	all := workers[float32](t, newNetwork[float32](t, shape, aggregator.Config{}), shape)
	values, sums := make([]float32, small.Width), make([]float32, small.Width)
	step := func() {
		for range small.InFlight {
			for _, r := range all {
				if _, err := r.Queue(values); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 2 { // the first time sends, the second receives
			for _, r := range all {
				if err := r.Poll(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, r := range all {
			for i := range small.InFlight {
				if err := r.Wait(r.next-Op(small.InFlight-i), sums); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := testing.AllocsPerRun(200, step); n != 0 {
		t.Errorf("%+v: %v allocations", shape, n)
	}
}

// Poll takes results without waiting for them.
func TestPoll(t *testing.T) {
	n := newNetwork[int32](t, small, aggregator.Config{})
	all := workers[int32](t, n, small)
	for range small.InFlight {
		startAll(t, all)
	}
	for _, r := range all {
		if err := r.Poll(); err != nil {
			t.Fatal(err)
		}
		if r.Stats().Results != uint64(small.InFlight) || r.first != r.sent {
			t.Errorf("%+v", r.Stats())
		}
	}
}

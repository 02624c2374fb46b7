// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// A worker passes floats on before it has all of their block, in full frames and without gaps, and
// codes when it has all.
func TestPassesOnWhatItHas(t *testing.T) {
	const (
		full  = (wire.DefaultPayload - wire.BlockHead) / 4
		block = 18 * codec.Group
		rest  = block - 3*full
	)
	for name, c := range map[string]struct {
		codec codec.Config
		want  [4]int // values of step 2 that were sent after each of four frames of step 1
	}{
		"floats": {want: [4]int{full, full, 2 * full, block}},
		"codes":  {codec: codec.Config{Bound: 10}, want: [4]int{3: block}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork(4)
				cfg := n.config(1, 4*block)
				cfg.Codec = c.codec
				r := open(t, cfg)
				coder, err := codec.New(codec.Config{Bound: 10})
				if err != nil {
					t.Fatal(err)
				}
				r.begin(make([]float32, r.cfg.Values))
				r.next.op = 1
				for i, f := range []struct{ first, count int }{{0, full}, {2 * full, full}, {full, full}, {3 * full, rest}} {
					values := make([]float32, f.count)
					body := make([]byte, 4*f.count)
					if c.codec.Bound != 0 {
						body = coder.Append(nil, values)
					}
					payload := forge(func(h *wire.Header, b *wire.Block) {
						h.Seq = uint32(i + 1)
						b.First, b.Count, b.Bound = uint32(f.first), uint16(f.count), uint8(c.codec.Bound)
					}, body)
					p := link.Packet{Packet: wire.Packet{Src: n.hosts[0].local, Payload: payload}}
					r.take(&p, r.now())
					if err := r.send(r.now()); err != nil {
						t.Fatal(err)
					}
					sent := [...]int{1: 0, 2: r.at, 3: block}[r.step]
					if sent != c.want[i] {
						t.Errorf("after frame %d: %d values of step 2 were sent, want %d", i, sent, c.want[i])
					}
				}
			})
		})
	}
}

// Lines on which frames are late, as where workers come to their turns late, are busy all the time:
// an operation takes as long as its bytes, and waits for no frame between two steps.
func TestLinesDoNotStandStill(t *testing.T) {
	const (
		rate   = 10e6 / 8 // bytes a second
		values = 64_000
		late   = 10 * time.Millisecond // a third of the time of a block of 8 workers
	)
	for _, workers := range []int{2, 4, 8} {
		inBubble(t, func(t *testing.T) {
			n := newNetwork(workers)
			free := make([]time.Time, workers) // when a worker's line has sent all
			busy := make([]time.Duration, workers)
			n.fate = func(from, _ int, _ wire.Header, payload []byte) (int, time.Duration) {
				takes := time.Duration(float64(len(payload)) / rate * 1e9)
				busy[from] += takes
				if now := time.Now(); free[from].Before(now) {
					free[from] = now
				}
				free[from] = free[from].Add(takes)
				return 1, time.Until(free[from]) + late
			}
			all := n.rings(t, values, nil)
			begun := time.Now()
			operate(t, all, rand.New(rand.NewPCG(1, 1)), 1)
			took := time.Since(begun)
			t.Logf("%d workers: %v, of which the first line is busy for %v", workers, took, busy[0])
			if took > busy[0]+5*late {
				t.Errorf("%d workers take %v for what a line needs %v for", workers, took, busy[0])
			}
			closeAll(all)
		})
	}
}

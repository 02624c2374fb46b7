// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// Random lives of parties: refused gradients, failed and repeated meetings, barriers among reduces,
// deaths. A step with refused gradients is dropped for all, any other one has exactly the sums of
// all pushes of its parties.
func TestRandomLives(t *testing.T) {
	var b *bed
	var mu sync.Mutex
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	source := rand.New(rand.NewPCG(seed, 2))
	pick := func(n int) int { mu.Lock(); defer mu.Unlock(); return source.IntN(n) }
	chance := func(n int) bool { return pick(n) == 0 }
	b = newBed(t, func(c *agent.Config) {
		c.Jobs[0].Reduce = func(ctx context.Context, _ uint64, a agent.Arrival) (sums agent.Sums, err error) {
			if chance(4) {
				return sums, errors.New("no server")
			}
			if a.Refused != nil {
				return sums, errors.Join(b.cluster.Drop(ctx), a.Refused)
			}
			sums.Keys, sums.Rows, err = b.cluster.Reduce(ctx)
			return sums, err
		}
		c.Jobs[0].Barrier = func(ctx context.Context, _ uint64) error {
			if chance(4) {
				return errors.New("no server")
			}
			return b.cluster.Commit(ctx)
		}
	})
	ctx := within(t)
	for life := range 100 {
		parties := 1 + pick(3)
		const steps = 10
		cs := make([]*agentclient.Client, parties)
		bad, barrier := make([][]bool, parties), make([][]bool, parties)
		for i := range cs {
			cs[i] = b.dial(party(uint32(parties)))
			bad[i], barrier[i] = make([]bool, steps), make([]bool, steps)
			for n := range steps {
				bad[i][n], barrier[i][n] = pick(10) == 0, pick(4) == 0
			}
		}
		dies := pick(steps + 3)
		first := cs[0].Welcome().NextStep
		var group sync.WaitGroup
		for i, c := range cs {
			group.Go(func() {
				defer c.Conn().Close()
				for n := range steps {
					key := func(p int) uint64 { return uint64(1000 + 10*(life*100+n) + p) }
					grad := float32(n + 1)
					if bad[i][n] {
						grad = float32(math.NaN())
					}
					_, _ = c.Push(ctx, []uint64{uint64(i), key(i)}, []float32{2, 3, 1, grad})
					if i == 0 && n == dies {
						if chance(2) {
							op := agentproto.Reduce
							if barrier[i][n] {
								op = agentproto.Barrier
							}
							_, _ = c.Submit(ctx, agentproto.Entry{Op: op, Step: first + uint64(n)})
						}
						return
					}
					var keys []uint64
					var sums []float32
					var err error
					for tries := 0; ; tries++ {
						if barrier[i][n] {
							err = c.Barrier(ctx, first+uint64(n))
						} else {
							keys, sums, err = c.Reduce(ctx, first+uint64(n))
						}
						if !errors.Is(err, agentproto.Refused) {
							break
						}
					}
					// refused gradients of parties that reduce, in this step and since their last
					// reduce
					drop := false
					reduces := false
					for p := range parties {
						reduces = reduces || !barrier[p][n]
						for k := n; k >= 0 && !barrier[p][n]; k-- {
							if k < n && !barrier[p][k] {
								break
							}
							drop = drop || bad[p][k]
						}
					}
					switch {
					case errors.Is(err, agentproto.PartyGone):
						return
					case errors.Is(err, agentproto.Dropped) && (n == 0 || drop):
						continue
					case err != nil:
						t.Errorf("life %d step %d: %v", life, n, err)
						return
					case drop:
						t.Errorf("life %d step %d (%d): not dropped", life, n, first+uint64(n))
						return
					}
					if barrier[i][n] {
						continue
					}
					want, wsums := []uint64{}, []float32{}
					for p := range parties {
						if !bad[p][n] {
							want, wsums = append(want, uint64(p)), append(wsums, 2, 3)
						}
					}
					for p := range parties {
						if !bad[p][n] {
							want, wsums = append(want, key(p)), append(wsums, 1, float32(n+1))
						}
					}
					if fmt.Sprint(keys, sums) != fmt.Sprint(want, wsums) {
						t.Errorf("life %d step %d: %v %v, want %v %v", life, n, keys, sums, want, wsums)
						return
					}
				}
			})
		}
		group.Wait()
		b.idle(0)
		if t.Failed() {
			return
		}
	}
}

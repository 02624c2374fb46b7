// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"
	"testing"
)

// A worker counts the gradients that the job's unit rounds to 0, of hot and cold rows, of single,
// grouped, prepared and added pushes, and tells of the first one; a smaller unit is the remedy. A
// job without weights has none.
func TestVanishingGradients(t *testing.T) {
	for name, c := range map[string]struct {
		exp  int
		none bool
		want uint64
	}{"default": {want: 3}, "smaller unit": {exp: -60}, "no weights": {none: true}} {
		t.Run(name, func(t *testing.T) {
			type told struct {
				key      uint64
				gradient float32
			}
			var first []told
			o := clusterOptions{workers: 1, exp: c.exp, tamper: func(cfg *WorkerConfig) {
				cfg.NoWeights = c.none
				cfg.Vanish = func(key uint64, gradient float32) { first = append(first, told{key, gradient}) }
			}}
			cluster := newCluster(t, memFabric(t, o), o)
			w, ctx := cluster.workers[0], deadline(t)
			keys, grads := []uint64{cluster.hot.Key(1), 1 << 50}, slices.Repeat([]float32{0, 0x1p-47, 1, -1}, testDim)[:2*testDim]
			grads[testDim+1] = -1e-15 // of the cold row
			grads[1] = 1e-15
			grads[0] = 1e-16
			pushes := uint64(0)
			wait := func(ticket *Ticket, err error) {
				t.Helper()
				if err == nil {
					err = ticket.Wait(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
				pushes++
			}
			wait(w.Push(ctx, keys, grads))
			prepared, err := w.Prepare(keys)
			if err != nil {
				t.Fatal(err)
			}
			wait(prepared.Push(ctx, grads))
			one, err := w.PushLater(ctx, keys, grads)
			if err != nil {
				t.Fatal(err)
			}
			wait(w.PushLater(ctx, keys, grads))
			wait(one, nil)
			var fed []*fedPush
			for range sumMembers {
				many := slices.Repeat(keys, sumLeast/len(grads)+1)
				fed = append(fed, &fedPush{Request: Request{Keys: many, Values: slices.Repeat(grads, len(many)/2)}})
				pushes += uint64(len(many) / 2)
			}
			if !c.none {
				settleAll(t, w, fed, false)
			} else {
				pushes = 4
			}
			stats, err := w.Stats(ctx)
			if err != nil || stats.Vanished != c.want*pushes || c.want > 0 && stats.PairsAdded == 0 {
				t.Errorf("of %d pushes %d gradients were rounded to 0, %v; added %d", pushes, stats.Vanished, err, stats.PairsAdded)
			}
			want := []told{{keys[0], 1e-16}}
			if c.want == 0 {
				want = nil
			}
			if !slices.Equal(first, want) {
				t.Errorf("told of %v, want %v", first, want)
			}
		})
	}
}

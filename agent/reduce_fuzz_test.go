// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentproto"
)

// FuzzReduce lets a party submit any entries for steps and their sums. Rows that it gets are those
// of the step, nothing is written beyond them, and another client's sums are exact.
func FuzzReduce(f *testing.F) {
	ops := []agentproto.Op{agentproto.Reduce, agentproto.Sums, agentproto.Barrier, agentproto.Flush}
	f.Add([]byte{0, 0, 8, 0, 100, dim, 1, 0, 4, 10, 200, dim})
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 9, 1, 0, 1, dim})
	f.Add([]byte{0, 0, 255, 1, 1, dim, 0, 0, 3, 0, 0, 7})
	const rows = 9
	sums := agent.Sums{Rows: make([]float32, rows*dim)}
	for i := range rows {
		sums.Keys = append(sums.Keys, 1000+uint64(i))
		sums.Rows[i*dim] = 1
	}
	shared := newBed(f, func(c *agent.Config) {
		c.Jobs[0].Barrier = func(context.Context, uint64) error { return nil }
		c.Jobs[0].Reduce = func(context.Context, uint64, agent.Arrival) (agent.Sums, error) { return sums, nil }
	})
	f.Fuzz(func(t *testing.T, text []byte) {
		text = text[:min(len(text), 6*32)] // an input that takes a second counts as hung
		b := *shared
		b.t = t
		b.idle(0) // else the last input's party is still a member
		other := b.dial()
		keys, grads := ownBatch(0)
		if _, err := other.Push(within(t), keys, grads); err != nil {
			t.Fatal(err)
		}
		c := b.dial(party(1))
		step := c.Welcome().NextStep
		for ; len(text) >= 6 && c.Memory().EndCode.Load() == 0; text = text[6:] {
			e := agentproto.Entry{
				Op: ops[int(text[0])%len(ops)], Step: uint64(text[1]), N: uint32(text[2]), Keys: 8 * uint64(text[3]), Values: 8 * uint64(text[4]), Dim: uint32(text[5]),
			}
			switch e.Op {
			case agentproto.Reduce, agentproto.Barrier:
				e.Step += step
			}
			area := c.Memory().Words(0, 64<<10/8)
			clear(area)
			ticket, err := c.Submit(within(t), e)
			if err != nil {
				break // it was ended
			}
			got, err := c.Wait(within(t), ticket)
			if err != nil {
				break
			}
			if got.Status != agentproto.OK {
				e.N = 0
			} else if e.Op == agentproto.Reduce || e.Op == agentproto.Barrier {
				step++
			}
			given := 0
			for i := range e.N {
				if key := c.Memory().Keys(e.Keys, int(e.N))[i]; key >= 1000 && key < 1000+rows {
					given++
				}
			}
			if given > rows {
				t.Errorf("%+v: %d rows of %d", e, given, rows)
			}
			end := max(e.Keys/8+uint64(e.N), (e.Values+4*uint64(e.N*e.Dim)+7)/8)
			for i, word := range area {
				if word != 0 && (uint64(i) >= end || uint64(i) < min(e.Keys, e.Values)/8) {
					t.Fatalf("%+v: word %d is written", e, i)
				}
			}
		}
		if err := other.Flush(within(t)); err != nil {
			t.Fatal(err)
		}
		b.expect(1, keys, grads)
		b.check()
	})
}

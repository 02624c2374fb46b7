// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// All workers learn the largest exponent of every iteration, although reports and
// answers are lost, late and repeated.
func TestScalesOverLossyNetwork(t *testing.T) {
	const iterations, maxSteps = 20, 100_000
	for _, workers := range []int{1, 2, 5, aggregator.MaxWorkers} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(workers), 1))
			m, err := aggregator.NewModel(aggregator.Config{})
			if err != nil {
				t.Fatal(err)
			}
			job := aggregator.JobConfig{ID: 5, Arithmetic: aggregator.Fixed, Exp: -20, Workers: workers, Slots: 1}
			if err := m.AddJob(job); err != nil {
				t.Fatal(err)
			}
			exponents := make([][]uint8, iterations) // by iteration and worker
			largest := make([]uint8, iterations)
			for i := range exponents {
				exponents[i] = make([]uint8, workers)
				for w := range exponents[i] {
					exponents[i][w] = uint8(rng.IntN(wire.InfiniteExponent))
					largest[i] = max(largest[i], exponents[i][w])
				}
			}
			for w := range workers {
				if err := m.AddSender(job.ID, aggregator.SenderConfig{ID: uint16(w), IP: conformance.Host(w).IP, Port: 1}); err != nil {
					t.Fatal(err)
				}
			}
			at := make([]uint32, workers)
			receive := func(worker int, answer []byte) {
				h, err := wire.ParseHeader(answer)
				if err != nil || h.Type != wire.TypeAck || h.Flags&wire.FlagScale == 0 {
					t.Fatalf("a report was answered with %x (%v)", answer, err)
				}
				if h.Flags&wire.FlagSum == 0 || rng.IntN(3) == 0 { // others are missing, or lost
					return
				}
				r, err := wire.ParseScale(answer)
				if err != nil {
					t.Fatal(err)
				}
				if h.Flags&wire.FlagAll != 0 && h.Seq != r.Iteration {
					t.Fatalf("number %d, iteration %d", h.Seq, r.Iteration)
				}
				if r.Exponent != largest[r.Iteration] {
					t.Fatalf("iteration %d: exponent %d, want %d", r.Iteration, r.Exponent, largest[r.Iteration])
				}
				if r.Iteration == at[worker] {
					at[worker]++
				}
			}
			reply := make([]byte, aggregator.MaxReplyPayload)
			left := workers
			for steps := 0; left > 0; steps++ {
				if steps == maxSteps {
					t.Fatalf("not done after %d steps: %d", steps, at)
				}
				w := rng.IntN(workers)
				if at[w] == iterations {
					continue
				}
				h := wire.Header{Job: job.ID, Sender: uint16(w), Seq: at[w] + 1}
				report := wire.PutScale(make([]byte, wire.ScaleLen), h, wire.ScaleReport{Iteration: at[w], Exponent: exponents[at[w]][w]})
				v, n := m.ProcessPayload(netip.AddrPortFrom(conformance.Host(w).IP, 1), report, reply)
				if v.Action == aggregator.Broadcast {
					for i := range workers {
						receive(i, reply[:n])
					}
				} else {
					receive(w, reply[:n])
				}
				left = 0
				for _, i := range at {
					if i < iterations {
						left++
					}
				}
			}
			c, err := m.JobCounters(job.ID)
			if err != nil || c.Scales != iterations || c.Refused.Total() != 0 {
				t.Errorf("counters are %+v (%v)", c, err)
			}
		})
	}
}

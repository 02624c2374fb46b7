// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// BenchmarkSteps measures the cost of a pair through an agent, in CPU time: batches of 4,096 and 32
// pairs of 2^20 keys by a Zipf distribution with exponent 1.1, of which 30,000 are hot. The
// hand-over is the round trip of an empty FLUSH, of client and agent together, per pair of a batch.
func BenchmarkSteps(b *testing.B) {
	const rows, several = 30_000, 16
	key := func(rank uint64) uint64 { return rank * 0x9e3779b97f4a7c15 }
	ranked := make([]uint64, rows)
	for r := range ranked {
		ranked[r] = key(uint64(r))
	}
	hot, err := packer.NewHotSet(1, ranked, nil, packer.Meta{})
	if err != nil {
		b.Fatal(err)
	}
	p, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Dense, Stripes: wire.DefaultStripes})
	if err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(shortDir(b), "agent.sock")
	agentProcess := startAgent(b, socket).Process.Pid
	c, err := agentclient.Dial(b.Context(), socket, agentproto.Hello{Job: jobName})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.1, 1, 1<<20-1)
	for _, n := range []int{4096, 32} {
		unprepared, prepared := make([]packer.Part, several), make([]packer.Part, several)
		for i := range unprepared {
			keys, grads := make([]uint64, n), make([]float32, n)
			for j := range keys {
				keys[j], grads[j] = key(zipf.Uint64()), rng.Float32()-0.5
			}
			unprepared[i] = packer.Part{Keys: keys, Grads: grads}
			prepared[i].Grads = grads
			if prepared[i].Prepared, err = p.Prepare(keys); err != nil {
				b.Fatal(err)
			}
		}
		shared, floats := c.Memory().Keys(0, n), c.Memory().Floats(uint64(8*n), n)
		var keys []uint64
		var values []float32
		numbers := packer.FloatsBelow(63 + ps.DefaultExp)
		step := func(name string, pairs int, do func(i int) error) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				before := cpuTimeOf(b, agentProcess)
				for i := 0; b.Loop(); i++ {
					if err := do(i % several); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(cpuTimeOf(b, agentProcess)-before)/float64(b.N*pairs), "cpu-ns/pair")
			})
		}
		step("copy in, by the client", n, func(i int) error {
			copy(shared, unprepared[i].Keys)
			copy(floats, unprepared[i].Grads)
			return nil
		})
		step("copy out, by the agent", n, func(int) error {
			keys, values = append(keys[:0], shared...), append(values[:0], floats...)
			return nil
		})
		step("range", n, func(i int) error {
			if numbers.Check(unprepared[i].Grads) >= 0 {
				return packer.ErrShape
			}
			return nil
		})
		step("look-up", n, func(i int) error { return p.Begin(unprepared[i].Keys, unprepared[i].Grads) })
		step("addition of 16 prepared", n*several, func(int) error {
			_, err := p.BeginSum(ps.DefaultExp, prepared)
			return err
		})
		step("hand-over", n, func(int) error { return c.Flush(context.Background()) })
	}
}

// cpuTimeOf returns the CPU time of this process and another one in nanoseconds.
func cpuTimeOf(b *testing.B, pid int) (sum int64) {
	b.Helper()
	for _, clock := range []int32{unix.CLOCK_PROCESS_CPUTIME_ID, int32(^pid<<3 | 2)} { // as clock_getcpuclockid(3) computes them
		var t unix.Timespec
		if err := unix.ClockGettime(clock, &t); err != nil {
			b.Fatal(err)
		}
		sum += t.Nano()
	}
	return sum
}

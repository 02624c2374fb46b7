// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/transport"
)

// BenchmarkPush compares pushes through an agent in another process with those of a worker in this
// process, over UDP, with 16 in flight.
func BenchmarkPush(b *testing.B) {
	ctx := context.Background()
	for _, n := range []int{32, 4096} {
		keys, grads := batch(1, n)
		b.Run(fmt.Sprintf("agent/%d", n), func(b *testing.B) {
			socket := filepath.Join(shortDir(b), "agent.sock")
			startAgent(b, socket)
			c, err := agentclient.Dial(ctx, socket, agentproto.Hello{Job: jobName})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			b.ReportAllocs()
			var waiting []uint64
			for b.Loop() {
				ticket, err := c.Push(ctx, keys, grads)
				if err != nil {
					b.Fatal(err)
				}
				if waiting = append(waiting, ticket); len(waiting) == 16 {
					if _, err := c.Wait(ctx, waiting[0]); err != nil {
						b.Fatal(err)
					}
					waiting = append(waiting[:0], waiting[1:]...)
				}
			}
			if err := c.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			stats, err := c.Stats(ctx)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(stats[8])/float64(stats[0]), "wakes-sent/op")
			b.ReportMetric(float64(stats[9])/float64(stats[0]), "wakes-got/op")
			b.ReportMetric(float64(stats[10])/float64(stats[0]), "frames/op")
		})
		b.Run(fmt.Sprintf("in process/%d", n), func(b *testing.B) {
			w := newBed(b).cluster.Worker(0)
			b.ReportAllocs()
			var waiting []*transport.Ticket
			for b.Loop() {
				ticket, err := w.PushLater(ctx, keys, grads)
				if err != nil {
					b.Fatal(err)
				}
				if waiting = append(waiting, ticket); len(waiting) == 16 {
					if err := waiting[0].Wait(ctx); err != nil {
						b.Fatal(err)
					}
					waiting = append(waiting[:0], waiting[1:]...)
				}
			}
			if err := w.Flush(ctx); err != nil {
				b.Fatal(err)
			}
			stats, err := w.Stats(ctx)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(stats.Hot.Sent+stats.Cold.Sent)/float64(b.N), "frames/op")
		})
	}
}

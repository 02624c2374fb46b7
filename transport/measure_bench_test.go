// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// BenchmarkServerFrame is a server's time for a frame of one row, with batches of 64. As workers
// ask, the frames that are drawn by default and every sixteenth are answered, in all cases; with
// all, each is: answers do not count as telemetry's cost. Undrawn is a sample of which hardly a
// frame is drawn.
func BenchmarkServerFrame(b *testing.B) {
	for _, c := range []struct {
		name   string
		sample int
		all    bool
	}{
		{"off", 0, false}, {"undrawn", 1 << 16, false}, {"sampled", telemetry.DefaultSample, false},
		{"off/all", 0, true}, {"drawn/all", 1, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, from := measuredServer(b, c.sample)
			s.cfg.Handler = noHandler{}
			h := wire.Header{Type: wire.TypeCold, Job: testJob, Sender: 5, Epoch: testServerEpoch}
			payload := cold(h, testDim, 1)
			pkts := make([]link.Packet, endpoint.Batch)
			for i := range pkts {
				pkts[i] = packet(from, payload)
			}
			draw := telemetry.NewDraw(telemetry.DefaultSample)
			for n := 0; b.Loop(); n++ {
				if n%endpoint.Batch != 0 {
					continue
				}
				for i := range pkts {
					p := &pkts[i]
					p.Payload, p.Reply = append(p.Payload[:0], payload...), 0
					h.Seq++
					if h.Flags = wire.FlagQuiet; c.all || h.Seq%askEvery == 0 || draw.Draws(h.Seq) {
						h.Flags = wire.FlagCover
					}
					h.Put(p.Payload)
				}
				if err := s.handleBatch(pkts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// noHandler takes rows and keeps nothing.
type noHandler struct{ Handler }

func (noHandler) Accumulate(wire.Rows) error { return nil }

// BenchmarkWorkerFrame is a worker's time for a frame, from the call to the answer, with a network
// without cost whose peer answers each frame.
func BenchmarkWorkerFrame(b *testing.B) {
	for _, sample := range []int{0, 1 << 16, telemetry.DefaultSample, 1} {
		b.Run(fmt.Sprint("sample=", sample), func(b *testing.B) {
			network := newMemNet()
			w, err := makeWorker(b.Context(), WorkerConfig{
				Link: newAckLink(), Dim: testDim, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 1}, Sample: sample,
			})
			if err != nil {
				b.Fatal(err)
			}
			keys := make([]uint64, endpoint.Batch*wire.ColdCap(w.link.Limits().MaxPayload, testDim))
			values := make([]float32, len(keys)*testDim)
			for n := 0; b.Loop(); n++ {
				if n%endpoint.Batch != 0 {
					continue
				}
				next := &operation{keys: keys, values: values, queued: true}
				w.pushes = append(w.pushes, next)
				for !next.sealed || next.outstanding > 0 {
					if _, err := w.turn(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkTelemetry pushes batches over UDP sockets of this machine, without telemetry and with
// the default sample: repeat it in turns to compare.
func BenchmarkTelemetry(b *testing.B) {
	for _, rows := range []int{32, 4096} {
		for _, sample := range []int{0, telemetry.DefaultSample} {
			b.Run(fmt.Sprintf("rows=%d/sample=%d", rows, sample), func(b *testing.B) {
				o := clusterOptions{workers: 1, sample: sample, layout: packer.Dense}
				c := newCluster(b, udpFabric(b, o), o)
				keys, grads := batch(rand.New(rand.NewPCG(1, 2)), rows)
				var tickets []*Ticket
				ctx := deadline(b)
				for b.Loop() {
					ticket, err := c.workers[0].Push(ctx, keys, grads)
					if err != nil {
						b.Fatal(err)
					}
					if tickets = append(tickets, ticket); len(tickets) < 8 {
						continue
					}
					if err := tickets[0].Wait(ctx); err != nil {
						b.Fatal(err)
					}
					tickets = tickets[1:]
				}
				for _, t := range tickets {
					if err := t.Wait(ctx); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

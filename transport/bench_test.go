// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// ackLink is a link whose peer acknowledges every frame at once, and numbers the requested rows:
// what remains is the worker's own cost.
type ackLink struct {
	memLink
	acks [][]byte
	src  []wire.Endpoint
	n    int
}

func newAckLink() *ackLink {
	l := &ackLink{acks: slab(linkBuffers), src: make([]wire.Endpoint, linkBuffers)}
	l.memLink = *newMemNet().open("10.0.0.3:19522")
	return l
}

func (l *ackLink) Send(frames []link.Frame) (int, error) {
	for _, f := range frames {
		h, err := wire.ParseHeader(l.bufs[f.Buf])
		if err != nil {
			return 0, err
		}
		l.acks[l.n] = wire.PutAck(l.acks[l.n], h)
		if h.Type == wire.TypeFind {
			if l.acks[l.n], err = numbered(l.acks[l.n], h, l.bufs[f.Buf][:f.Len]); err != nil {
				return 0, err
			}
		}
		l.src[l.n] = f.To.To()
		l.n++
	}
	return len(frames), nil
}

// ascending has the numbers from 1 on, more than fit a frame.
var ascending = func() (numbers [1 << 10]uint32) {
	for i := range numbers {
		numbers[i] = uint32(i + 1)
	}
	return numbers
}()

// numbered answers a FIND with numbers from 1 on.
func numbered(answer []byte, h wire.Header, find []byte) ([]byte, error) {
	asked, err := wire.ParseRows(find, wire.TypeFind)
	if err != nil {
		return nil, err
	}
	h.Type = wire.TypeFound
	answer = answer[:wire.FoundLen(asked.Count)]
	h.Put(answer)
	found := wire.PutNumbered(answer, h.Type, asked.Count, asked.Dim, 1)
	found.SetNumbers(ascending[:asked.Count])
	return answer, nil
}

func (l *ackLink) Receive(pkts []link.Packet) (int, error) {
	n := min(l.n, len(pkts))
	for i := range n {
		l.n--
		pkts[i] = link.Packet{Packet: wire.Packet{Src: l.src[l.n], Payload: l.acks[l.n]}}
	}
	return n, nil
}

func (l *ackLink) Wait(limit time.Duration) error {
	if l.n > 0 {
		return nil
	}
	return l.memLink.Wait(limit)
}

// BenchmarkPush measures a push of 100,000 rows from the call to the last acknowledgement, with a
// network without cost.
func BenchmarkPush(b *testing.B) {
	const rows = 100_000
	keys := make([]uint64, 20_000)
	for i := range keys {
		keys[i] = uint64(i) * 7919
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		layout packer.Layout
		hot    *packer.HotSet
		share  float64 // of hot rows

		prepared bool
	}{
		{"hot/aligned", packer.LaneAligned, hot, 1, false},
		{"hot/aligned/prepared", packer.LaneAligned, hot, 1, true},
		{"hot/dense", packer.Dense, hot, 1, false},
		{"hot/dense/prepared", packer.Dense, hot, 1, true},
		{"mixed/dense", packer.Dense, hot, 0.6, false},
		{"mixed/dense/prepared", packer.Dense, hot, 0.6, true},
		{"cold", packer.Dense, nil, 0, false},
		{"cold/prepared", packer.Dense, nil, 0, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			batch := make([]uint64, rows)
			for i := range batch {
				batch[i] = keys[rng.IntN(len(keys))]
				if rng.Float64() >= c.share {
					batch[i] = 1<<40 + rng.Uint64N(1<<20)
				}
			}
			grads := make([]float32, rows)
			network := newMemNet()
			w, err := NewWorker(b.Context(), WorkerConfig{
				Link: newAckLink(), HotSet: c.hot, Dim: 1, Layout: c.layout, Stripes: wire.DefaultStripes,
				Aggregator: wire.Endpoint{IP: network.addr("10.0.0.1"), Port: 1}, Server: wire.Endpoint{IP: network.addr("10.0.0.2"), Port: 1},
			})
			if err != nil {
				b.Fatal(err)
			}
			defer w.Close()
			ctx := context.Background()
			prepared, err := w.Prepare(batch)
			if err != nil {
				b.Fatal(err)
			}
			push := func() {
				var t *Ticket
				var err error
				if c.prepared {
					t, err = prepared.Push(ctx, grads)
				} else {
					t, err = w.Push(ctx, batch, grads)
				}
				if err == nil {
					err = t.Wait(ctx)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			push() // grows the scratch memory
			b.ReportAllocs()
			for b.Loop() {
				push()
			}
			s, err := w.Stats(ctx)
			if err != nil {
				b.Fatal(err)
			}
			frames := float64(s.Hot.Sent+s.Cold.Sent) / float64(b.N+1)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/pair")
			b.ReportMetric(frames, "frames/op")
		})
	}
}

// benchmarkLinks measures pushes of 100,000 hot rows by one worker over a real fabric, from the
// call to the last acknowledgement. Two pushes are in flight at any time.
func benchmarkLinks(b *testing.B, f fabric) {
	const rows = 100_000
	o := clusterOptions{workers: 1, layout: packer.Dense}
	w := newCluster(b, f, o).workers[0]
	rng := rand.New(rand.NewPCG(1, 1))
	keys, grads := make([]uint64, rows), make([]float32, rows*testDim)
	for i := range keys {
		keys[i] = 1000 + rng.Uint64N(testHot)
	}
	ctx := context.Background()
	var last *Ticket
	push := func() {
		t, err := w.Push(ctx, keys, grads)
		if err == nil && last != nil {
			err = last.Wait(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
		last = t
	}
	push()
	b.ReportAllocs()
	for b.Loop() {
		push()
	}
	if err := last.Wait(ctx); err != nil {
		b.Fatal(err)
	}
	s, err := w.Stats(ctx)
	if err != nil {
		b.Fatal(err)
	}
	frames := float64(s.Hot.Sent) / float64(b.N+1)
	seconds := b.Elapsed().Seconds()
	b.ReportMetric(seconds*1e9/float64(b.N)/rows/testDim, "ns/pair")
	b.ReportMetric(frames*float64(b.N)/seconds/1e6, "Mframes/s")
	b.ReportMetric(float64(s.Hot.Retransmitted)/float64(b.N+1), "retx/op")
}

// BenchmarkReduce measures rounds of a hot vector of 30,000 values between four
// workers in one process, together with the aggregator's work.
func BenchmarkReduce(b *testing.B) {
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT, aggregator.Fixed} {
		b.Run(arithmetic.String(), func(b *testing.B) {
			o := reduceOptions(b, arithmetic)
			benchmarkReduce(b, memFabric(b, o), o)
		})
	}
}

func BenchmarkReduceUDP(b *testing.B) {
	o := reduceOptions(b, aggregator.Fixed)
	benchmarkReduce(b, udpFabric(b, o), o)
}

func reduceOptions(b *testing.B, arithmetic aggregator.Arithmetic) clusterOptions {
	keys := make([]uint64, 10_000)
	for i := range keys {
		keys[i] = uint64(i)
	}
	hot, err := packer.NewHotSet(testDim, keys, nil, packer.Meta{})
	if err != nil {
		b.Fatal(err)
	}
	return synchronous(clusterOptions{workers: 4, hot: hot, stripes: wire.DefaultStripes, arithmetic: arithmetic})
}

func benchmarkReduce(b *testing.B, f fabric, o clusterOptions) {
	workers := newCluster(b, f, o).workers
	ctx := context.Background()
	reduce := func(n int) {
		var wg sync.WaitGroup
		for _, w := range workers {
			wg.Go(func() {
				v := make([]float32, o.hot.Slots())
				for range n {
					if err := w.Reduce(ctx, v, v); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	reduce(10)
	b.ReportAllocs()
	b.ResetTimer()
	reduce(b.N)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(o.hot.Slots()), "ns/value")
	var repeated, asked uint64
	for _, w := range workers {
		s, err := w.Stats(ctx)
		if err != nil {
			b.Fatal(err)
		}
		repeated += s.Hot.Retransmitted
		asked += s.Waits.Retransmitted
	}
	b.ReportMetric(float64(repeated)/float64(b.N), "retx/op")
	b.ReportMetric(float64(asked)/float64(b.N), "asks/op")
}

func BenchmarkUDP(b *testing.B) { benchmarkLinks(b, udpFabric(b, clusterOptions{})) }

// TestPushAllocatesNothingPerFrame compares a push of one frame with one of many: allocations must
// belong to the call, not the frames.
func TestPushAllocatesNothingPerFrame(t *testing.T) {
	l := newAckLink()
	w, err := NewWorker(t.Context(), WorkerConfig{Link: l, Dim: 1, Server: wire.Endpoint{IP: l.local.IP, Port: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	allocs := func(rows int, prepared bool) float64 {
		keys, grads := make([]uint64, rows), make([]float32, rows)
		p, err := w.Prepare(keys)
		if err != nil {
			t.Fatal(err)
		}
		return testing.AllocsPerRun(5, func() {
			var ticket *Ticket
			var err error
			if prepared {
				ticket, err = p.Push(t.Context(), grads)
			} else {
				ticket, err = w.Push(t.Context(), keys, grads)
			}
			if err == nil {
				err = ticket.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, prepared := range []bool{false, true} {
		few, many := allocs(100, prepared), allocs(60_000, prepared) // 1 and 496 frames
		if many > few+2 {
			t.Errorf("prepared: %v: a push of 1 frame allocates %.0f times, one of 496 frames %.0f times", prepared, few, many)
		}
	}
}

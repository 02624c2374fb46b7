// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/ps"
)

// fullBank is a data plane whose banks are always full.
type fullBank struct {
	*aggregator.Model
	bank    aggregator.Bank
	cleared []int64 // what Clear zeroes in place of the bank
	applied uint64
}

func (p *fullBank) JobCounters(uint16) (aggregator.JobCounters, error) {
	p.applied++ // so that no harvest finds nothing new
	return aggregator.JobCounters{Applied: p.applied}, nil
}

func (p *fullBank) Swap(uint16) (*aggregator.Bank, error) {
	p.bank.Frames = 1
	return &p.bank, nil
}

func (p *fullBank) Clear(bank *aggregator.Bank) error {
	bank.All(func(first int, slots []int64) bool {
		clear(p.cleared[first : first+len(slots)])
		return true
	})
	return nil
}

// BenchmarkHarvest takes harvests of 65,536 slots, of which all, or a quarter, hold a sum; of 30,000; and
// of 2^22 of which 10,000 do, from the switch daemon over a loopback connection into the server's
// store, and commits them. It reports nanoseconds of CPU a sum, and microseconds a harvest.
func BenchmarkHarvest(b *testing.B) {
	for _, c := range []struct{ slots, part int }{{aggregator.PageSlots, 1}, {aggregator.PageSlots, 4}, {30_000, 1}, {1 << 22, 420}} {
		for _, apply := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d slots, one in %d/apply=%v", c.slots, c.part, apply), func(b *testing.B) {
				benchmarkHarvest(b, c.slots, c.part, apply)
			})
		}
	}
}

func benchmarkHarvest(b *testing.B, slots, part int, apply bool) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		b.Fatal(err)
	}
	plane := &fullBank{Model: model, bank: aggregator.Bank{Job: 5, Slots: make([]int64, slots)}, cleared: make([]int64, slots)}
	if n := (aggregator.JobConfig{Slots: slots}).Blocks(); n > 0 {
		plane.bank.Touched = make([]uint8, n)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	sums := 0
	for i := range plane.bank.Slots {
		if rng.IntN(part) == 0 {
			plane.bank.Slots[i] = rng.Int64N(1<<46) + 1
			sums++
			if plane.bank.Touched != nil {
				plane.bank.Touched[i/aggregator.BlockSlots] = 1
			}
		}
	}
	log := slog.New(slog.DiscardHandler)
	service := control.NewAggregator(ctx, control.AggregatorConfig{Plane: plane, Slots: max(slots, aggregator.PageSlots), Stripes: 10, Dense: true, Log: log})
	defer service.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := access.NewServer(access.Security{})
	pb.RegisterAggregatorServer(server, service)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := access.Dial(ctx, access.TheSwitch(), netip.MustParseAddrPort(listener.Addr().String()), access.Security{}, time.Minute, log)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	job, err := control.CreateJob(ctx, pb.NewAggregatorClient(conn), &pb.JobSpec{
		Job: 5, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Exponent: proto.Int32(fixedpoint.DefaultExp), Slots: uint32(slots), HotSet: []byte("x"),
	}, time.Minute, log)
	if err == nil {
		err = job.Hold(ctx, func(error) {})
	}
	if err != nil {
		b.Fatal(err)
	}
	store, err := ps.New(ps.Config{Dim: 1, Exp: fixedpoint.DefaultExp})
	if err != nil {
		b.Fatal(err)
	}
	hot := make([]uint64, slots)
	for i := range hot {
		hot[i] = rng.Uint64()
	}
	harvester := control.NewHarvester(job, func(h *control.Harvest) error {
		if !apply {
			return nil
		}
		_, err := store.ApplyHarvest(ps.Harvest{Number: h.Number, Ranks: h.Ranks, Sums: h.Sums}, hot)
		store.Commit()
		return err
	}, log)
	go func() { _ = harvester.Run(ctx) }()
	start := cpuTime(b)
	for b.Loop() {
		if err := harvester.Now(ctx); err != nil {
			b.Fatal(err)
		}
	}
	took := float64(cpuTime(b)-start) / float64(b.N)
	b.ReportMetric(took/float64(sums), "cpu-ns/sum")
	b.ReportMetric(took/1e3, "cpu-us/harvest")
}

// cpuTime returns the nanoseconds that this process has run, in the kernel too.
func cpuTime(b *testing.B) int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}

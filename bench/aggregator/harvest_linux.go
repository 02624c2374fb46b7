// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// heldBank is a data plane whose bank holds the same sums at each harvest.
type heldBank struct {
	*aggregator.Model
	bank    aggregator.Bank
	cleared []int64 // what Clear zeroes in place of the bank
	frames  uint64
}

func (p *heldBank) JobCounters(uint16) (aggregator.JobCounters, error) {
	p.frames++ // so that no harvest finds nothing new
	return aggregator.JobCounters{Applied: p.frames}, nil
}

func (p *heldBank) Swap(uint16) (*aggregator.Bank, error) {
	p.bank.Frames = 1
	return &p.bank, nil
}

func (p *heldBank) Clear(bank *aggregator.Bank) error {
	bank.All(func(first int, slots []int64) bool {
		clear(p.cleared[first:][:len(slots)])
		return true
	})
	return nil
}

// fill gives the bank sums in the slots that a number of updates of all keys have reached, and
// returns how many these are.
func (p *heldBank) fill(d *zipf.Distribution, updates float64, rng *rand.Rand) (sums int) {
	clear(p.bank.Slots)
	clear(p.bank.Touched)
	for i := range p.bank.Slots {
		if rng.Float64() < 1-math.Exp(-updates*(d.Share(i+1)-d.Share(i))) {
			p.put(i, rng)
			sums++
		}
	}
	return sums
}

// put gives a slot of the bank a sum.
func (p *heldBank) put(slot int, rng *rand.Rand) {
	p.bank.Slots[slot] = rng.Int64N(1<<46) + 1
	if p.bank.Touched != nil {
		p.bank.Touched[slot/aggregator.BlockSlots] = 1
	}
}

// harvests takes harvests from an aggregator's control service, over a loopback connection, into the store of a
// server.
type harvests struct {
	plane     *heldBank
	harvester *control.Harvester
	close     func()
}

// newHarvests starts harvests of a job whose slots are the hottest keys of a store.
func newHarvests(ctx context.Context, hot int, store *ps.Store) (_ *harvests, err error) {
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		return nil, err
	}
	job := aggregator.JobConfig{Slots: hot}
	bank := aggregator.Bank{Job: jobID, Slots: make([]int64, hot)}
	plane := &heldBank{Model: model, bank: bank, cleared: make([]int64, hot)}
	if n := job.Blocks(); n > 0 {
		plane.bank.Touched = make([]uint8, n)
	}
	ctx, cancel := context.WithCancel(ctx)
	log := slog.New(slog.DiscardHandler)
	service := control.NewAggregator(ctx, control.AggregatorConfig{
		Plane: plane, Slots: max(hot, aggregator.PageSlots), Stripes: wire.DefaultStripes, Dense: true, Log: log,
	})
	server := access.NewServer(access.Security{})
	end := func() {
		cancel()
		server.Stop()
		service.Close()
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	pb.RegisterAggregatorServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = server.Serve(listener) }() // ends with Stop, for which it has no error
	conn, err := access.Dial(ctx, access.TheSwitch(), netip.MustParseAddrPort(listener.Addr().String()),
		access.Security{}, time.Minute, log)
	if err != nil {
		return nil, err
	}
	owned, err := control.CreateJob(ctx, pb.NewAggregatorClient(conn), &pb.JobSpec{
		Job: jobID, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Exponent: proto.Int32(fixedpoint.DefaultExp), Slots: uint32(hot), HotSet: []byte("hot"),
	}, time.Minute, log)
	if err == nil {
		err = owned.Hold(ctx, func(error) {})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	keys := make([]uint64, hot)
	for i := range keys {
		keys[i] = keyOf(i)
	}
	harvester := control.NewHarvester(owned, func(h *control.Harvest) error {
		_, err := store.ApplyHarvest(ps.Harvest{Instance: uint64(hot), Number: h.Number, Ranks: h.Ranks, Sums: h.Sums}, keys)
		store.Commit()
		return err
	}, log)
	go func() { _ = harvester.Run(ctx) }() // harvests fail once it has ended
	return &harvests{plane, harvester, func() {
		end()
		_ = conn.Close()
	}}, nil
}

// Close ends the harvests.
func (h *harvests) Close() error {
	h.close()
	return nil
}

// harvestsEach is how many harvests a measurement has.
const harvestsEach = 3

// measure returns the CPU time of a harvest in nanoseconds, from the slots to the weights, with what the kernel
// does for the connection. One before makes the store look the hot rows up.
func (h *harvests) measure(ctx context.Context) (float64, error) {
	if err := h.harvester.Now(ctx); err != nil {
		return 0, err
	}
	before, err := sys.OwnUsage()
	if err != nil {
		return 0, err
	}
	for range harvestsEach {
		if err := h.harvester.Now(ctx); err != nil {
			return 0, err
		}
	}
	after, err := sys.OwnUsage()
	return float64(after.User+after.Kernel-before.User-before.Kernel) / harvestsEach, err
}

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
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
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
	empty   atomic.Bool // nothing has been pushed yet
}

// newHeldBank returns a plane whose bank has a number of slots and no sums.
func newHeldBank(hot int) (*heldBank, error) {
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		return nil, err
	}
	p := &heldBank{Model: model, bank: aggregator.Bank{Job: jobID, Slots: make([]int64, hot)}, cleared: make([]int64, hot)}
	job := aggregator.JobConfig{Slots: hot}
	if n := job.Blocks(); n > 0 {
		p.bank.Touched = make([]uint8, n)
	}
	return p, nil
}

func (p *heldBank) JobCounters(uint16) (aggregator.JobCounters, error) {
	if p.empty.Load() {
		return aggregator.JobCounters{}, nil
	}
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

// serve serves the control service of a switch with the plane on a loopback address. Jobs of other
// services may be children of the plane's.
func (p *heldBank) serve(ctx context.Context, log *slog.Logger) (at netip.AddrPort, end func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return at, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	service := control.NewAggregator(ctx, control.AggregatorConfig{
		Plane: p, Slots: max(len(p.bank.Slots), aggregator.PageSlots), Stripes: wire.DefaultStripes, Dense: true, Log: log,
		Dial: func(ctx context.Context, at netip.AddrPort) (*grpc.ClientConn, error) {
			return dialSwitch(ctx, at, log)
		},
	})
	server := access.NewServer(access.Security{})
	pb.RegisterAggregatorServer(server, service)
	go func() { _ = server.Serve(listener) }() // ends with Stop, for which it has no error
	return netip.MustParseAddrPort(listener.Addr().String()), func() {
		cancel()
		server.Stop()
		service.Close()
	}, nil
}

func dialSwitch(ctx context.Context, at netip.AddrPort, log *slog.Logger) (*grpc.ClientConn, error) {
	return access.Dial(ctx, access.TheSwitch(), at, access.Security{}, time.Minute, log)
}

// ownJob creates the job of a number of slots at a service, and holds it until ctx ends.
func ownJob(ctx context.Context, at netip.AddrPort, hot int, log *slog.Logger) (*control.Owned, *grpc.ClientConn,
	error) {
	conn, err := dialSwitch(ctx, at, log)
	if err != nil {
		return nil, nil, err
	}
	owned, err := control.CreateJob(ctx, pb.NewAggregatorClient(conn), &pb.JobSpec{
		Job: jobID, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Exponent: proto.Int32(fixedpoint.DefaultExp), Slots: uint32(hot), HotSet: []byte("hot"),
	}, time.Minute, log)
	if err == nil {
		err = owned.Hold(ctx, func(error) {})
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return owned, conn, nil
}

// hotKeys returns the hottest keys of a store.
func hotKeys(hot int) []uint64 {
	keys := make([]uint64, hot)
	for i := range keys {
		keys[i] = keyOf(i)
	}
	return keys
}

// harvests takes harvests from an aggregator's control service, over a loopback connection, into
// the store of a server.
type harvests struct {
	plane     *heldBank
	harvester *control.Harvester
	close     func()
}

// newHarvests starts harvests of a job whose slots are the hottest keys of a store.
func newHarvests(ctx context.Context, hot int, store *ps.Store) (*harvests, error) {
	plane, err := newHeldBank(hot)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	at, end, err := plane.serve(ctx, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	owned, conn, err := ownJob(ctx, at, hot, log)
	if err != nil {
		cancel()
		end()
		return nil, err
	}
	keys := hotKeys(hot)
	harvester := control.NewHarvester(owned, func(h *control.Harvest) error {
		_, err := store.ApplyHarvest(ps.Harvest{Instance: uint64(hot), Number: h.Number, Ranks: h.Ranks, Sums: h.Sums}, keys)
		store.Commit()
		return err
	}, log)
	go func() { _ = harvester.Run(ctx) }() // harvests fail once it has ended
	return &harvests{plane, harvester, func() {
		cancel()
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

// measure returns the CPU time of a harvest in nanoseconds, from the slots to the weights, with
// what the kernel does for the connection. One before makes the store look the hot rows up.
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

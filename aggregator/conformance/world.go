// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Aggregator is the aggregator's endpoint in all frames of a [Generator].
var Aggregator = wire.Endpoint{
	MAC: [6]byte{2, 0x4c, 0x42, 0, 0, 0xfe}, IP: netip.AddrFrom4([4]byte{10, 76, 66, 254}), Port: wire.DefaultPort,
}

// Route is the port of a host.
type Route struct {
	Host wire.Endpoint
	Port int
}

// Routes are the routes for tests of forwarding: sender 2 is not behind the other senders' port.
var Routes = []Route{{Host(0), 0}, {Host(1), 0}, {Host(2), 1}}

// Host returns the endpoint of host i < 250. Hosts 0 to Senders-1 are senders.
func Host(i int) wire.Endpoint {
	return wire.Endpoint{
		MAC:  [6]byte{2, 0x4c, 0x42, 0, 0, byte(i + 1)},
		IP:   netip.AddrFrom4([4]byte{10, 76, 66, byte(i + 1)}),
		Port: wire.DefaultPort,
	}
}

// Senders is the number of senders of every job.
const Senders = 3

// Jobs are the jobs that Setup starts: each mode with each arithmetic, few and many slots, pages
// and stripes, every set of layouts, coarse and fine units, whole and partial last groups. No two
// have the same epoch, so that none accepts frames of another.
var Jobs = []aggregator.JobConfig{
	{ID: 0, Epoch: 0, Mode: aggregator.Combine, Exp: -46, Slots: 1000},
	{ID: 3, Epoch: 7, Mode: aggregator.FetchAdd, Exp: -46, Slots: aggregator.PageSlots},
	{ID: 7, Epoch: 65535, Mode: aggregator.Combine, Exp: 0, Slots: 220, MaxStripes: 1, Layouts: aggregator.Aligned},
	{ID: 100, Epoch: 1, Mode: aggregator.FetchAdd, Slots: 37, MaxStripes: 4, Layouts: aggregator.Dense, Exp: -60},
	{ID: 255, Epoch: 300, Mode: aggregator.FetchAdd, Slots: 30000, Exp: 20},
	{ID: 10, Epoch: 1000, Mode: aggregator.Combine, Arithmetic: aggregator.LUT, Slots: 700},
	{ID: 11, Epoch: 2000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.LUT, Slots: 100, MaxStripes: 3},
	{ID: 12, Epoch: 3000, Mode: aggregator.Combine, Arithmetic: aggregator.Fixed, Slots: 900},
	{ID: 13, Epoch: 4000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Workers: Senders, Slots: 100,
		MaxStripes: 5},
	{ID: 14, Epoch: 5000, Mode: aggregator.Sync, Exp: -46, Workers: Senders, Slots: 3*220 + 115},
	{ID: 15, Epoch: 6000, Mode: aggregator.Sync, Arithmetic: aggregator.LUT, Workers: Senders, Slots: 100, MaxStripes: 2},
	{ID: 200, Epoch: 7000, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Workers: Senders, Slots: 44,
		MaxStripes: 1},
	{ID: 240, Epoch: 8000, Mode: aggregator.FetchAdd, Exp: -46, Slots: 2000, MaxStripes: wire.MaxStripes},
	{ID: 241, Epoch: 9000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.LUT, Slots: 600, MaxStripes: wire.MaxStripes},
	{ID: 242, Epoch: 10_000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Slots: 560, MaxStripes: 24},
	{ID: 243, Epoch: 11_000, Mode: aggregator.Sync, Exp: -46, Workers: Senders, Slots: 2*550 + 240,
		MaxStripes: wire.MaxStripes},
	{ID: 16, Epoch: 16_000, Mode: aggregator.Acked, Exp: -46, Workers: Senders, Slots: 2*220 + 115},
	{ID: 17, Epoch: 17_000, Mode: aggregator.Acked, Arithmetic: aggregator.LUT, Workers: Senders, Slots: 100,
		MaxStripes: 2},
	{ID: 18, Epoch: 18_000, Mode: aggregator.Acked, Arithmetic: aggregator.Fixed, Workers: Senders, Slots: 44,
		MaxStripes: 1},
	{ID: 244, Epoch: 19_000, Mode: aggregator.Acked, Exp: -46, Workers: Senders, Slots: 2*550 + 240,
		MaxStripes: wire.MaxStripes},
	{ID: 50, Epoch: 12_000, Mode: aggregator.FetchAdd, Exp: -46, Slots: 2*aggregator.PageSlots + 1000},
	{ID: 51, Epoch: 13_000, Mode: aggregator.Combine, Exp: -46, Slots: aggregator.PageSlots + 1,
		MaxStripes: wire.MaxStripes},
	{ID: 52, Epoch: 14_000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.LUT, Slots: 2 * aggregator.PageSlots,
		MaxStripes: 3},
	{ID: 53, Epoch: 15_000, Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed, Slots: aggregator.PageSlots + 500},
}

// Setup starts jobs, or without any all [Jobs], and admits all senders as a new [Generator]
// expects.
func Setup(p aggregator.Plane, jobs ...aggregator.JobConfig) error {
	g := NewGenerator(0, jobs...)
	for k := range g.jobs {
		if err := g.Start(p, k); err != nil {
			return err
		}
	}
	return nil
}

// StartJob starts a job and admits the senders of all Jobs, with the job's epoch.
func StartJob(p aggregator.Plane, j aggregator.JobConfig) error {
	if err := p.AddJob(j); err != nil {
		return err
	}
	for i := range Senders {
		s := Sender(i)
		s.Epoch = j.Epoch
		if err := p.AddSender(j.ID, s); err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

// Start starts one of Jobs, by its index, and admits its senders as the generator expects.
func (g *Generator) Start(p aggregator.Plane, k int) error {
	if err := p.AddJob(g.jobs[k]); err != nil {
		return err
	}
	for _, s := range g.senders[k] {
		if err := p.AddSender(g.jobs[k].ID, s); err != nil {
			return err
		}
	}
	return nil
}

// Sender returns the configuration of sender i < Senders for a job of epoch 0.
func Sender(i int) aggregator.SenderConfig {
	h := Host(i)
	return aggregator.SenderConfig{ID: senderID(i), MAC: h.MAC, IP: h.IP}
}

func senderID(i int) uint16 { return [Senders]uint16{1, 21845, 65535}[i] }

// Repair gives an untagged IPv4 frame the lengths and checksums of its size and payload, so that a
// fuzzer gets past these checks. It does not change other frames.
func Repair(frame []byte) {
	if len(frame) < wire.EnvelopeLen || frame[12] != 0x08 || frame[13] != 0 {
		return
	}
	src := wire.Endpoint{
		MAC: [6]byte(frame[6:12]), IP: netip.AddrFrom4([4]byte(frame[26:30])),
		Port: uint16(frame[34])<<8 | uint16(frame[35]),
	}
	dst := wire.Endpoint{
		MAC: [6]byte(frame[0:6]), IP: netip.AddrFrom4([4]byte(frame[30:34])),
		Port: uint16(frame[36])<<8 | uint16(frame[37]),
	}
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		panic(err) // both addresses are IPv4
	}
	e.Seal(frame)
}

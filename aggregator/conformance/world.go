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

// Routed is a host that frames are forwarded to, if the test adds a route.
var Routed = Host(2)

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

// Jobs are the jobs that Setup starts: each mode, few and many slots, every
// set of layouts, coarse and fine units.
var Jobs = []aggregator.JobConfig{
	{ID: 0, Epoch: 0, Mode: aggregator.Combine, Slots: aggregator.MaxSlots},
	{ID: 3, Epoch: 7, Mode: aggregator.FetchAdd, Slots: 1000},
	{ID: 7, Epoch: 65535, Mode: aggregator.Combine, Slots: 220, MaxStripes: 1, Layouts: aggregator.Aligned},
	{ID: 100, Epoch: 1, Mode: aggregator.FetchAdd, Slots: 37, MaxStripes: 4, Layouts: aggregator.Dense, Exp: -60},
	{ID: 255, Epoch: 300, Mode: aggregator.FetchAdd, Slots: 30000, Exp: 20},
}

// Setup starts all jobs and admits all senders.
func Setup(p aggregator.Plane) error {
	for _, j := range Jobs {
		if err := StartJob(p, j); err != nil {
			return err
		}
	}
	return nil
}

// StartJob starts one of Jobs and admits its senders.
func StartJob(p aggregator.Plane, j aggregator.JobConfig) error {
	if err := p.AddJob(j); err != nil {
		return err
	}
	for i := range Senders {
		if err := p.AddSender(j.ID, sender(i)); err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

// sender returns how sender i is admitted.
func sender(i int) aggregator.SenderConfig {
	h := Host(i)
	return aggregator.SenderConfig{ID: senderID(i), MAC: h.MAC, IP: h.IP}
}

func senderID(i int) uint16 { return uint16(i * 21845) }

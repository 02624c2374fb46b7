package aggregator

import (
	"net/netip"

	"github.com/libra-ina/libra/wire"
)

// jobID is the first job's id.
const jobID = 1

// aggregatorEnd is the aggregator in test runs.
var aggregatorEnd = endpoint(254)

// loopback is where links over UDP are opened.
var loopback = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)

// endpoint returns the end of the aggregator or, from 0 on, of a worker.
func endpoint(i int) wire.Endpoint {
	return wire.Endpoint{
		MAC: [6]byte{2, 0x4c, 0x42, 0, 1, byte(i)}, IP: netip.AddrFrom4([4]byte{10, 76, 67, byte(i)}), Port: wire.DefaultPort,
	}
}

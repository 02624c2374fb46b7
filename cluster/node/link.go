// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// openLink opens the link of a worker or a server. A worker's link has the configured faults, in
// both directions; together the workers' links carry all traffic, so faults at the server would
// count twice.
func openLink(env Env, h cluster.Host, faulty bool) (link.Link, error) {
	c := env.Config
	l, err := openBackend(env, h)
	if err != nil || !faulty || !c.Faults.Any() {
		return l, err
	}
	f := link.Faults{Drop: c.Faults.Loss, Duplicate: c.Faults.Duplicate, Reorder: c.Faults.Reorder,
		Seed: faultSeed(c.Faults.Seed, h.Address)}
	wrapped, err := link.WithFaults(l, f)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return wrapped, nil
}

// faultSeed gives every worker its own faults, the same ones in every run.
func faultSeed(seed uint64, worker netip.Addr) uint64 {
	for _, b := range worker.AsSlice() {
		seed = seed*31 + uint64(b)
	}
	return seed
}

func openBackend(env Env, h cluster.Host) (link.Link, error) {
	c := env.Config
	local := netip.AddrPortFrom(h.Address, c.Port)
	if env.Machine.Link != nil {
		return env.Machine.Link(local)
	}
	if c.Backend == cluster.BackendUDP {
		return link.OpenUDP(local)
	}
	if c.MTU() > wire.DefaultMTU {
		if err := checkMTU(h.Interface, c.Switch.Stripes); err != nil {
			return nil, err
		}
	}
	return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Queue: h.Queue, Local: local, MTU: c.MTU(),
		Sample: c.Telemetry.OneIn(), Log: env.Log})
}

// checkMTU refuses an interface that would lose frames of the cluster's hosts.
func checkMTU(name string, stripes int) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil // its user reports the missing interface
	}
	if need := wire.HotMTU(stripes); ifi.MTU < need {
		return fmt.Errorf("interface %s has an MTU of %d, and frames of %d stripes (switch.stripes) need %d: raise it on all ports and hosts (ip link set dev %s mtu %d), or lower switch.stripes to %d",
			name, ifi.MTU, stripes, need, name, need, max(1, (ifi.MTU-wire.HotMTU(0))/wire.StripeLen))
	}
	return nil
}

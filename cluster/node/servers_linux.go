// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/neigh"
)

// resolveLimit is how long server 0 waits at its start for the Ethernet address of each other
// server or switch. A host that is up answers at once.
const resolveLimit = time.Second

// otherServers returns the Ethernet addresses of the servers from index 1 on. Frames to a host that
// does not answer go through the switch's bridge.
func (s *server) otherServers(ctx context.Context) (macs [][]byte) {
	c := s.env.Config
	if c.Backend != cluster.BackendAFXDP {
		return nil
	}
	for i, other := range c.AllServers()[1:] {
		macs = append(macs, s.resolveHost(ctx, fmt.Sprintf("server %d", i+1), other.Address)...)
	}
	return macs
}

// otherSwitches returns the Ethernet addresses of the switches that may have shares, but for one:
// any of them may get one when the plan changes.
func (s *server) otherSwitches(ctx context.Context, except netip.Addr) (macs [][]byte) {
	c := s.env.Config
	if c.Backend != cluster.BackendAFXDP {
		return nil
	}
	for i, other := range c.Switches {
		if !other.Plain && other.Address != except {
			macs = append(macs, s.resolveHost(ctx, fmt.Sprintf("switches[%d]", i), other.Address)...)
		}
	}
	return macs
}

// resolveHost returns the Ethernet address of a host, if that answers.
func (s *server) resolveHost(ctx context.Context, name string, at netip.Addr) [][]byte {
	limited, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	hop, err := neigh.Resolve(limited, s.env.Config.Server.Interface, at)
	if err != nil {
		s.env.Log.Warn("frames of another host go through the bridges of switches", "host", name, "error", err)
		return nil
	}
	return [][]byte{hop.MAC[:]}
}

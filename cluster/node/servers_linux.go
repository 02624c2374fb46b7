// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/neigh"
)

// resolveLimit is how long server 0 waits at its start for the Ethernet address of each other
// server. A host that is up answers at once.
const resolveLimit = time.Second

// otherServers returns the Ethernet addresses of the servers from index 1 on. Frames to a host that
// does not answer go through the switch's bridge.
func (s *server) otherServers(ctx context.Context) (macs [][]byte) {
	c := s.env.Config
	if c.Backend != cluster.BackendAFXDP {
		return nil
	}
	for i, other := range c.AllServers()[1:] {
		limited, cancel := context.WithTimeout(ctx, resolveLimit)
		hop, err := neigh.Resolve(limited, c.Server.Interface, other.Address)
		cancel()
		if err != nil {
			s.env.Log.Warn("frames of another server go through the switch's bridge", "index", i+1, "error", err)
			continue
		}
		macs = append(macs, hop.MAC[:])
	}
	return macs
}

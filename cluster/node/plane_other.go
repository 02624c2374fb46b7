// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/libra-ina/libra/cluster"
)

// hostMemory returns 0: it is not known.
func hostMemory() uint64 { return 0 }

func openXDPPlane(*cluster.Config, *slog.Logger) (plane, error) {
	return plane{}, errors.New("the XDP aggregator needs Linux; use the udp backend")
}

// otherServers returns none: without AF_XDP, the switch does not forward frames.
func (s *server) otherServers(context.Context) [][]byte { return nil }

func (s *server) otherSwitches(context.Context, netip.Addr) [][]byte { return nil }

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/packer"
)

// leaveLimit is how long a process waits at its end for an answer.
const leaveLimit = 2 * time.Second

// join admits a worker. If its admission ends before it leaves, cancel is called
// with the reason.
func join(ctx context.Context, cancel context.CancelCauseFunc, env Env, self cluster.Worker, hot *packer.HotSet) (*control.Membership, error) {
	c := env.Config
	cfg, err := joinConfig(c, self, hot)
	if err != nil {
		return nil, err
	}
	if cfg.Security, err = control.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
		return nil, err
	}
	cfg.Limit, cfg.Dial, cfg.Lost, cfg.Log = startLimit, env.Machine.Client, cancel, env.Log
	return control.Join(ctx, cfg)
}

// joinConfig returns what the services are told of a worker, and where they are.
func joinConfig(c *cluster.Config, self cluster.Worker, hot *packer.HotSet) (cfg control.JoinConfig, err error) {
	fingerprint := hot.Fingerprint()
	cfg = control.JoinConfig{
		Job: c.Job.ID, Worker: self.ID, From: netip.AddrPortFrom(self.Address, c.Port), HotSet: fingerprint[:],
		Server: c.Server.Control, Aggregator: c.Switch.Control,
	}
	if cfg.Agree, err = agreement(c); err != nil {
		return cfg, err
	}
	cfg.MAC, err = frameMAC(c, self.Host)
	return cfg, err
}

// frameMAC returns the Ethernet address of a host's frames, nil over UDP sockets.
func frameMAC(c *cluster.Config, h cluster.Host) ([]byte, error) {
	if c.Backend != cluster.BackendAFXDP {
		return nil, nil
	}
	i, err := net.InterfaceByName(h.Interface)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", h.Interface, err)
	}
	if len(i.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s has no Ethernet address", h.Interface)
	}
	return i.HardwareAddr, nil
}

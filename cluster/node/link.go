// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

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

// openWorkerLink opens the link of a worker that sends hot frames.
func openWorkerLink(env Env, h cluster.Host) (link.Link, error) {
	if c := env.Config; c.Backend != cluster.BackendUDP && env.Machine.Link == nil {
		if err := checkMTU(h.Interface, c.Switch.Stripes); err != nil {
			return nil, err
		}
	}
	return openLink(env, h, true)
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
	if c.MTU() > wire.DefaultMTU { // others may send such frames, whatever this host sends
		if err := checkMTU(h.Interface, c.Switch.Stripes); err != nil {
			return nil, err
		}
	}
	return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Queue: h.Queue, Local: local, MTU: c.MTU(),
		Sample: c.Telemetry.OneIn(), Log: env.Log})
}

// linkAgain is how long to wait between two attempts to open an interface.
const linkAgain = 100 * time.Millisecond

// awaitInterface calls open, which opens a link or ports, until it succeeds. While an MTU is too
// small it is called again, for up to startLimit, and the reason logged. Again means that the
// process had what it opens before: then it waits for whatever has changed since.
func awaitInterface[T any](ctx context.Context, log *slog.Logger, again bool, open func() (T, error)) (T, error) {
	said := ""
	for begun := time.Now(); ; {
		opened, err := open()
		mayPass := again || errors.As(err, new(lowMTU))
		if err == nil || !mayPass || time.Since(begun) > startLimit {
			return opened, err
		}
		if text := err.Error(); text != said {
			said = text
			log.Warn("waiting for the network interface", "at_most", startLimit, "error", err)
		}
		select {
		case <-ctx.Done():
			return opened, context.Cause(ctx)
		case <-time.After(linkAgain):
		}
	}
}

// lowMTU is the error of an interface whose MTU is too small for frames of some stripes.
type lowMTU struct {
	name         string
	mtu, stripes int
}

func (e lowMTU) Error() string {
	need := wire.HotMTU(e.stripes)
	return fmt.Sprintf("interface %s has an MTU of %d, and frames of %d stripes (switch.stripes) need %d: raise it on all ports and hosts (ip link set dev %s mtu %d), or lower switch.stripes to %d",
		e.name, e.mtu, e.stripes, need, e.name, need, max(1, (e.mtu-wire.HotMTU(0))/wire.StripeLen))
}

// checkMTU refuses an interface that would lose frames of the cluster's hosts.
func checkMTU(name string, stripes int) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil // its user reports the missing interface
	}
	if ifi.MTU < wire.HotMTU(stripes) {
		return lowMTU{name, ifi.MTU, stripes}
	}
	return nil
}

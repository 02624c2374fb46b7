// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"net/netip"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/testbed"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// xdpSite is a switch with the XDP program on every port, and a host for each
// worker.
func xdpSite(ctx context.Context, workers int) (*site, error) {
	bed, err := testbed.New(ctx, testbed.Config{Hosts: workers, StaticARP: true})
	if err != nil {
		return nil, err
	}
	aggregator, err := harness.OpenSwitch(bed)
	if err != nil {
		return nil, errors.Join(err, bed.Close())
	}
	return &site{
		plane:      aggregator,
		aggregator: wire.Endpoint{MAC: [6]byte(bed.Switch().MAC), IP: bed.Switch().IP, Port: wire.DefaultPort},
		link: func(i int) (link.Link, error) {
			h := bed.Host(i)
			return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
		},
		at:    func(i int, fn func() error) error { return bed.Host(i).Do(fn) },
		close: func() error { return errors.Join(aggregator.Close(), bed.Close()) },
	}, nil
}

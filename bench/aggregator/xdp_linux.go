// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"errors"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/link"
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
		aggregator: harness.HostConfigOf(bed, 0).Aggregator,
		link: func(i int) (link.Link, error) {
			p := harness.HostConfigOf(bed, i)
			return p.OpenLink()
		},
		at:    func(i int, fn func() error) error { return bed.Host(i).Do(fn) },
		close: func() error { return errors.Join(aggregator.Close(), bed.Close()) },
	}, nil
}

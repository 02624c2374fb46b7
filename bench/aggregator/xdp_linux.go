package aggregator

import (
	"context"
	"errors"
	"net/netip"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bpf"
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
	var aggregator *bpf.Aggregator
	err = bed.Switch().Do(func() error {
		if aggregator, err = bpf.Open(bpf.Options{Address: bed.Switch().IP}); err != nil {
			return err
		}
		for _, h := range bed.Hosts() {
			if err := aggregator.Attach(h.PortName, afxdp.AttachNative); err != nil {
				return err
			}
			if err := aggregator.AddRoute([6]byte(h.MAC), h.PortName); err != nil {
				return err
			}
		}
		return nil
	})
	end := func() error {
		if aggregator == nil {
			return bed.Close()
		}
		return errors.Join(aggregator.Close(), bed.Close())
	}
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return &site{
		plane:      aggregator,
		aggregator: wire.Endpoint{MAC: [6]byte(bed.Switch().MAC), IP: bed.Switch().IP, Port: wire.DefaultPort},
		link: func(i int) (link.Link, error) {
			h := bed.Host(i)
			return link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
		},
		at:    func(i int, fn func() error) error { return bed.Host(i).Do(fn) },
		close: end,
	}, nil
}

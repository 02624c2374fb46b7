package harness

import (
	"errors"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/testbed"
)

// OpenSwitch puts the XDP aggregator on all ports of a bed's switch and tells it
// the way to the hosts. The caller closes it before the bed.
func OpenSwitch(bed *testbed.Bed) (a *bpf.Aggregator, err error) {
	err = bed.Switch().Do(func() error {
		if a, err = bpf.Open(bpf.Options{Address: bed.Switch().IP}); err != nil {
			return err
		}
		for _, h := range bed.Hosts() {
			if err := a.Attach(h.PortName, afxdp.AttachNative); err != nil {
				return err
			}
			if err := a.AddRoute([6]byte(h.MAC), h.PortName); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && a != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, err
}

// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// Both ends of a cable get a token bucket of the rate, and a second call changes it.
func TestLimitRate(t *testing.T) {
	bed, err := New(t.Context(), Config{Hosts: 2})
	if missing := (*CapabilityError)(nil); errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	host := bed.Host(1)
	for _, mbit := range []float64{100, 250} {
		if err := host.LimitRate(mbit * 1e6); err != nil {
			t.Fatal(err)
		}
		for _, end := range []struct {
			ns   *Namespace
			name string
		}{{host.ns, host.Interface}, {bed.Switch().ns, host.PortName}} {
			if err := end.ns.with(end.name, func(handle *netlink.Handle, link netlink.Link) error {
				all, err := handle.QdiscList(link)
				if err != nil || len(all) != 1 {
					t.Errorf("%s: %v, %v", end.name, all, err)
					return err
				}
				if bucket, ok := all[0].(*netlink.Tbf); !ok || bucket.Rate != uint64(mbit*1e6/8) {
					t.Errorf("%s: %+v", end.name, all[0])
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
	if err := bed.Switch().LimitRate(1e6); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
	if err := host.LimitRate(1); !errors.Is(err, ErrConfig) {
		t.Error(err)
	}
}

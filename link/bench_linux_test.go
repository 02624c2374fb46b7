// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// BenchmarkAFXDP is BenchmarkUDP between two AF_XDP links.
func BenchmarkAFXDP(b *testing.B) {
	bed := bedtest.New(b, testbed.Config{Hosts: 2})
	var links [2]Link
	for i := range links {
		h := bed.Host(i)
		if err := h.Do(func() (err error) {
			links[i], err = OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
			return err
		}); err != nil {
			b.Fatal(err)
		}
		defer links[i].Close()
	}
	benchmarkRoundTrips(b, links)
}

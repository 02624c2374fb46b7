package link_test

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/internal/testbed"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/linktest"
	"github.com/libra-ina/libra/wire"
)

// TestConformanceAFXDP runs the tests of package linktest on AF_XDP links, of one
// queue and of several.
func TestConformanceAFXDP(t *testing.T) {
	for name, queues := range map[string]int{"one queue": 1, "two queues": 2} {
		t.Run(name, func(t *testing.T) {
			bed := link.NewBed(t, testbed.Config{Hosts: 2, Queues: queues})
			open := func(t *testing.T, host int) (l link.Link) {
				t.Helper()
				h := bed.Host(host)
				if err := h.Do(func() (err error) {
					l, err = link.OpenAFXDP(link.AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
					return err
				}); err != nil {
					t.Fatal(err)
				}
				return l
			}
			linktest.Suite{Open: func(t *testing.T) (a, b link.Link) { return open(t, 0), open(t, 1) }}.Run(t)
		})
	}
}

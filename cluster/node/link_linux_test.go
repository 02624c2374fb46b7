// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// The frames of a host are as long as switch.stripes says, whatever its interface allows. If that does not
// allow them, the error names the remedy.
func TestHostsHaveFramesForTheStripes(t *testing.T) {
	h := bedtest.New(t, testbed.Config{Hosts: 1}).Host(0)
	for _, c := range []struct {
		mtu, stripes, payload int
		want                  string
	}{
		{3440, 25, 3412, ""},
		{9000, 25, 3412, ""},
		{9000, 12, 1644, ""},
		{9000, 10, 1472, ""},
		{1400, 10, 1372, ""},
		{1300, 10, 1272, ""}, // which a worker then refuses, and not a server
		{3439, 25, 0, "has an MTU of 3439, and frames of 25 stripes (switch.stripes) need 3440: raise it on all ports and hosts (ip link set dev " +
			h.Interface + " mtu 3440), or lower switch.stripes to 24"},
		{1500, 11, 0, "lower switch.stripes to 10"},
	} {
		err := h.Do(func() error {
			port, err := netlink.LinkByName(h.Interface)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMTU(port, c.mtu); err != nil {
				return err
			}
			env := Env{Config: &cluster.Config{Backend: cluster.BackendAFXDP, Port: wire.DefaultPort, Switch: cluster.Switch{Stripes: c.stripes}}}
			l, err := openLink(env, cluster.Host{Address: h.IP, Interface: h.Interface}, true)
			if err != nil {
				return err
			}
			if got := l.Limits().MaxPayload; got != c.payload {
				t.Errorf("MTU %d, %d stripes: payloads of %d bytes, want %d", c.mtu, c.stripes, got, c.payload)
			}
			return l.Close()
		})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("MTU %d, %d stripes: %v, want %q", c.mtu, c.stripes, err, c.want)
		}
	}
}

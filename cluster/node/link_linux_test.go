// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// The frames of a host are as long as switch.stripes says, whatever its interface allows. If that
// does not allow them, the error names the remedy.
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
		{1300, 10, 1272, ""}, // which a worker refuses, and not a server
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

// A process whose interface has too small an MTU says so and waits until that is over. One that had
// a link before also waits for an interface that it does not find; another one reports it at once.
func TestInterfaceIsAwaited(t *testing.T) {
	h := bedtest.New(t, testbed.Config{Hosts: 1}).Host(0)
	named := func(from, to string) func() error {
		return func() error {
			return h.Do(func() error {
				l, err := netlink.LinkByName(from)
				if err != nil {
					return err
				}
				return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, to), netlink.LinkSetUp(l))
			})
		}
	}
	mtu := func(mtu int) func() error { return func() error { return h.SetMTU(mtu) } }
	env := Env{Config: &cluster.Config{Backend: cluster.BackendAFXDP, Port: wire.DefaultPort,
		Switch: cluster.Switch{Stripes: 10}}}
	for _, c := range []struct {
		begin, end func() error
		again      bool
		says       string
		waits      bool
	}{
		{mtu(1399), mtu(1400), false, "interface " + h.Interface + " has an MTU of 1399", true},
		{named(h.Interface, "other"), named("other", h.Interface), true, "no such network interface", true},
		{named(h.Interface, "other"), named("other", h.Interface), false, "no such network interface", false},
	} {
		if err := c.begin(); err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		log := slog.New(slog.NewTextHandler(writer(func(line []byte) (int, error) {
			if said.Len() == 0 {
				if err := c.end(); err != nil {
					t.Error(err)
				}
			}
			return said.Write(line)
		}), nil))
		err := h.Do(func() error {
			l, err := awaitInterface(t.Context(), log, c.again, func() (link.Link, error) {
				return openWorkerLink(env, cluster.Host{Address: h.IP, Interface: h.Interface})
			})
			if err != nil {
				return err
			}
			return l.Close()
		})
		switch {
		case c.waits && (err != nil || !strings.Contains(said.String(), c.says)):
			t.Errorf("%v; it says %q, want %q", err, &said, c.says)
		case !c.waits && (err == nil || !strings.Contains(err.Error(), c.says) || said.Len() > 0):
			t.Errorf("%v; it says %q, want only the error %q", err, &said, c.says)
		}
		if !c.waits {
			if err := c.end(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// writer is a function that takes what is logged.
type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/netdev"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

func TestAttachMode(t *testing.T) {
	for name, want := range map[string]afxdp.AttachMode{"auto": afxdp.AttachAuto, "native": afxdp.AttachNative, "generic": afxdp.AttachGeneric} {
		if got, err := attachMode(name); got != want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := attachMode("fast"); err == nil || !strings.Contains(err.Error(), `XDP mode "fast" is none of native, generic, auto`) {
		t.Errorf("an unknown mode: %v", err)
	}
	if _, err := openXDPPlane(&cluster.Config{Switch: cluster.Switch{XDPMode: "fast"}}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `"fast"`) {
		t.Errorf("an unknown mode: %v", err)
	}
}

// An interface that XDP cannot run on is refused with the remedy, and what was begun
// before is undone.
func TestUnfitInterfaces(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1})
	err := bed.Switch().Do(func() error {
		pair := func(name string, rx, tx int) error {
			a := netlink.NewLinkAttrs()
			a.Name, a.NumRxQueues, a.NumTxQueues = name, rx, 1
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: name + "peer", PeerNumRxQueues: 1, PeerNumTxQueues: uint32(tx)})
		}
		tun := netlink.NewLinkAttrs()
		tun.Name = "tun0"
		if err := errors.Join(pair("few", 1, 2), pair("equal", 2, 2), pair("more", 3, 2),
			netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: tun, Mode: netlink.TUNTAP_MODE_TUN})); err != nil {
			return err
		}
		names := interfaceNames()
		for _, name := range []string{"lo", "few", "fewpeer", bed.Host(0).PortName} {
			if !slices.Contains(names, name) {
				t.Errorf("interface %s is not among %v", name, names)
			}
		}
		for name, want := range map[string]string{
			"few":     "interface few has 1 receive queues but its peer fewpeer has 2 transmit queues, so XDP cannot run on it: make the pair with equal numbers (ip link add ... numrxqueues 2)",
			"tun0":    `interface tun0 is of type "none", whose packets have no Ethernet headers: the switch needs ports that have`,
			"absent0": `there is no interface "absent0" here, only [`,
			"equal":   "", "more": "", "lo": "",
			bed.Host(0).PortName: "", // its peer is in another namespace
		} {
			if err := checkPort(name); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q", name, err, want)
			}
		}
		if err := checkPort("absent0"); !strings.Contains(err.Error(), "fewpeer") {
			t.Errorf("the interfaces that there are: %v", err)
		}

		port := bed.Host(0).PortName
		for _, second := range []string{"few", "absent0"} {
			c := &cluster.Config{Switch: cluster.Switch{Address: bed.Switch().IP, XDPMode: "auto", Interfaces: []string{port, second}, ThreadedNAPI: true}}
			if p, err := openXDPPlane(c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), second) || p.Plane != nil {
				t.Errorf("with %s: %v", second, err)
			}
			link, err := netlink.LinkByName(port)
			if err != nil {
				return err
			}
			if x := link.Attrs().Xdp; x != nil && x.Attached {
				t.Errorf("after the error about %s, the program is still on %s", second, port)
			}
		}

		// A port that would lose the frames of workers is named, with the remedy.
		mtu := func(n int) error {
			link, err := netlink.LinkByName(port)
			return errors.Join(err, netlink.LinkSetMTU(link, n))
		}
		for _, e := range []struct {
			mtu, stripes int
			want         string
		}{
			{3439, 25, "has an MTU of 3439, and frames of 25 stripes (switch.stripes) need 3440: raise it on all ports and hosts (ip link set dev " + port + " mtu 3440), or lower switch.stripes to 24"},
			{3440, 25, ""},
			{1500, 11, "has an MTU of 1500, and frames of 11 stripes (switch.stripes) need 1536: raise it on all ports and hosts (ip link set dev " + port + " mtu 1536), or lower switch.stripes to 10"},
			{1500, 10, ""},
		} {
			if err := mtu(e.mtu); err != nil {
				return err
			}
			c := &cluster.Config{Switch: cluster.Switch{Address: bed.Switch().IP, XDPMode: "auto", Interfaces: []string{port}, Stripes: e.stripes}}
			p, err := openXDPPlane(c, slog.New(slog.DiscardHandler))
			if (err == nil) != (e.want == "") || err != nil && !strings.Contains(err.Error(), port+" "+e.want) {
				t.Errorf("MTU %d, %d stripes: %v, want %q", e.mtu, e.stripes, err, e.want)
			}
			if err == nil {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		}

		// What an open plane says of itself, and puts back when it ends.
		c := &cluster.Config{Switch: cluster.Switch{Address: bed.Switch().IP, XDPMode: "generic", Interfaces: []string{port}, ThreadedNAPI: true}}
		warnings := new(bytes.Buffer)
		p, err := openXDPPlane(c, slog.New(slog.NewTextHandler(warnings, &slog.HandlerOptions{Level: slog.LevelWarn})))
		if err != nil {
			return err
		}
		if warnings.Len() > 0 {
			t.Errorf("it warns: %s", warnings)
		}
		if p.what != "xdp generic, threaded NAPI" {
			t.Errorf("the plane is %q", p.what)
		}
		if v, err := sys.ReadAttr(port, "threaded"); v != "1" || err != nil {
			t.Errorf("threaded is %q, %v", v, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if v, err := sys.ReadAttr(port, "threaded"); v != "0" || err != nil {
			t.Errorf("afterwards, threaded is %q, %v", v, err)
		}
		link, err := netlink.LinkByName(port)
		if err == nil && link.Attrs().Xdp != nil && link.Attrs().Xdp.Attached {
			t.Errorf("the program is still on %s", port)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// heard is a data plane that keeps what a bridge's follower told it of ports.
type heard map[string]bool

func (heard) AddRoute([6]byte, string) error { return nil }
func (heard) RemoveRoute([6]byte) error      { return nil }

func (h heard) SetForwarding(port string, on bool) error {
	h[port] = on
	return nil
}

// A kernel that does not tell which ports transmit for XDP has its bridge forward: a port
// that cannot would lose frames.
func TestOldKernelForwardsItself(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 2})
	ports := []string{bed.Host(0).PortName, bed.Host(1).PortName}
	old := func(index int) (bool, error) {
		return false, fmt.Errorf("XDP features of interface %d: %w", index, netdev.ErrUnknown)
	}
	for _, c := range []struct {
		transmits func(int) (bool, error)
		want      bool
	}{{netdev.TransmitsXDP, true}, {old, false}} {
		told, logged := heard{}, new(bytes.Buffer)
		err := bed.Switch().Do(func() error {
			f, err := followBridge(ports, told, c.transmits, slog.New(slog.NewTextHandler(logged, nil)))
			if err == nil {
				f.Close()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if want := (heard{ports[0]: c.want, ports[1]: c.want}); !maps.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		if warned := strings.Contains(logged.String(), "go through the kernel's bridge"); warned == c.want {
			t.Errorf("forwards: %v, but it logs %q", c.want, logged)
		}
	}
}

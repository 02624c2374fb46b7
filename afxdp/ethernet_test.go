// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// tuntap adds a device of a user's process to a namespace, which may have no tun.
func tuntap(t *testing.T, ns *testbed.Namespace, name string, mode netlink.TuntapMode) {
	t.Helper()
	device := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: mode, Queues: 1, NonPersist: true,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	if err := ns.Do(func() error { return netlink.LinkAdd(device) }); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { device.Fds[0].Close() })
	if err := ns.SetUp(name, true); err != nil {
		t.Fatal(err)
	}
}

// Packets of a tun device begin with their IP headers. What reads Ethernet headers refuses it; a
// caller's own program may read what it likes. A tap is an Ethernet device, as the errors say.
func TestDeviceWithoutEthernet(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	tuntap(t, ns, "tun0", netlink.TUNTAP_MODE_TUN)
	tuntap(t, ns, "tap0", netlink.TUNTAP_MODE_TAP)
	own, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	sockets, err := newXSKMap(1)
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	group := func(ifname string, cfg GroupConfig) error {
		g, err := OpenAll(ifname, cfg)
		if err == nil {
			err = g.Close()
		}
		return err
	}
	for name, c := range map[string]struct {
		use   func(ifname string) error
		takes bool // a tun, too
	}{
		"OpenAll":      {func(i string) error { return group(i, GroupConfig{Match: MatchUDP(9000)}) }, false},
		"OpenAll, Not": {func(i string) error { return group(i, GroupConfig{Match: MatchUDP(9000).Not()}) }, false},
		"that sends":   {func(i string) error { return group(i, GroupConfig{Socket: Config{RxFrames: -1}}) }, false},
		"Attach": {func(i string) error {
			a, err := Attach(AttachConfig{Interface: i, Match: MatchAll()})
			if err == nil {
				err = a.Close()
			}
			return err
		}, false},
		"own program": {func(i string) error {
			a, err := Attach(AttachConfig{Interface: i, Program: own})
			if err == nil {
				err = a.Close()
			}
			return err
		}, true},
		"Open": {func(i string) error {
			s, err := Open(pool, Config{Interface: i})
			if err == nil {
				err = s.Close()
				_, reclaimed := s.Reclaim()
				err = errors.Join(err, reclaimed)
			}
			return err
		}, false},
		"own map": {func(i string) error {
			s, err := Open(pool, Config{Interface: i, XSKMap: sockets})
			if err == nil {
				err = s.Close()
				_, reclaimed := s.Reclaim()
				err = errors.Join(err, reclaimed)
			}
			return err
		}, true},
	} {
		if err := ns.Do(func() error { return c.use("tap0") }); err != nil {
			t.Errorf("%s on a tap: %v", name, err)
		}
		err := ns.Do(func() error { return c.use("tun0") })
		var feature *FeatureError
		switch {
		case c.takes && err != nil:
			t.Errorf("%s on a tun: %v", name, err)
		case !c.takes && (!errors.As(err, &feature) || !strings.Contains(err.Error(), "a tap instead of a tun")):
			t.Errorf("%s on a tun: %v, want a FeatureError with the remedy", name, err)
		}
	}
	err = ns.Do(func() error { _, err := ListenUDP("tun0", netip.MustParseAddrPort("10.0.0.1:1")); return err })
	wantErr(t, err, ErrConfig)
}

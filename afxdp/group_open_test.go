// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// If sockets cannot be opened, the interface does not change.
func TestOpenAllErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	match := MatchUDP(9000)
	for name, c := range map[string]struct {
		cfg   GroupConfig
		want  error
		words string
	}{
		"no match":         {GroupConfig{}, ErrConfig, "MatchAll is for every packet"},
		"match of senders": {GroupConfig{Match: match, Socket: Config{RxFrames: -1}}, ErrConfig, "match nothing"},
		"match twice":      {GroupConfig{Match: match, Attach: AttachConfig{Match: MatchUDP()}}, ErrConfig, "GroupConfig.Attach.Match is filled in"},
		"interface twice":  {GroupConfig{Match: match, Socket: Config{Interface: "b"}}, ErrConfig, "GroupConfig.Socket.Interface"},
		"frames twice":     {GroupConfig{Match: match, UMEM: UMEMConfig{Frames: 1}}, ErrConfig, "GroupConfig.UMEM.Frames"},
		"queue twice":      {GroupConfig{Match: match, Queues: []int{1, 0, 1}}, ErrConfig, "or one twice"},
		"no queue":         {GroupConfig{Match: match, Queues: []int{}}, ErrConfig, "none, or one twice"},
		"queue beyond":     {GroupConfig{Match: match, Queues: []int{0, 2}}, ErrNoQueue, "b has receive queues 0 to 1 (see ethtool -l b)"},
		"negative queue":   {GroupConfig{Match: match, Queues: []int{-1}}, ErrNoQueue, "receive queues 0 to 1"},
		"frames":           {GroupConfig{Match: match, Frames: 1 << 24}, ErrConfig, "is not in [1, 8388608] for each of 2 queues"},
		"zero-copy":        {GroupConfig{Match: match, Frames: 64, Socket: Config{Mode: BindZeroCopy}}, errors.ErrUnsupported, "zero-copy on b"},
	} {
		err := ns.Do(func() error {
			g, err := OpenAll("b", c.cfg)
			if g != nil {
				t.Errorf("%s: opened", name)
			}
			return err
		})
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		if id := attachedID(t, ns); id != 0 {
			t.Errorf("%s: program %d was left", name, id)
		}
	}
	wantErr(t, ns.Do(func() error { _, err := OpenAll("nosuch", GroupConfig{Match: match}); return err }), ErrInterfaceGone)
	attach(t, ns, AttachConfig{Interface: "b", Program: passProgram(t)})
	wantErr(t, ns.Do(func() error { _, err := OpenAll("b", GroupConfig{Match: match}); return err }), ErrProgramAttached)
}

// Frames fit the interface's packets, and queues can be chosen.
func TestOpenAllDefaults(t *testing.T) {
	for _, c := range []struct {
		mtu  int
		cfg  GroupConfig
		size int
	}{
		{1500, GroupConfig{}, 2048},
		{1774, GroupConfig{}, 2048},
		{1775, GroupConfig{}, 4096},
		{3000, GroupConfig{Attach: AttachConfig{Mode: AttachGeneric}}, min(4096, os.Getpagesize())},
		{3000, GroupConfig{Attach: AttachConfig{Mode: AttachGeneric}, Socket: Config{MaxPacket: 1500}}, 2048},
	} {
		ns := newNet(t, testbed.VethConfig{Queues: 2, MTU: c.mtu})
		c.cfg.Match, c.cfg.Queues, c.cfg.Frames = MatchUDP(9), []int{1}, 32
		g := openAll(t, ns, c.cfg)
		if got := g.Sockets()[0].UMEM().FrameSize(); got != c.size {
			t.Errorf("MTU %d: frames of %d bytes, want %d", c.mtu, got, c.size)
		}
		if s := g.Sockets(); len(s) != 1 || s[0].Info().Queue != 1 {
			t.Errorf("%d sockets", len(s))
		}
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := queuesInUse(lo, false); n != 1 || err != nil {
		t.Errorf("lo, whose driver does not tell, has %d queues, %v", n, err)
	}
}

// The smallest configuration of OpenAll works: the one frame of a queue waits for packets.
func TestGroupWithOneFrame(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: 1})
	tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	for i := range uint64(3) {
		transmit(t, tx, newPackets(t, tx, i, 1, 100))
		receive(t, g.Sockets()[0], 1)
	}
}

// Sockets that only send are on the transmit queues.
func TestSendersAreOnTransmitQueues(t *testing.T) {
	for name, queues := range map[string]struct{ rx, tx int }{"fewer": {4, 1}, "more": {1, 4}} {
		t.Run(name, func(t *testing.T) {
			ns := newNet(t, testbed.VethConfig{})
			err := ns.Do(func() error {
				link := netlink.NewLinkAttrs()
				link.Name, link.NumRxQueues, link.NumTxQueues = "few", queues.rx, queues.tx
				err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: "many", PeerNumRxQueues: 4, PeerNumTxQueues: 1})
				return errors.Join(err, ns.SetUp("few", true), ns.SetUp("many", true))
			})
			if err != nil {
				t.Fatal(err)
			}
			var g *Group
			err = ns.Do(func() (err error) {
				g, err = OpenAll("few", GroupConfig{Socket: Config{RxFrames: -1}})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if n := len(g.Sockets()); n != queues.tx {
				t.Errorf("%d sockets for %d transmit queues", n, queues.tx)
			}
			err = g.Run(context.Background(), Pace(1000, func(_ *Socket, packets []Desc) (int, error) {
				packets[0].Len = 60
				return 1, io.EOF
			}))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// OpenAll refuses what it cannot serve: a group has no sockets for Attach.Others.
func TestOpenAllRefusesOthers(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	err := ns.Do(func() error {
		g, err := OpenAll("b", GroupConfig{Match: MatchUDP(1), Attach: AttachConfig{Others: []Match{MatchUDP(2)}}})
		if err == nil {
			err = g.Close()
			t.Error("accepted")
			return err
		}
		wantErr(t, err, ErrConfig)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

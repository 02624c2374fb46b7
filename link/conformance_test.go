// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/linktest"
)

// TestConformance runs the tests of package linktest on links over UDP sockets of
// both kinds, alone and behind injected faults.
func TestConformance(t *testing.T) {
	faults := link.Faults{Drop: 0.1, Duplicate: 0.1, Reorder: 0.1, Late: 0.02, LateDelay: 300, Seed: 1}
	for _, c := range []struct {
		name   string
		suite  linktest.Suite
		faults link.Faults
	}{
		{name: "udp", suite: linktest.Suite{Open: loopback("127.0.0.1:0", link.OpenUDP)}},
		{name: "udp, IPv6", suite: linktest.Suite{Open: loopback("[::1]:0", link.OpenUDP)}},
		{name: "udp of package net", suite: linktest.Suite{Open: loopback("127.0.0.1:0", link.OpenNetUDP), Allocates: true}},
		{name: "udp of package net, IPv6", suite: linktest.Suite{Open: loopback("[::1]:0", link.OpenNetUDP), Allocates: true}},
		{name: "lent", suite: linktest.Suite{Open: lent(loopback("127.0.0.1:0", link.OpenUDP))}},
		{name: "faults", suite: linktest.Suite{Open: faulty(faults, loopback("127.0.0.1:0", link.OpenUDP)), Allocates: true}},
		{name: "no faults", suite: linktest.Suite{Open: faulty(link.Faults{}, loopback("127.0.0.1:0", link.OpenUDP)), Allocates: true}},
	} {
		t.Run(c.name, c.suite.Run)
	}
}

type opener = func(*testing.T) (a, b link.Link)

func loopback(at string, open func(netip.AddrPort) (link.Link, error)) opener {
	return func(t *testing.T) (a, b link.Link) {
		t.Helper()
		var err error
		if a, err = open(netip.MustParseAddrPort(at)); err != nil {
			t.Fatal(err)
		}
		if b, err = open(netip.MustParseAddrPort(at)); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
}

// faulty puts faults in front of both links.
func faulty(f link.Faults, open opener) opener {
	return func(t *testing.T) (a, b link.Link) {
		t.Helper()
		a, b = open(t)
		var err error
		if a, err = link.WithFaults(a, f); err != nil {
			t.Fatal(err)
		}
		if b, err = link.WithFaults(b, f); err != nil {
			t.Fatal(err)
		}
		return a, b
	}
}

// lent lends both links, which were lent before.
func lent(open opener) opener {
	return func(t *testing.T) (a, b link.Link) {
		t.Helper()
		a, b = open(t)
		for _, l := range []*link.Link{&a, &b} {
			kept := link.Keep(*l)
			t.Cleanup(func() { _ = kept.Close() })
			before, err := kept.Lend()
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := before.Alloc(); !ok {
				t.Fatal("a link has no buffer")
			}
			if err := before.Close(); err != nil {
				t.Fatal(err)
			}
			if *l, err = kept.Lend(); err != nil {
				t.Fatal(err)
			}
		}
		return a, b
	}
}

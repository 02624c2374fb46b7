// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

var (
	near    = netip.MustParsePrefix("198.18.7.1/24")
	far     = netip.MustParsePrefix("198.18.7.2/24")
	near6   = netip.MustParsePrefix("fd00:11b7::1/64")
	far6    = netip.MustParsePrefix("fd00:11b7::2/64")
	beyond  = netip.MustParseAddr("203.0.113.9")
	nowhere = netip.MustParseAddr("192.0.2.1")
	farMAC  = [6]byte{2, 0, 0, 0, 0, 2}
)

// inNetwork runs fn in a new anonymous network namespace, connected to a second one by a veth pair.
func inNetwork(t *testing.T, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	farNS := must(testbed.NewNamespace())(t)
	t.Cleanup(func() { farNS.Close() })
	nearNS := must(testbed.NewNamespace())(t)
	t.Cleanup(func() { nearNS.Close() })
	check(t, nearNS.Veth(testbed.VethConfig{
		Names: [2]string{"near", "far"}, MACs: [2]net.HardwareAddr{nil, farMAC[:]}, Peer: farNS,
	}))
	check(t, farNS.Do(func() error { configure(t, "far", far, far6); return nil }))
	check(t, nearNS.Do(func() error {
		configure(t, "near", near, near6)
		check(t, netlink.RouteAdd(&netlink.Route{
			Dst: &net.IPNet{IP: beyond.AsSlice(), Mask: net.CIDRMask(32, 32)}, Gw: far.Addr().AsSlice(),
		}))
		fn()
		return nil
	}))
}

func configure(t *testing.T, name string, prefixes ...netip.Prefix) {
	t.Helper()
	link := must(netlink.LinkByName(name))(t)
	// Test beds have no IPv6.
	check(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0))
	for _, p := range prefixes {
		a := must(netlink.ParseAddr(p.String()))(t)
		a.Flags = 0x02 // IFA_F_NODAD: usable at once
		check(t, netlink.AddrAdd(link, a))
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) { inNetwork(t, func() { resolves(t) }) }

func resolves(t *testing.T) {
	for _, c := range []struct {
		name, link string
		dst, next  netip.Addr
	}{
		{"same network", "near", far.Addr(), far.Addr()},
		{"entry exists", "near", far.Addr(), far.Addr()},
		{"IPv6", "near", far6.Addr(), far6.Addr()},
		{"gateway", "near", beyond, far.Addr()},
		{"interface of the route", "", beyond, far.Addr()},
	} {
		hop, err := Resolve(t.Context(), c.link, c.dst)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if hop.MAC != farMAC || hop.Next != c.next || hop.Link != "near" {
			t.Errorf("%s: %+v", c.name, hop)
		}
	}
}

func TestResolveErrors(t *testing.T) { inNetwork(t, func() { refuses(t) }) }

func refuses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	absent := far.Addr().Next()
	for _, c := range []struct {
		name string
		dst  netip.Addr
		want error
	}{
		{"own address", near.Addr(), ErrLocal},
		{"no route", nowhere, ErrNoRoute},
		{"no such host", absent, ErrUnresolved},
		{"ctx", absent, context.DeadlineExceeded},
	} {
		if _, err := Resolve(ctx, "", c.dst); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		} else {
			t.Logf("%s: %v", c.name, err)
		}
	}
	if _, err := Resolve(ctx, "near", nowhere); !errors.Is(err, ErrNoRoute) {
		t.Errorf("no route through a named interface: %v", err)
	}
	if _, err := Resolve(ctx, "missing", far.Addr()); err == nil {
		t.Error("an interface that does not exist was accepted")
	}
}

// TestKernelGivesUp waits for the kernel's failure, not a context's end.
func TestKernelGivesUp(t *testing.T) {
	inNetwork(t, func() {
		check(t, os.WriteFile("/proc/sys/net/ipv4/neigh/near/mcast_solicit", []byte("1"), 0o644))
		_, err := Resolve(t.Context(), "near", far.Addr().Next())
		if !errors.Is(err, ErrUnresolved) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error %v, want ErrUnresolved alone", err)
		}
	})
}

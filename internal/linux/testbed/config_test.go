// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestConfigDefaults(t *testing.T) {
	got, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Hosts: 2, Queues: 1, MTU: 3440, Prefix: netip.MustParsePrefix("10.77.0.0/24")}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestConfigErrors(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want string // part of the message
	}{
		{"negative hosts", Config{Hosts: -1}, "-1 hosts"},
		{"more hosts than a bridge has ports", Config{Hosts: 1001, Prefix: netip.MustParsePrefix("10.0.0.0/8")}, "1001 hosts"},
		{"queues", Config{Queues: 65}, "65 queues"},
		{"small MTU", Config{MTU: 575}, "575 bytes"},
		{"large MTU", Config{MTU: 65536}, "65536 bytes"},
		{"IPv6", Config{Prefix: netip.MustParsePrefix("fd00::/64")}, "not IPv4"},
		{"no room for switches", Config{Hosts: 4, Above: []int{0, 0}, Prefix: netip.MustParsePrefix("10.0.0.0/29")}, "no room for 3 switches"},
		{"unbridged switches", Config{Above: []int{0}, Unbridged: true}, "has one switch"},
		{"loop", Config{Above: []int{0, 2}}, "a cable from switch 2 leads to switch 2"},
		{"no such switch", Config{Above: []int{-1}}, "a cable from switch 1 leads to switch -1"},
		{"too few switches", Config{Hosts: 2, At: []int{0}}, "the switches of 1 hosts are given, of 2"},
		{"host nowhere", Config{Hosts: 2, At: []int{0, 1}}, "host 1 is at switch 1 of 1"},
		{"no room", Config{Hosts: 6, Prefix: netip.MustParsePrefix("10.0.0.0/29")}, "no room"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := test.cfg.withDefaults()
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want ErrConfig with %q", err, test.want)
			}
		})
	}
}

func TestAddressesAreDistinctAndInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 29).Draw(t, "bits")
		room := min(1<<(32-bits)-3, maxHosts)
		cfg, err := Config{
			Hosts:  rapid.IntRange(1, room).Draw(t, "hosts"),
			Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address"))), bits),
		}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]bool{cfg.address(0): true} // the network's own address
		macs := map[string]bool{}
		for offset := switchOffset; offset < hostOffset+cfg.Hosts; offset++ {
			a := cfg.address(offset)
			if !cfg.Prefix.Contains(a) || seen[a] {
				t.Fatalf("address %v of offset %d: outside %v or used twice", a, offset, cfg.Prefix)
			}
			seen[a] = true
			for _, kind := range []byte{macNode, macPort} {
				mac := hardwareAddr(kind, offset).String()
				if macs[mac] {
					t.Fatalf("hardware address %s is used twice", mac)
				}
				macs[mac] = true
			}
		}
		last := cfg.address(1<<(32-bits) - 1)
		if seen[last] {
			t.Fatalf("%v is the broadcast address of %v", last, cfg.Prefix)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"maps"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attributes serializes the attributes that nest adds, as the payload of a message.
func attributes(nest func(root *nl.RtAttr)) []byte {
	root := nl.NewRtAttr(0, nil)
	nest(root)
	return root.Serialize()[unix.SizeofRtAttr:]
}

// Not every kernel's bridges support VLANs, so the messages of those that do are written here.
// cluster/node tests the rest of the package on real bridges.
func TestParsesABridgeThatFiltersVLANs(t *testing.T) {
	for value, want := range []bool{false, true} {
		got, err := parsePort(attributes(func(root *nl.RtAttr) {
			root.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("br0"))
			info := root.AddRtAttr(unix.IFLA_LINKINFO, nil)
			info.AddRtAttr(unix.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
			data := info.AddRtAttr(unix.IFLA_INFO_DATA, nil)
			data.AddRtAttr(bridgeVLANFiltering, []byte{byte(value)})
		}))
		if err != nil || got != (port{name: "br0", filters: want}) {
			t.Errorf("VLAN filtering %d: %+v (%v)", value, got, err)
		}
	}
}

func TestDecidesByBridge(t *testing.T) {
	f := &Follower{forwards: true, names: map[int]string{2: "eth1", 3: "eth2", 4: "eth3", 5: "eth4"}}
	host := [][6]byte{{2, 0}, {2, 1}, {2, 2}, {2, 3}}
	hosts := map[[6]byte]int{host[0]: 1, host[1]: 2, host[2]: 1}
	ports := map[int]port{
		2: {name: "eth1", bridge: 9, forwards: true}, 3: {name: "eth2", bridge: 9, forwards: true},
		4: {name: "eth3", bridge: 8, forwards: true}, 5: {name: "eth4", bridge: 9}, 6: {name: "eth5", bridge: 9, forwards: true},
		8: {name: "br1"}, 9: {name: "br0"},
	}
	table := []entry{
		{host[0], 2, 9}, {host[1], 3, 9}, // of interest
		{host[2], 4, 8}, // behind another bridge
		{host[2], 6, 9}, // behind a port without our program
		{host[3], 2, 9}, // of no job
	}
	wantRoutes := map[[6]byte]string{host[0]: "eth1", host[1]: "eth2"}
	check := func(what string, want map[string]bool) {
		t.Helper()
		routes, forwards := f.decide(ports, table, hosts)
		if !maps.Equal(forwards, want) || !maps.Equal(routes, wantRoutes) {
			t.Errorf("%s: routes %v, ports %v, want %v and %v", what, routes, forwards, wantRoutes, want)
		}
	}
	none := map[string]bool{"eth1": false, "eth2": false, "eth3": false, "eth4": false}
	check("two bridges", map[string]bool{"eth1": true, "eth2": true, "eth3": false, "eth4": false})
	ports[9] = port{name: "br0", filters: true}
	check("a bridge that filters VLANs", none)
	ports[9] = port{name: "br0"}
	f.forwards = false
	check("a kernel that does not tell which ports transmit", none)
}

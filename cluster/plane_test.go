// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// validP4 is a cluster whose aggregator is a P4 switch.
var validP4 = strings.NewReplacer("backend: udp", "backend: afxdp",
	"control: 127.0.0.2:7700", `control: 127.0.0.2:7700, plane: p4, p4: {runtime: "127.0.0.2:9559", device: 2, election: 3, ports: [1, 2], hosts: {"02:00:00:00:00:05": 2}, replace: true}`,
	"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, interface: eth0",
	"address: 127.0.0.4", "address: 127.0.0.4, interface: eth0", "address: 127.0.0.5", "address: 127.0.0.5, interface: eth0").Replace(valid)

func TestPlanes(t *testing.T) {
	c, err := Read(write(t, validP4))
	if err != nil {
		t.Fatal(err)
	}
	want := P4{Runtime: "127.0.0.2:9559", Device: 2, Election: 3, Ports: []uint32{1, 2}, Hosts: map[string]uint32{"02:00:00:00:00:05": 2}, Replace: true}
	if diff := cmp.Diff(want, c.Switch.P4); diff != "" {
		t.Error(diff)
	}
	if c.Switch.Stripes != 1 || !c.Switch.LaneAligned {
		t.Errorf("with a P4 switch, frames have %d stripes, lane-aligned %v", c.Switch.Stripes, c.Switch.LaneAligned)
	}
	if c, err = Read(write(t, valid)); err != nil || c.Switch.Plane != PlaneModel {
		t.Errorf("without a plane: %q, %v", c.Switch.Plane, err)
	}
	// A change comes before the defaults and the checks.
	c, err = Read(write(t, validP4), func(c *Config) { c.Switch.Plane, c.Switch.P4, c.Switch.Interfaces = PlaneXDP, P4{}, []string{"eth1"} })
	if err != nil || c.Switch.Stripes != 10 || !slices.Equal(c.Switch.Interfaces, []string{"eth1"}) {
		t.Errorf("another plane: %+v, %v", c, err)
	}
	// How long frames are follows from the stripes of hot ones.
	for stripes, mtu := range map[string]int{"1": 1500, "10": 1500, "11": 1536, "25": 3440} {
		text := strings.Replace(validP4, "plane: p4", "stripes: "+stripes, 1)
		c, err := Read(write(t, text), func(c *Config) { c.Switch.Plane, c.Switch.P4, c.Switch.Interfaces = PlaneXDP, P4{}, []string{"eth1"} })
		if err != nil || c.MTU() != mtu {
			t.Fatalf("%s stripes: MTU %d, want %d; %v", stripes, c.MTU(), mtu, err)
		}
		if got, want := c.Agreement()["switch.stripes"], fmt.Sprintf("for an MTU of %d", mtu); got != want {
			t.Errorf("hosts must agree on switch.stripes %q, want %q", got, want)
		}
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"plane":             {"plane: p4", "plane: p5", `switch.plane: "p5" is none of xdp, model, p4`},
		"backend":           {"backend: afxdp", "backend: udp", "switch.plane: p4, but hosts with the udp backend do not reach it: choose backend afxdp"},
		"model":             {"plane: p4", "plane: model", "switch.plane: model, but hosts with the afxdp backend do not reach it: choose backend udp"},
		"xdp":               {"plane: p4", "plane: xdp, interfaces: [eth1]", "switch.p4: only with plane p4, and this one is xdp"},
		"half a program":    {"device: 2", "p4info: f", "switch.p4.p4info, config: they belong together"},
		"election":          {"election: 3", "election: 0", `switch.p4.election: "0" is not a valid value: leave the field out for the default, or give another`},
		"port":              {"ports: [1, 2]", "ports: [1, 510]", "switch.p4: port 510 is not in 0..509"},
		"port of a host":    {`:05": 2`, `:05": 511`, "switch.p4: port 511 is not in 0..509"},
		"host":              {"02:00:00:00:00:05", "eth0", `switch.p4.hosts: "eth0" is no MAC address`},
		"stripes":           {"plane: p4", "plane: p4, stripes: 2", "switch.stripes: 2, but a P4 switch takes frames of 1"},
		"lanes":             {"plane: p4", "plane: p4, lane_aligned: false", `switch.lane_aligned: "false" is not a valid value`},
		"XDP mode":          {"plane: p4", "plane: p4, xdp_mode: native", "switch.interfaces, xdp_mode, threaded_napi: with plane p4"},
		"interfaces":        {"plane: p4", "plane: p4, interfaces: [eth1]", "switch.interfaces, xdp_mode, threaded_napi: with plane p4"},
		"threaded receives": {"plane: p4", "plane: p4, threaded_napi: true", "switch.interfaces, xdp_mode, threaded_napi: with plane p4"},
	} {
		text := strings.Replace(validP4, test.old, test.new, 1)
		if text == validP4 {
			t.Fatalf("%s: the configuration has no %q", name, test.old)
		}
		if _, err := Read(write(t, text)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, test.want)
		}
	}
}

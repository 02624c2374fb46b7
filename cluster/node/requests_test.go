// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/cluster"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// ethernet returns an interface of this machine that has an Ethernet address.
func ethernet(t *testing.T) net.Interface {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if len(i.HardwareAddr) == 6 {
			return i
		}
	}
	t.Skip("no interface has an Ethernet address")
	panic("unreachable")
}

// What the aggregator is told of a job is what the configuration says.
func TestJobSpec(t *testing.T) {
	c := newCluster(t, 3)
	hot, err := loadHotSet(c, 4)
	if err != nil {
		t.Fatal(err)
	}
	print := hot.Fingerprint()
	want := &pb.JobSpec{
		Job: 5, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Exponent: proto.Int32(-46),
		Slots: uint32(4 * hot.Len()), HotSet: print[:], Senders: 3,
	}
	check := func(what string) {
		t.Helper()
		if got, err := jobSpec(c, hot); err != nil || !proto.Equal(got, want) {
			t.Errorf("%s: %v, %v\nwant %v", what, got, err, want)
		}
	}
	check("synchronous")
	c.Job.Sync, c.Job.Harvest, c.Job.HarvestFrames, c.Job.Arithmetic = false, 1500*time.Microsecond, 9, "lut"
	want.HarvestPeriodUs, want.HarvestFrames, want.Arithmetic, want.Exponent = 1500, 9, pb.Arithmetic_ARITHMETIC_LUT, proto.Int32(0)
	check("asynchronous")

	e := ethernet(t)
	c.Backend, c.Server.Interface = cluster.BackendAFXDP, e.Name
	want.ServerMacs = [][]byte{e.HardwareAddr}
	check("afxdp")
	for name, says := range map[string]string{"absent0": "interface absent0: ", "lo": "interface lo has no Ethernet address"} {
		c.Server.Interface = name
		if _, err := jobSpec(c, hot); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What the services are told of a worker is what the configuration says, and the data
// that it has.
func TestJoinConfig(t *testing.T) {
	c := newCluster(t, 3)
	hot, err := loadHotSet(c, 4)
	if err != nil {
		t.Fatal(err)
	}
	self := c.Workers[1]
	cfg, err := joinConfig(c, self, hot)
	if err != nil {
		t.Fatal(err)
	}
	print := hot.Fingerprint()
	if cfg.Job != 5 || cfg.Worker != 2 || cfg.From != netip.AddrPortFrom(self.Address, c.Port) || cfg.MAC != nil ||
		!bytes.Equal(cfg.HotSet, print[:]) || cfg.Server != c.Server.Control || cfg.Aggregator != c.Switch.Control {
		t.Errorf("%+v", cfg)
	}
	if cfg.Agree["data"] == "" || cfg.Agree["workers"] != "[1 2 3]" || len(cfg.Agree) != len(c.Agreement()) {
		t.Errorf("agreement %v", cfg.Agree)
	}
	e := ethernet(t)
	c.Backend, self.Interface = cluster.BackendAFXDP, e.Name
	if cfg, err := joinConfig(c, self, hot); err != nil || !bytes.Equal(cfg.MAC, e.HardwareAddr) {
		t.Errorf("%+v, %v", cfg, err)
	}
	self.Interface = "lo"
	if _, err := joinConfig(c, self, hot); err == nil || !strings.Contains(err.Error(), "interface lo has no Ethernet address") {
		t.Errorf("lo: %v", err)
	}
	c.Data = cluster.Data{Train: "no/such/file"}
	if _, err := joinConfig(c, self, hot); err == nil || !strings.Contains(err.Error(), "no/such/file") {
		t.Errorf("no data: %v", err)
	}
}

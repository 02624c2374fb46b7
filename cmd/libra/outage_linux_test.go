// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// setPort sets a host's port at the switch up or down.
func setPort(t *testing.T, bed *testbed.Bed, host int, set func(netlink.Link) error) {
	t.Helper()
	err := bed.Switch().Do(func() error {
		port, err := netlink.LinkByName(bed.Host(host).PortName)
		if err != nil {
			return err
		}
		return set(port)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The link of a worker, or of the server, is down for almost as long as it may be. Then training
// goes on, and ends with the weights of one that was not disturbed.
func TestLinkIsDownForAWhile(t *testing.T) {
	t.Parallel()
	for name, host := range map[string]int{"of the server": 0, "of a worker": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newKillBed(t, cluster.BackendAFXDP)
			b.config.Silence, b.config.Model.Epochs = access.Outage+2*time.Second, 8 // its default
			if err := b.config.Write(b.path); err != nil {
				t.Fatal(err)
			}
			b.runSwitch(t)
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			b.waitCheckpoint(t, server)
			setPort(t, b.bed, host, netlink.LinkSetDown)
			time.Sleep(access.Outage - 500*time.Millisecond)
			setPort(t, b.bed, host, netlink.LinkSetUp)
			if strings.Contains(server.out.String(), `"result"`) {
				t.Error("training has ended before the link was up again")
			}
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

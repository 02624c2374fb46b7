// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
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

// The MTU of an interface is too small for a while: for a worker that joins again after a rewind,
// for one that is started, and for a switch that is. Each waits, names the interface and the MTU,
// and goes on when that is raised.
func TestMTUIsTooSmallForAWhile(t *testing.T) {
	t.Parallel()
	b := newKillBed(t, cluster.BackendAFXDP)
	b.config.Silence = time.Minute // the port whose MTU is small leads to the server
	b.trainFor(t, 3)
	sw := b.run(t, theSwitch, "switch")
	server, workers := b.train(t)
	for _, w := range workers {
		waitSaid(t, w, "worker trains", 1)
	}
	const low, enough = 1200, testbed.DefaultMTU
	lower := func(host int) {
		t.Helper()
		if err := b.bed.Host(host).SetMTU(low); err != nil {
			t.Fatal(err)
		}
	}
	waitThenRaise := func(c *child, name string, raise func() error) {
		t.Helper()
		waitSaid(t, c, fmt.Sprintf("interface %s has an MTU of %d", name, low), 1)
		if err := raise(); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = 1, 2 // hosts of the workers
	lower(first)
	lower(second)
	_ = workers[1].Process.Kill()
	_ = workers[1].Wait()
	workers[1] = b.run(t, firstWorker+1, "worker", "--id", "2")
	for i, host := range []int{first, second} {
		waitThenRaise(workers[i], b.bed.Host(host).Interface, func() error { return b.bed.Host(host).SetMTU(enough) })
	}
	for i, w := range workers {
		waitSaid(t, w, "worker trains", 2-i)
	}

	port := b.bed.Host(0).PortName
	set := func(mtu int) func(netlink.Link) error {
		return func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) }
	}
	_ = sw.Process.Kill()
	_ = sw.Wait()
	setPort(t, b.bed, 0, set(low))
	sw = b.run(t, theSwitch, "switch")
	waitThenRaise(sw, port, func() error { setPort(t, b.bed, 0, set(enough)); return nil })
	waitTraining(t, sw)
	if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
	endSwitch(t, sw)
}

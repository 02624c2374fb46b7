// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
)

// A port that was deleted and created again takes part again, also in the answers to all senders;
// and so does one from which another process has detached the program.
func TestReattach(t *testing.T) {
	inNamespace(t, 2, func() {
		d := open(t)
		job := newRoundsJob(t, aggregator.JobConfig{ID: 9, Mode: aggregator.Sync, Workers: 2, Slots: 20})
		if err := d.AddJob(job.JobConfig); err != nil {
			t.Fatal(err)
		}
		for _, port := range []string{"port0", "port1"} {
			if err := d.Attach(port, afxdp.AttachGeneric); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.AddSender(job.ID, job.worker(0)); err != nil {
			t.Fatal(err)
		}
		index := func() int {
			t.Helper()
			ifi, err := net.InterfaceByName("port1")
			if err != nil {
				t.Fatal(err)
			}
			return ifi.Index
		}
		check := func(what string, want bool) {
			t.Helper()
			again, err := d.Reattach("port1", index())
			if again != want || err != nil {
				t.Errorf("%s: %v, %v, want %v", what, again, err, want)
			}
			if got := ports(t, d.Aggregator, job.ID); !slices.Equal(got, []string{"port0", "port1"}) {
				t.Errorf("%s: answers to all go to %v", what, got)
			}
			if programOn(t, "port1") == 0 {
				t.Errorf("%s: no program is on the port", what)
			}
		}
		check("without a change", false)
		l, err := netlink.LinkByName("port1")
		if err := errors.Join(err, netlink.LinkDel(l), netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "port1"}, PeerName: "host1"})); err != nil {
			t.Fatal(err)
		}
		check("created again", true)
		check("once more", false)
		if m, ok := d.Mode("port1"); !ok || m != afxdp.AttachGeneric {
			t.Errorf("mode %v, %v, want that of the first attachment", m, ok)
		}
		if _, err := d.Reattach("port2", 1); err == nil {
			t.Error("an interface that is no port was attached")
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Reattach("port1", index()); !errors.Is(err, aggregator.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

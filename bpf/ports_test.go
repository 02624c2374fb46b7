// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// The results of a job's rounds go to the ports of its own senders, and not to those of another
// job.
func TestResultsStayInTheirJob(t *testing.T) {
	for _, mode := range bothModes {
		t.Run(mode.String(), func(t *testing.T) {
			inNamespace(t, 4, func() { testResultsStayInTheirJob(t, mode) })
		})
	}
}

func testResultsStayInTheirJob(t *testing.T, mode afxdp.AttachMode) {
	w, m := openWired(t, 4, 1, mode), newModel(t)
	for i := range 4 {
		if err := w.AddRoute(conformance.Host(i).MAC, fmt.Sprintf("port%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	// The first job's workers are behind ports 0 and 1, the second's behind
	// ports 2 and 3.
	var jobs [2]*roundsJob
	var results [2][][][]byte
	for k := range jobs {
		jobs[k] = newRoundsJob(t, aggregator.JobConfig{
			ID: uint16(30 + k), Mode: aggregator.Sync, Workers: 2, Slots: 20,
		})
		jobs[k].first = 2 * k
		jobs[k].start(t, w)
		jobs[k].start(t, m)
		results[k] = jobs[k].results(t, m, 2)
	}
	next := func(host int) []byte {
		t.Helper()
		frame, err := w.hosts[host].wait(time.Now().Add(eventLimit))
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}
	complete := func(k, round int, hosts ...int) {
		t.Helper()
		for i := range 2 {
			if err := w.hosts[2*k+i].send(jobs[k].frame(i, round, 0)); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				next(2 * k) // the ACK
			}
		}
		for _, host := range hosts {
			// A host that receives another job's frame has received it before this.
			if got, want := next(host), results[k][round][0]; !bytes.Equal(got, want) {
				t.Errorf("job %d, round %d: host %d received\n%x, want\n%x", k, round, host, got, want)
			}
		}
	}
	complete(0, 0, 0, 1)
	complete(1, 0, 2, 3)
	// Without its route, one of the first job's senders may be behind any port.
	if err := w.RemoveRoute(conformance.Host(1).MAC); err != nil {
		t.Fatal(err)
	}
	complete(0, 1, 0, 1, 2, 3)
	complete(1, 1, 2, 3)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for i := range 4 {
		if id := programOn(t, fmt.Sprintf("port%d", i)); id != 0 {
			t.Errorf("program %d is still on port %d", id, i)
		}
	}
}

// ports returns the names of a job's ports. It must be called in their namespace.
func ports(t *testing.T, a *Aggregator, job uint16) []string {
	t.Helper()
	names := []string{}
	var key, value uint32
	for all := a.places[job].job.ports.m.Iterate(); all.Next(&key, &value); {
		ifi, err := net.InterfaceByIndex(int(value))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, ifi.Name)
	}
	slices.Sort(names)
	return names
}

func TestPortsFollowSendersAndRoutes(t *testing.T) {
	inNamespace(t, 3, func() {
		d := open(t)
		job := newRoundsJob(t, aggregator.JobConfig{ID: 9, Mode: aggregator.Sync, Workers: 2, Slots: 20})
		if err := d.AddJob(job.JobConfig); err != nil {
			t.Fatal(err)
		}
		admit := func(i int) error {
			// The kernel looks up ports in the caller's namespace, and a caller that admits a
			// sender may be in another one.
			result := make(chan error)
			go func() { result <- d.AddSender(job.ID, job.worker(i)) }()
			return <-result
		}
		for _, step := range []struct {
			what string
			do   func() error
			want []string
		}{
			{"attach", func() error { return d.Attach("port0", afxdp.AttachNative) }, nil},
			{"admit worker 0", func() error { return admit(0) }, []string{"port0"}},
			{"attach another", func() error { return d.Attach("port1", afxdp.AttachNative) }, []string{"port0", "port1"}},
			{"route to worker 0", func() error { return d.AddRoute(job.host(0).MAC, "port2") }, []string{"port2"}},
			{"admit worker 1", func() error { return admit(1) }, []string{"port0", "port1", "port2"}},
			{"detach", func() error { return d.Detach("port0") }, []string{"port1", "port2"}},
			{"withdraw worker 1", func() error { return d.RemoveSender(job.ID, job.worker(1).ID) }, []string{"port2"}},
			{"no route", func() error { return d.RemoveRoute(job.host(0).MAC) }, []string{"port1"}},
			{"no interface", func() error {
				l, err := netlink.LinkByName("port1")
				if err != nil {
					return err
				}
				return netlink.LinkDel(l)
			}, nil},
			{"route again", func() error { return d.AddRoute(job.host(0).MAC, "port0") }, []string{"port0"}},
			{"no route again", func() error { return d.RemoveRoute(job.host(0).MAC) }, nil},
			{"detach what is gone", func() error { return d.Detach("port1") }, nil},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			if got := ports(t, d.Aggregator, job.ID); !slices.Equal(got, step.want) {
				t.Errorf("%s: ports are %v, want %v", step.what, got, step.want)
			}
		}
		if err := d.AddJob(aggregator.JobConfig{ID: 10, Slots: 20}); err != nil {
			t.Fatal(err)
		}
		if d.places[10].job.ports != nil || d.places[10].job.groups != nil {
			t.Error("a job without rounds has a set of ports or groups")
		}
		other, err := testbed.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.Do(func() error { return d.AddRoute(job.host(0).MAC, "lo") }); !errors.Is(err, ErrNamespace) {
			t.Errorf("error %v, want ErrNamespace", err)
		}
		// The ports of a job that was removed, with a sender, are followed no more.
		if err := d.RemoveJob(job.ID); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(d.Attach("port2", afxdp.AttachNative), d.AddRoute(job.host(0).MAC, "port2")); err != nil {
			t.Errorf("after the job was removed: %v", err)
		}
	})
}

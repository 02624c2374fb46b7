// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// unsent checks the counts of frames that were not sent, when none of the frames arrives.
func unsent(t *testing.T, a *Aggregator, what string, send func(n int), answers, redirects uint64) {
	t.Helper()
	const frames = 200
	before, err := a.Counters()
	if err != nil {
		t.Fatal(err)
	}
	send(frames)
	after, err := a.Counters()
	if err != nil {
		t.Fatal(err)
	}
	gotAnswers, gotRedirects := after.UnsentAnswers-before.UnsentAnswers, after.UnsentRedirects-before.UnsentRedirects
	if gotAnswers != answers*frames || gotRedirects != redirects*frames {
		t.Errorf("%s: of %d frames, %d answers and %d redirected frames are counted as not sent", what, frames, gotAnswers, gotRedirects)
	}
}

func TestCountsWhatIsNotSent(t *testing.T) {
	inBridge(t, 2, "", func(a *Aggregator) {
		if err := a.CountsFailures(); err != nil {
			if _, absent := os.Stat("/sys/kernel/btf/vmlinux"); absent != nil {
				t.Skip(err)
			}
			t.Fatalf("%+v", err)
		}
		host0 := openTap(t, "host0")
		sender := func(frame []byte) func(n int) {
			return func(n int) {
				for range n {
					host0.send(t, frame)
				}
			}
		}
		unknown := between(t, conformance.Host(0), conformance.Aggregator) // is refused
		forwarded := between(t, conformance.Host(0), conformance.Host(1))

		// A veth does not accept answers if its peer has neither a program nor GRO.
		unsent(t, a, "answers to a host without XDP", sender(unknown), 1, 0)
		equipHost(t, "host0")
		unsent(t, a, "answers to a host with XDP", sender(unknown), 0, 0)

		equipHost(t, "host1")
		addRoutes(t, a)
		waitTarget(t, a, "port1", true)
		unsent(t, a, "forwarded to a host with XDP", sender(forwarded), 0, 0)
		setUp := func(name string, change func(netlink.Link) error) {
			link, err := netlink.LinkByName(name)
			if err := errors.Join(err, change(link)); err != nil {
				t.Fatal(err)
			}
		}
		setUp("host1", netlink.LinkSetDown)
		unsent(t, a, "forwarded to a host that is down", sender(forwarded), 0, 1)
		setUp("port1", netlink.LinkSetDown)
		unsent(t, a, "forwarded to a port that is down", sender(forwarded), 0, 1)

		// A program of another aggregator, on interfaces with the same indices.
		other, err := testbed.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.Veth(testbed.VethConfig{Names: [2]string{"port0", "host0"}}); err != nil {
			t.Fatal(err)
		}
		err = other.Do(func() error {
			b := open(t).Aggregator
			if err := b.Attach("port0", afxdp.AttachNative); err != nil {
				return err
			}
			strange := openTap(t, "host0")
			send := func(n int) {
				for range n {
					strange.send(t, unknown)
				}
			}
			unsent(t, b, "answers of the other", send, 1, 0)
			unsent(t, a, "answers of another", send, 0, 0)
			if err := b.Detach("port0"); err != nil {
				return err
			}
			return b.Attach("port0", afxdp.AttachGeneric)
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

var isTracing = regexp.MustCompile(`link_type:\s(tracing|raw_tracepoint)`)

// The counting programs end with the aggregator.
func TestFailureCountersAreTakenDown(t *testing.T) {
	inNamespace(t, 1, func() {
		tracing := func() (n int) {
			fds, err := filepath.Glob("/proc/self/fdinfo/*")
			if err != nil {
				t.Fatal(err)
			}
			for _, fd := range fds {
				if text, err := os.ReadFile(fd); err == nil && isTracing.Match(text) {
					n++
				}
			}
			return n
		}
		before := tracing()
		a, err := Open(Options{Address: conformance.Aggregator.IP})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Attach("port0", afxdp.AttachNative); err != nil {
			t.Fatal(err)
		}
		if a.CountsFailures() == nil && tracing() != before+4 {
			t.Errorf("%d links to tracepoints, %d before: this test sees nothing", tracing(), before)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if n := tracing(); n != before {
			t.Errorf("%d links to tracepoints after closing, %d before", n, before)
		}
		if _, err := a.Counters(); !errors.Is(err, aggregator.ErrClosed) {
			t.Errorf("counters after closing: %v", err)
		}
	})
}

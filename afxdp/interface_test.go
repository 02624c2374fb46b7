// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// A failed query for an interface does not mean that there is none.
func TestFailedLookupIsNoAbsence(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	s := open(t, ns, pool, Config{Interface: "a", BindTimeout: time.Second})
	for name, call := range map[string]func() error{
		"OpenAll":     func() error { _, err := OpenAll("a", GroupConfig{Match: MatchUDP(1)}); return err },
		"ListenUDP":   func() error { _, err := ListenUDP("a", netip.MustParseAddrPort("10.0.0.1:1")); return err },
		"Open":        func() error { _, err := Open(pool, Config{Interface: "a"}); return err },
		"Attach":      func() error { _, err := Attach(AttachConfig{Interface: "a", Match: MatchUDP(1)}); return err },
		"Tune":        func() error { _, err := Tune(context.Background(), "a", Tuning{}); return err },
		"QueryDevice": func() error { _, err := QueryDevice("a"); return err },
		"QueueCounts": func() error { _, _, err := QueueCounts("a"); return err },
		"NewSocketFD": func() error { _, err := NewSocketFD("a"); return err },
		"NUMAOf":      func() error { _, err := NewUMEM(UMEMConfig{Frames: 1, NUMAOf: "a"}); return err },
		"the mode":    func() error { _, err := attachedMode(s.Info().Ifindex); return err },
		"awaitLink":   func() error { return awaitLink(context.Background(), s.Info().Ifindex) },
		"Reopen":      func() error { return s.Reopen(context.Background()) },
	} {
		refused(t, ns, name, unix.EMFILE, "afxdp: look up interface ", func() error {
			err := call()
			if errors.Is(err, ErrInterfaceGone) {
				t.Errorf("%s takes the interface for gone: %v", name, err)
			}
			return err
		}, socketOf(unix.AF_NETLINK, unix.EMFILE))
	}
	for name, call := range map[string]func() error{
		"by name":  func() error { _, err := interfaceByName("nosuch"); return err },
		"by index": func() error { _, err := interfaceByIndex(1 << 20); return err },
		"as link":  func() error { _, err := linkByIndex(1 << 20); return err },
	} {
		if err := ns.Do(call); !errors.Is(err, ErrInterfaceGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names of VLANs have a dot.
func TestNUMANodeOfAnyName(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Names: [2]string{"a.5", "..b"}})
	for _, name := range []string{"a.5", "..b"} {
		if err := ns.Do(func() error { _, err := numaNode(name); return err }); err != nil {
			t.Error(err)
		}
	}
}

// If Close cannot query or set its interface, it restores the rest when it is called again.
func TestTunedIsClosedAgain(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 4})
	before := readSettings(t, ns)
	tuned, err := tune(t, ns, Tuning{Queues: 2, DeferIRQs: 7})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, ns, "ask", unix.EMFILE, "afxdp: look up interface ", tuned.Close, socketOf(unix.AF_NETLINK, unix.EMFILE))
	refused(t, ns, "set", unix.EMFILE, "afxdp: undo the tuning of a: ", tuned.Close, refuse.Call{Number: unix.SYS_FSOPEN, Err: unix.EMFILE})
	want := before
	want.defers = "7"
	if diff := diffSettings(t, ns, want); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other, err := tune(t, ns, Tuning{Queues: 2}) // another process may set what was restored, even to the same value
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(tuned.Close(), tuned.Close()); err != nil {
		t.Error(err)
	}
	want.rx, want.tx, want.defers = 2, 2, before.defers
	if diff := diffSettings(t, ns, want); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if diff := diffSettings(t, ns, before); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Frames stay lent while it is not known whether their interface still exists.
func TestReclaimThatCannotAskKeepsFramesLent(t *testing.T) {
	n := newLeavingNet(t, 2, Config{RxFrames: -1})
	sent := n.sticks(t, 4)
	s := n.socks[0]
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	reclaim := func() error { _, err := s.Reclaim(); return err }
	refused(t, n.ns, "cause", unix.EMFILE, "afxdp: look up interface ", reclaim, socketOf(unix.AF_NETLINK, unix.EMFILE))
	refused(t, n.ns, "lent", ErrStillLent, "packets that were sent on queue 0", reclaim, socketOf(unix.AF_NETLINK, unix.EMFILE))
	if diff := cmp.Diff(Census{Free: 124, InFlight: 4}, s.UMEM().Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := n.ns.Delete("a"); err != nil {
		t.Fatal(err)
	}
	n.reclaims(t, 0, sent...)
}

// A name that the kernel does not accept for an interface is reported as such, and never used in a
// path.
func TestNUMANodeOfNoName(t *testing.T) {
	for _, name := range []string{".", "..", "a/b", "a\x00b"} {
		if _, err := numaNode(name); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

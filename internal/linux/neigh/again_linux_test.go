// SPDX-License-Identifier: Apache-2.0

package neigh

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// entry sets the neighbour table's entry of the far host.
func entry(t *testing.T, mac [6]byte, state int) {
	t.Helper()
	link := must(netlink.LinkByName("near"))(t)
	check(t, netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: far.Addr().AsSlice(), State: state,
		HardwareAddr: net.HardwareAddr(mac[:])}))
}

// hurry shortens the kernel's patience with neighbours.
func hurry(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{"delay_first_probe_time": "0", "retrans_time_ms": "20", "ucast_solicit": "1"} {
		check(t, os.WriteFile("/proc/sys/net/ipv4/neigh/near/"+name, []byte(value), 0))
	}
}

// finds asks again until the far host's present address is known.
func finds(t *testing.T, what string, doubt bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		hop, ok, err := Again("near", far.Addr(), &Table{}, doubt)
		check(t, err)
		if ok && hop.MAC == farMAC {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %+v, %v", what, hop, ok)
		}
	}
}

// A stale entry is used, and the kernel made to check it, so that a host is found again that has a
// new Ethernet address.
func TestStaleEntriesAreChecked(t *testing.T) {
	inNetwork(t, func() {
		hurry(t)
		old := [6]byte{2, 0, 0, 0, 0, 0x99}
		entry(t, old, unix.NUD_STALE)
		if hop, err := Resolve(t.Context(), "near", far.Addr()); err != nil || hop.MAC != old {
			t.Errorf("stale: %+v, %v, want it used", hop, err)
		}
		link := must(netlink.LinkByName("near"))(t)
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			_, state, err := new(Table).lookup(link.Attrs().Index, far.Addr())
			check(t, err)
			if state != unix.NUD_STALE {
				break
			}
			if time.Now().After(end) {
				t.Fatal("the kernel does not check the entry that Resolve has used")
			}
		}
		finds(t, "resolved once, stale", false)
		entry(t, old, unix.NUD_STALE)
		finds(t, "stale", false)
		check(t, netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: far.Addr().AsSlice()}))
		finds(t, "deleted", false)
		entry(t, old, unix.NUD_FAILED)
		finds(t, "failed", false)
		entry(t, old, unix.NUD_REACHABLE)
		finds(t, "in doubt", true)
	})
}

// What the administrator has decided is neither checked nor changed.
func TestPermanentEntriesStay(t *testing.T) {
	inNetwork(t, func() {
		hurry(t)
		own := [6]byte{2, 0, 0, 0, 0, 0x77}
		entry(t, own, unix.NUD_PERMANENT)
		for range 5 {
			if hop, ok, err := Again("near", far.Addr(), &Table{}, true); err != nil || !ok || hop.MAC != own {
				t.Fatalf("%+v, %v, %v", hop, ok, err)
			}
		}
		link := must(netlink.LinkByName("near"))(t)
		if _, state, err := new(Table).lookup(link.Attrs().Index, far.Addr()); err != nil || state != unix.NUD_PERMANENT {
			t.Errorf("state %#x, %v, want it permanent", state, err)
		}
	})
}

// Again does not wait for a host that is not there, and returns what Resolve returns otherwise.
func TestAgainErrors(t *testing.T) {
	inNetwork(t, func() {
		if hop, ok, err := Again("near", far.Addr().Next(), &Table{}, false); ok || err != nil {
			t.Errorf("no such host: %+v, %v, %v", hop, ok, err)
		}
		if _, _, err := Again("near", near.Addr(), &Table{}, false); !errors.Is(err, ErrLocal) {
			t.Errorf("own address: %v", err)
		}
		if _, _, err := Again("near", nowhere, &Table{}, false); !errors.Is(err, ErrNoRoute) {
			t.Errorf("no route: %v", err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// SetMatch replaces the Match of a program, also for later interfaces; an invalid one changes
// nothing.
func TestSetMatch(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchUDP(1)})
	sockets := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "b", XSKMap: a.XSKMap()})
	tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a", RxFrames: -1})
	// takes sends a packet to each of the ports 1 to 3, and reports whether that to one of them alone
	// arrives.
	takes := func(want uint16) bool {
		t.Helper()
		var descs []Desc
		for port := range uint16(3) {
			f, _ := tx.Pool().Alloc()
			n := copy(tx.UMEM().Bytes(f)[256:], udpPacket(false, false, port+1, nil))
			descs = append(descs, Desc{Frame: f, Off: 256, Len: uint32(n)})
		}
		if err := tx.Pool().Free(transmit(t, tx, descs)...); err != nil {
			t.Fatal(err)
		}
		got := make([]Desc, 4)
		var n int
		until(t, "a packet", func() (some bool) {
			var err error
			n, err = sockets.Receive(got)
			if err != nil {
				t.Fatal(err)
			}
			return n > 0
		})
		alone := n == 1 && binary.BigEndian.Uint16(sockets.UMEM().Packet(got[0])[36:]) == want
		if err := sockets.Release(got[:n]); err != nil {
			t.Fatal(err)
		}
		return alone
	}
	if !takes(1) {
		t.Error("the Match is not in use")
	}
	before := attachedID(t, ns)
	if err := a.SetMatch(MatchUDP(2)); err != nil {
		t.Fatal(err)
	}
	if !takes(2) || attachedID(t, ns) == before {
		t.Error("the Match was not replaced")
	}
	wantErr(t, a.SetMatch(Match{}), ErrConfig)
	if !takes(2) {
		t.Error("an invalid Match replaced a valid one")
	}
	if err := a.hook.link.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := a.SetMatch(MatchUDP(3)); err != nil {
		t.Errorf("while it is detached: %v", err)
	}
	if err := ns.Do(a.Reattach); err != nil || attachedID(t, ns) == 0 || !takes(3) {
		t.Errorf("after that: %v", err)
	}
	// While no program is on the interface, it is kept for the next Reattach.
	refused(t, ns, "reattach", unix.EMFILE, "", func() error { return errors.Join(a.hook.link.Detach(), a.Reattach()) },
		bpfCommand(unix.BPF_LINK_CREATE, unix.EMFILE))
	if on, err := a.AttachedTo(); on != 0 || err != nil {
		t.Errorf("after a Reattach that failed, the program is on interface %d, %v", on, err)
	}
	wantErr(t, a.SetMatch(Match{}), ErrConfig)
	if err := a.SetMatch(MatchUDP(1)); err != nil {
		t.Errorf("after a Reattach that failed: %v", err)
	}
	if err := ns.Do(a.Reattach); err != nil || !takes(1) {
		t.Errorf("the next Reattach does not use the Match: %v", err)
	}
	own := attach(t, ns, AttachConfig{Interface: "a", Program: passProgram(t)})
	wantErr(t, own.SetMatch(MatchUDP(1)), ErrConfig)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, a.SetMatch(MatchUDP(1)), net.ErrClosed)
}

// A process that has given up the privilege to load programs attaches its former one again.
func TestReattachWithoutPrivileges(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchUDP(1)})
	before := attachedID(t, ns)
	if err := a.hook.link.Detach(); err != nil {
		t.Fatal(err)
	}
	if on, err := a.AttachedTo(); on != 0 || err != nil {
		t.Errorf("a detached program is on interface %d, %v", on, err)
	}
	refused(t, ns, "reattach", nil, "", a.Reattach, bpfCommand(unix.BPF_PROG_LOAD, unix.EPERM))
	if now := attachedID(t, ns); now != before {
		t.Errorf("program %d is on the interface, want %d", now, before)
	}
	if on, err := a.AttachedTo(); on != a.index || on == 0 || err != nil {
		t.Errorf("the program is on interface %d, %v, want %d", on, err, a.index)
	}
	// Without a former one, it is refused.
	refused(t, ns, "attach", ErrPermission, "CAP_BPF", func() error {
		_, err := Attach(AttachConfig{Interface: "a", Match: MatchUDP(1)})
		return err
	}, bpfCommand(unix.BPF_PROG_LOAD, unix.EPERM))
}

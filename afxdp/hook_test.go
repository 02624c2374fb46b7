// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

// A socket in zero-copy mode keeps a program on its interface, whatever programs are attached and
// detached meanwhile, and the interface is restored afterwards.
func TestProgramForZeroCopy(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	var index int
	program := func() (id uint32) {
		t.Helper()
		if err := ns.Do(func() error { id = attachedProgram(index); return nil }); err != nil {
			t.Fatal(err)
		}
		return id
	}
	var h [2]*hook
	use := func(i int) {
		t.Helper()
		err := ns.Do(func() error {
			ifi, err := net.InterfaceByName("b")
			if err != nil {
				return err
			}
			id, err := sys.ThreadNamespaceID()
			if err != nil {
				return err
			}
			index = ifi.Index
			h[i], err = useHook(hookID{id, index})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	use(0)
	pass := program()
	if pass == 0 {
		t.Fatal("no program on the interface")
	}
	use(1)
	// An Attachment takes its place, and works.
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	if p := program(); p == 0 || p == pass {
		t.Errorf("program %d is attached, want another one than %d", p, pass)
	}
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	b := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: at.XSKMap()})
	transmit(t, a, newPackets(t, a, 0, 10, 60))
	if diff := cmp.Diff(upTo(0, 10), receive(t, b, 10)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A second one is refused as usual, and the first may close before the sockets: from then on
	// packets go to the kernel's stack.
	err := ns.Do(func() error { _, err := Attach(AttachConfig{Interface: "b", Match: MatchAll()}); return err })
	wantErr(t, err, ErrProgramAttached)
	if err := at.Close(); err != nil {
		t.Fatal(err)
	}
	if program() == 0 {
		t.Error("the Attachment took the program along that the sockets need")
	}
	transmit(t, a, newPackets(t, a, 10, 10, 60))
	if ev, err := b.Poll(EventRx, 50*time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b after the Attachment was closed, %v", ev, err)
	}
	for i, want := range []bool{true, false} {
		if err := h[i].releaseHook(); err != nil {
			t.Fatal(err)
		}
		if got := program() != 0; got != want {
			t.Errorf("after %d of 2 sockets were closed there is a program: %v, want %v", i+1, got, want)
		}
	}
	// With an Attachment there is no program to add or remove.
	at = attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	own := program()
	use(0)
	if err := h[0].releaseHook(); err != nil {
		t.Fatal(err)
	}
	if p := program(); p != own {
		t.Errorf("program %d is attached, want %d", p, own)
	}
	// The interface may be deleted first.
	use(0)
	if err := ns.Delete("b"); err != nil {
		t.Fatal(err)
	}
	if err := at.Close(); err != nil {
		t.Error(err)
	}
	if err := h[0].releaseHook(); err != nil {
		t.Error(err)
	}
}

// Later sockets or an Attachment ignore a hook whose link another process has detached.
func TestDetachedHookIsReplaced(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	use := func() (h *hook) {
		t.Helper()
		err := ns.Do(func() error {
			ifi, err := net.InterfaceByName("b")
			if err != nil {
				return err
			}
			id, err := sys.ThreadNamespaceID()
			if err != nil {
				return err
			}
			h, err = useHook(hookID{id, ifi.Index})
			return err
		})
		if err != nil || attachedID(t, ns) == 0 {
			t.Fatalf("program %d, %v", attachedID(t, ns), err)
		}
		return h
	}
	first := use()
	refused(t, ns, "share", nil, "", func() error { // if it cannot be queried, it is assumed to work
		h, err := useHook(first.id)
		if h != first {
			t.Errorf("hook %p, want that of the first socket, %p", h, first)
		}
		return errors.Join(err, h.releaseHook())
	}, bpfCommand(unix.BPF_OBJ_GET_INFO_BY_FD, unix.EDOM))
	if err := first.link.Detach(); err != nil {
		t.Fatal(err)
	}
	second := use()
	if err := errors.Join(first.releaseHook(), second.link.Detach()); err != nil {
		t.Fatal(err)
	}
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll(), Mode: AttachNative})
	if err := errors.Join(second.releaseHook(), at.Close()); err != nil {
		t.Fatal(err)
	}
	if id := attachedID(t, ns); id != 0 || len(hooks.of) != 0 {
		t.Errorf("program %d is still there, and hooks %v", id, hooks.of)
	}
}

// Sockets from before another process detached the link also have a program when an Attachment
// comes and goes again.
func TestSocketsKeepAProgramAfterReattach(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	var h *hook
	err := ns.Do(func() (err error) {
		if h, err = useHook(at.hook.id); err != nil {
			return err
		}
		return errors.Join(at.hook.link.Detach(), at.Reattach(), at.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	if attachedID(t, ns) == 0 {
		t.Error("there is no program for the socket")
	}
	if err := h.releaseHook(); err != nil {
		t.Fatal(err)
	}
	if id := attachedID(t, ns); id != 0 || len(hooks.of) != 0 {
		t.Errorf("program %d is still there, and hooks %v", id, hooks.of)
	}
}

// So do they if the program that was to stay could not be loaded, for example without descriptors,
// and Reattach was called again.
func TestSocketsKeepAProgramAfterAFailedReattach(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	for _, command := range []uint32{unix.BPF_PROG_LOAD, unix.BPF_LINK_UPDATE} {
		at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
		var h *hook
		err := ns.Do(func() (err error) { h, err = useHook(at.hook.id); return err })
		if err != nil {
			t.Fatal(err)
		}
		refused(t, ns, "first Reattach", unix.EMFILE, "afxdp: detach from b: ", at.Reattach, bpfCommand(command, unix.EMFILE))
		if err := ns.Do(func() error { return errors.Join(at.Reattach(), at.Close()) }); err != nil {
			t.Fatal(err)
		}
		if attachedID(t, ns) == 0 {
			t.Errorf("command %d: there is no program for the socket", command)
		}
		if err := h.releaseHook(); err != nil {
			t.Fatal(err)
		}
		if id := attachedID(t, ns); id != 0 || len(hooks.of) != 0 {
			t.Errorf("command %d: program %d is still there, and hooks %v", command, id, hooks.of)
		}
	}
}

// A hook that is empty, because no program could be loaded for its socket, serves the next socket,
// and is closed after both with the program that it has got.
func TestEmptyHookIsUsedAgain(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	before := refuse.CountDescriptors(t)
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	id := at.hook.id
	use := func() (h *hook) {
		t.Helper()
		if err := ns.Do(func() (err error) { h, err = useHook(id); return err }); err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := use()
	refused(t, ns, "close", unix.EMFILE, "afxdp: ", at.Close, bpfCommand(unix.BPF_PROG_LOAD, unix.EMFILE))
	if id := attachedID(t, ns); id != 0 {
		t.Fatalf("program %d is still there", id)
	}
	if second := use(); second != first || attachedID(t, ns) == 0 {
		t.Errorf("program %d, and another hook: %v", attachedID(t, ns), second != first)
	}
	if err := first.releaseHook(); err != nil || attachedID(t, ns) == 0 {
		t.Errorf("there is no program for the other socket: %v", err)
	}
	if err := first.releaseHook(); err != nil {
		t.Error(err)
	}
	if id := attachedID(t, ns); id != 0 || len(hooks.of) != 0 {
		t.Errorf("program %d is still there, and hooks %v", id, hooks.of)
	}
	if after := refuse.CountDescriptors(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestDetachMeetsErrors(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	var id hookID
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("b")
		if err == nil {
			id.ifindex = ifi.Index
			id.ns, err = sys.ThreadNamespaceID()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	use := func() (h *hook) {
		t.Helper()
		if err := ns.Do(func() (err error) { h, err = useHook(id); return err }); err != nil {
			t.Fatal(err)
		}
		return h
	}
	use1 := func() error { _, err := useHook(id); return err }
	refused(t, ns, "load", unix.EDOM, "afxdp: load XDP program: ", use1, bpfCommand(unix.BPF_PROG_LOAD, unix.EDOM))
	refused(t, ns, "attach", unix.EDOM, "afxdp: attach the program that zero-copy mode needs: ", use1, bpfCommand(unix.BPF_LINK_CREATE, unix.EDOM))
	// Another process may have done what this one may not do.
	for _, c := range []refuse.Call{
		bpfCommand(unix.BPF_PROG_LOAD, unix.EPERM), bpfCommand(unix.BPF_LINK_CREATE, unix.EPERM),
		bpfCommand(unix.BPF_LINK_CREATE, unix.EBUSY), bpfCommand(unix.BPF_LINK_CREATE, unix.EEXIST),
	} {
		refused(t, ns, "another process", nil, "", func() error {
			h, err := useHook(id)
			if h != nil {
				t.Errorf("call %v: hook %+v", c, h)
			}
			return err
		}, c)
	}
	foreign := passProgram(t)
	before := refuse.CountDescriptors(t)
	err = ns.Do(func() error {
		refuse.Exhaust(t, "afxdp: ", func() (func() error, error) {
			h, err := useHook(id)
			return h.releaseHook, err
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	// There is a program that this process did not attach by a hook.
	var l link.Link
	err = ns.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: foreign, Interface: id.ifindex})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if h := use(); h != nil {
		t.Errorf("hook %+v beside another program", h)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	// The passing program cannot replace the Attachment's.
	for name, c := range map[string]struct {
		call  refuse.Call
		want  error
		words string
	}{
		"load":              {bpfCommand(unix.BPF_PROG_LOAD, unix.EDOM), unix.EDOM, "afxdp: detach from b: afxdp: load XDP program: "},
		"update":            {bpfCommand(unix.BPF_LINK_UPDATE, unix.EDOM), unix.EDOM, "afxdp: detach from b: afxdp: put a program that passes packets on in the place of the detached one: "},
		"interface is gone": {bpfCommand(unix.BPF_LINK_UPDATE, unix.ENOLINK), nil, ""},
	} {
		a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
		h := use()
		refused(t, ns, name, c.want, c.words, a.Close, c.call)
		if p := attachedID(t, ns); p != 0 {
			t.Errorf("%s: program %d is on the interface", name, p)
		}
		if err := a.Close(); err != nil {
			t.Errorf("%s: closed again: %v", name, err)
		}
		if err := h.releaseHook(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nor can the Attachment's replace the passing one, which stays.
	h := use()
	passing := attachedID(t, ns)
	refused(t, ns, "update", unix.EDOM, "afxdp: attach to b in native mode: ", func() error {
		_, err := Attach(AttachConfig{Interface: "b", Match: MatchAll(), Mode: AttachNative})
		return err
	}, bpfCommand(unix.BPF_LINK_UPDATE, unix.EDOM))
	if p := attachedID(t, ns); p != passing {
		t.Errorf("program %d is on the interface, want %d", p, passing)
	}
	if err := h.releaseHook(); err != nil {
		t.Fatal(err)
	}
	// Reattach reports programs that it cannot remove.
	a := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	h = use()
	refused(t, ns, "reattach", unix.EDOM, "afxdp: detach from b: ", a.Reattach, bpfCommand(unix.BPF_LINK_UPDATE, unix.EDOM))
	if err := errors.Join(h.releaseHook(), a.Close()); err != nil {
		t.Error(err)
	}
	if err := a.Reattach(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("reattach after Close: %v", err)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	if len(hooks.of) != 0 {
		t.Errorf("hooks %v", slices.Collect(maps.Keys(hooks.of)))
	}
}

//go:build linux

package afxdp

import (
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/sys"
	"github.com/libra-ina/libra/internal/testbed"
)

// A socket in zero-copy mode keeps a program on its interface, whatever program
// comes and goes meanwhile, and the interface is left as it was.
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
	at := attach(t, ns, AttachConfig{Interface: "b"})
	if p := program(); p == 0 || p == pass {
		t.Errorf("program %d is attached, want another one than %d", p, pass)
	}
	a := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	b := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: at.XSKMap()})
	transmit(t, a, newPackets(t, a, 0, 10, 60))
	if diff := cmp.Diff(upTo(0, 10), receive(t, b, 10)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A second one is refused as ever, and the first may go before the sockets:
	// from then on packets are the stack's.
	err := ns.Do(func() error { _, err := Attach(AttachConfig{Interface: "b"}); return err })
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
		if err := h[i].leave(); err != nil {
			t.Fatal(err)
		}
		if got := program() != 0; got != want {
			t.Errorf("after %d of 2 sockets were closed there is a program: %v, want %v", i+1, got, want)
		}
	}
	// With an Attachment there is nothing to add, nor to take off.
	at = attach(t, ns, AttachConfig{Interface: "b"})
	own := program()
	use(0)
	if err := h[0].leave(); err != nil {
		t.Fatal(err)
	}
	if p := program(); p != own {
		t.Errorf("program %d is attached, want %d", p, own)
	}
	// The interface may go first.
	use(0)
	if err := ns.Delete("b"); err != nil {
		t.Fatal(err)
	}
	if err := at.Close(); err != nil {
		t.Error(err)
	}
	if err := h[0].leave(); err != nil {
		t.Error(err)
	}
}

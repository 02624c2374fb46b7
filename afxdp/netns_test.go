// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/refuse"
)

func TestNamespaceOfASocket(t *testing.T) {
	ns, other := newNet(t, testbed.VethConfig{}), newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{})
	var n *namespace
	if err := ns.Do(func() error { n = u.enterNamespace(); return nil }); err != nil {
		t.Fatal(err)
	}
	before := refuse.CountDescriptors(t)
	err := ns.Do(func() error {
		if again := u.enterNamespace(); again != n || n.refs != 2 || n.rememberedID() != ns.ID() {
			t.Errorf("%v, want %v again, with two users", again, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
	// Without /proc there is no namespace, and calls run where the caller is.
	refused(t, ns, "no /proc", nil, "", func() error {
		none := u.enterNamespace()
		if none != nil || none.rememberedID() != (sys.NamespaceID{}) {
			t.Errorf("namespace %v", none)
		}
		ran := false
		err := none.runInside(func() error { ran = true; return nil })
		if !ran {
			t.Error("the function does not run")
		}
		return errors.Join(err, u.leaveNamespace(none))
	}, refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	ran := func() error { t.Error("the function runs"); return errors.New("ran") }
	refused(t, other, "no privilege", ErrPermission, "afxdp: the interface's namespace: afxdp: missing privilege: CAP_SYS_ADMIN", func() error { return n.runInside(ran) },
		refuse.Call{Number: unix.SYS_SETNS, Err: unix.EPERM})
	refused(t, other, "no namespace", unix.EDOM, "afxdp: the interface's namespace: ", func() error { return n.runInside(ran) },
		refuse.Call{Number: unix.SYS_OPENAT, Err: unix.EDOM})
	refused(t, other, "no namespace", nil, "", func() error {
		err := n.runInside(ran)
		if err == nil || errors.Is(err, ErrPermission) {
			t.Errorf("error %v, want one that is not ErrPermission", err)
		}
		return nil
	}, refuse.Call{Number: unix.SYS_SETNS, Err: unix.EDOM})
	// fn's error is not treated as an error of entering.
	for _, ns := range []*testbed.Namespace{ns, other} {
		if err := ns.Do(func() error { return n.runInside(func() error { return unix.EPERM }) }); !errors.Is(err, unix.EPERM) || errors.Is(err, ErrPermission) {
			t.Errorf("error %v, want EPERM alone", err)
		}
	}
	for _, left := range []int{1, 0} {
		u.mu.Lock()
		err := u.leaveNamespace(n)
		u.mu.Unlock()
		if err != nil || n.refs != left || (u.spaces[n.ID()] == n) != (left == 1) {
			t.Errorf("%d users, %v, want %d", n.refs, err, left)
		}
	}
	if err := u.leaveNamespace(n); err != nil || n.refs != 0 {
		t.Errorf("left once more: %v, %d users", err, n.refs)
	}
	if err := n.Close(); err == nil {
		t.Error("the last user left the namespace open")
	}
}

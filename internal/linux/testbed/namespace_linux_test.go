// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces")
	}
	ns, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func interfaces(t *testing.T) map[string]net.Flags {
	t.Helper()
	list, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	flags := make(map[string]net.Flags)
	for _, i := range list {
		flags[i.Name] = i.Flags
	}
	return flags
}

func TestDoEntersAndReturns(t *testing.T) {
	ns := newNamespace(t)
	outside := interfaces(t)
	boom := errors.New("boom")
	err := ns.Do(func() error {
		inside := interfaces(t)
		if len(inside) != 1 || inside["lo"]&net.FlagUp == 0 {
			t.Errorf("interfaces of a new namespace: %v", inside)
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("Do returned %v", err)
	}
	if got := interfaces(t); len(got) != len(outside) {
		t.Errorf("after Do the thread sees %v, before %v", got, outside)
	}
}

func TestVethBetweenNamespaces(t *testing.T) {
	one, two := newNamespace(t), newNamespace(t)
	if err := one.Veth(VethConfig{Names: [2]string{"left", "right"}, Peer: two, MTU: 4000}); err != nil {
		t.Fatal(err)
	}
	for ns, name := range map[*Namespace]string{one: "left", two: "right"} {
		err := ns.Do(func() error {
			ifi, err := net.InterfaceByName(name)
			if err == nil && (ifi.MTU != 4000 || ifi.Flags&net.FlagUp == 0) {
				t.Errorf("%s: MTU %d, flags %v", name, ifi.MTU, ifi.Flags)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if err := one.SetUp("left", false); err != nil {
		t.Fatal(err)
	}
	if running, err := two.Running("right"); running || err != nil {
		t.Errorf("right is running without its peer: %v, %v", running, err)
	}
	if err := two.Delete("right"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Running("left"); err == nil {
		t.Error("left survived its peer")
	}
	if err := one.Veth(VethConfig{Names: [2]string{"lo", "x"}}); !errors.Is(err, unix.EEXIST) {
		t.Errorf("name that is taken: %v", err)
	}
}

// An MTU below the minimum of IPv6 deletes an interface's IPv6 settings; a larger one creates new
// settings.
func TestInterfacesStayWithoutIPv6(t *testing.T) {
	ns := newNamespace(t)
	if err := ns.Veth(VethConfig{}); err != nil {
		t.Fatal(err)
	}
	for _, mtu := range []string{"128", "1500"} {
		for _, name := range []string{"a", "b"} {
			if err := ns.SetDeviceAttr(name, "mtu", mtu); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("a")
		if err != nil {
			return err
		}
		addresses, err := ifi.Addrs()
		if len(addresses) > 0 {
			t.Errorf("the interface has addresses %v", addresses)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSetDeviceAttr(t *testing.T) {
	ns := newNamespace(t)
	if err := ns.Veth(VethConfig{}); err != nil {
		t.Fatal(err)
	}
	if err := ns.SetDeviceAttr("a", "mtu", "1400"); err != nil {
		t.Fatal(err)
	}
	err := ns.Do(func() error {
		ifi, err := net.InterfaceByName("a")
		if err == nil && ifi.MTU != 1400 {
			t.Errorf("MTU %d, want 1400", ifi.MTU)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.SetDeviceAttr("../a", "mtu", "1400"); err == nil {
		t.Error("a path was taken for a name")
	}
	// veth has its own receive work only with an XDP program.
	if err := ns.SetThreadedNAPI("a", true); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("threaded NAPI without NAPI: %v", err)
	}
}

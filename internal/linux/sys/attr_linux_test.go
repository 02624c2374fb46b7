// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAttr reads and writes in a namespace that /sys does not show.
func TestAttr(t *testing.T) {
	n := newNamespace(t)
	before, _ := os.ReadFile("/sys/class/net/lo/mtu") // empty if sysfs is not mounted
	mtu := "1400"
	if string(before) == "1400\n" {
		mtu = "1500"
	}
	err := n.Do(func() error {
		if err := WriteAttr("lo", "mtu", mtu); err != nil {
			return err
		}
		got, err := ReadAttr("lo", "mtu")
		if got != mtu {
			t.Errorf("MTU %q", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := os.ReadFile("/sys/class/net/lo/mtu"); string(after) != string(before) {
		t.Errorf("the attribute of another namespace was written: %q, %q before", after, before)
	}
	if _, err := ReadAttr("lo", "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such attribute: %v", err)
	}
	for _, bad := range [][2]string{{"../lo", "mtu"}, {"lo", "../lo/mtu"}, {"", "lo/mtu"}, {"lo/x", "mtu"}, {"lo", ""}} {
		f, err := OpenAttr(bad[0], bad[1], unix.O_RDONLY)
		want := fmt.Sprintf("attribute %q of interface %q: not a name in sysfs", bad[1], bad[0])
		if err == nil {
			f.Close()
		}
		if err == nil || err.Error() != want {
			t.Errorf("%q for names: %v, want %q", bad, err, want)
		}
	}
}

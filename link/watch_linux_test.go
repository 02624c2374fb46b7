// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A link that watches a descriptor does not wait while that is readable, also through wrappers.
func TestUDPWatches(t *testing.T) {
	inner, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := WithFaults(inner, Faults{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if !Watch(l, fd) {
		t.Fatal("the link cannot watch")
	}
	start := time.Now()
	if err := l.Wait(time.Hour); err != nil || time.Since(start) > time.Minute {
		t.Errorf("it waited %v, %v", time.Since(start), err)
	}
	if _, err := unix.Read(fd, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if !waitsOnce(t, l) {
		t.Error("it does not wait although nothing is readable")
	}
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if !Watch(l, -1) || !waitsOnce(t, l) {
		t.Error("it does not wait although nothing is watched")
	}
}

// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/local"
)

// Wherever the system refuses a socket, the error names it, and earlier sockets are closed.
func TestOpenWithoutDescriptors(t *testing.T) {
	config := local.Config{Dim: 1, Hot: []uint64{3}, Workers: 2}
	first, err := local.Open(t.Context(), config) // some descriptors stay open for good
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	before := descriptors(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	set := func(n uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer set(limit.Cur)
	refused := 0
	for n := uint64(before); n < uint64(before)+100; n++ {
		set(n)
		c, err := local.Open(t.Context(), config)
		set(limit.Cur)
		if err == nil {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			break
		}
		if refused++; c != nil || !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("with %d descriptors: %v, %v", n, c, err)
		}
		if left := descriptors(t); left != before {
			t.Fatalf("with %d descriptors: %d are left open, want %d", n, left, before)
		}
	}
	if refused < 4 { // a socket for the aggregator, the server and each worker
		t.Errorf("%d limits were too low", refused)
	}
}

// descriptors counts the open descriptors of this process.
func descriptors(tb testing.TB) int {
	tb.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(names) - 1 // that of the directory itself
}

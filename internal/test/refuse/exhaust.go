// SPDX-License-Identifier: Apache-2.0

//go:build linux

package refuse

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// CountDescriptors counts the process's open descriptors, plus one.
func CountDescriptors(tb testing.TB) int {
	tb.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(all)
}

// Exhaust calls make with more and more free descriptors until it succeeds. Before that it has to
// fail, each time with the kernel's error after the prefix, and leave none open.
func Exhaust(tb testing.TB, prefix string, make func() (undo func() error, err error)) {
	tb.Helper()
	undo, err := make() // descriptors that are opened only once are open now
	if err == nil {
		err = undo()
	}
	if err != nil {
		tb.Fatal(err)
	}
	before := CountDescriptors(tb)
	for free := range 100 {
		err := withDescriptors(free, func() (err error) { undo, err = make(); return err })
		switch {
		case err == nil && free == 0:
			tb.Error("succeeds without a descriptor: this test sees nothing")
		case err == nil:
			if err := undo(); err != nil {
				tb.Errorf("with %d descriptors: %v", free, err)
			}
		case !isExhaustion(err) || !strings.HasPrefix(err.Error(), prefix):
			tb.Errorf("with %d descriptors: %v", free, err)
		}
		if now := CountDescriptors(tb); now != before {
			tb.Fatalf("with %d free descriptors, %v: %d are open afterwards, %d before", free, err, now, before)
		}
		if err == nil {
			return
		}
	}
	tb.Fatal("fails with any number of descriptors")
}

// isExhaustion also accepts an error of package ebpf, which probes the kernel after some failures
// with its own maps. If these fail, too, it reports that the kernel is too old.
func isExhaustion(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, ebpf.ErrNotSupported)
}

// withDescriptors runs fn with this number of free descriptors.
func withDescriptors(free int, fn func() error) (err error) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		return err
	}
	limit := old
	limit.Cur = min(limit.Cur, 1024)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	var taken []int
	for {
		fd, err := unix.Dup(0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	if len(taken) < free {
		return fmt.Errorf("%d descriptors can be taken, want %d", len(taken), free)
	}
	for _, fd := range taken[:free] {
		_ = unix.Close(fd)
	}
	err = fn()
	for _, fd := range taken[free:] {
		_ = unix.Close(fd)
	}
	return err
}

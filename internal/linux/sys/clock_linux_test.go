// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inNamespace tells the test that it runs in a time namespace of its own, which prints the clock.
const inNamespace = "LIBRA_TEST_TIME_NAMESPACE"

// The clock is the same in a time namespace, as that of BPF programs is.
func TestKernelClockInATimeNamespace(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		now, _ := KernelClock()
		fmt.Printf("clock %d\n", int64(now))
		return
	}
	if _, err := os.Stat("/proc/self/ns/time"); err != nil || os.Geteuid() != 0 {
		t.Skip("time namespaces need root and Linux 5.6")
	}
	for _, offset := range []string{"5", "-1", "100000"} {
		cmd := exec.CommandContext(t.Context(), "unshare", "--time", "--monotonic", offset, "--fork", os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		before, _ := KernelClock()
		out, err := cmd.Output()
		after, _ := KernelClock()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var ns int64
		if _, err := fmt.Sscanf(string(out), "clock %d", &ns); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got := time.Duration(ns); got < before || got > after {
			t.Errorf("offset %s: %v, want a time from %v to %v", offset, got, before, after)
		}
	}
}

// An offset is read as the kernel writes it; where there is none, it is 0.
func TestOffsetIn(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"monotonic           0         0\nboottime            0         0\n": 0,
		"boottime            7         0\nmonotonic          -2 500000000\n": -1500 * time.Millisecond,
		"": 0, "monotonic x": 0,
	} {
		if got := offsetIn(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// The clock is that of bpf_ktime_get_ns, with which times of programs are compared.
func TestKernelClock(t *testing.T) {
	monotonic := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Sec)*time.Second + time.Duration(ts.Nsec)
	}
	before := monotonic()
	got, ok := KernelClock()
	if after := monotonic(); !ok || got < before || got > after {
		t.Errorf("%v, %v; want a time from %v to %v", got, ok, before, after)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package refuse

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("refusing system calls needs root")
	}
	mine := errors.New("what the function returns")
	err := Run(func() error {
		for _, c := range []struct {
			name string
			call func() error
			want error
		}{
			{"by number", func() error { _, err := unix.Getpgid(0); return err }, unix.ENOTSUP},
			{"by arguments", func() error { _, err := unix.Getpriority(unix.PRIO_PROCESS, 7); return err }, unix.ENODATA},
			{"first argument differs", func() error { _, err := unix.Getpriority(unix.PRIO_USER, 7); return err }, unix.ESRCH},
			{"second argument differs", func() error { _, err := unix.Getpriority(unix.PRIO_PROCESS, 0); return err }, nil},
			{"not refused", func() error { _, err := unix.Getsid(0); return err }, nil},
		} {
			if err := c.call(); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
		return mine
	},
		Call{Number: unix.SYS_GETPGID, Err: unix.ENOTSUP},
		Call{Number: unix.SYS_GETPRIORITY, Args: map[int]uint32{0: unix.PRIO_PROCESS, 1: 7}, Err: unix.ENODATA})
	if !errors.Is(err, mine) {
		t.Error(err)
	}
	if _, err := unix.Getpgid(0); err != nil {
		t.Errorf("afterwards, on another thread: %v", err)
	}
}

func TestExhaust(t *testing.T) {
	calls := 0
	Exhaust(t, "open ", func() (func() error, error) {
		calls++
		a, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		b, err := os.Open(os.DevNull)
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		return func() error { return errors.Join(a.Close(), b.Close()) }, nil
	})
	if calls != 4 {
		t.Errorf("%d calls, want 4: one first, then with 0 to 2 descriptors", calls)
	}
}

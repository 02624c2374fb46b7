// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// BusyPoll makes system calls of a socket run the driver's receive work (NAPI) in the calling
// thread instead of waiting for interrupts: application and driver then share one core without
// context switches. Each Kick makes such a call, and so does each Receive that finds nothing; Poll
// repeats it for Time before it sleeps. It has an effect only if the interface's interrupts are
// also deferred, see [Tune]; or, in a shell:
//
//	echo 2      > /sys/class/net/eth0/napi_defer_hard_irqs
//	echo 200000 > /sys/class/net/eth0/gro_flush_timeout
//
// Needs CAP_NET_ADMIN.
type BusyPoll struct {
	// Time is how long Poll polls the driver before it sleeps (also SO_BUSY_POLL, which affects
	// blocking calls only). Default 20µs.
	Time time.Duration
	// Budget is the largest number of packets that one call processes (SO_BUSY_POLL_BUDGET).
	// Default 64.
	Budget int
}

const defaultBusyPoll = 20 * time.Microsecond

// duration is how long Poll polls the driver.
func (b *BusyPoll) duration() time.Duration {
	if b == nil {
		return 0
	}
	if b.Time == 0 {
		return defaultBusyPoll
	}
	return b.Time
}

func (b *BusyPoll) checkLimits() error {
	if b.Time < 0 || b.Time > time.Second || b.Budget < 0 || b.Budget > 1<<16-1 {
		return fmt.Errorf("%w: Config.BusyPoll time %v, budget %d", ErrConfig, b.Time, b.Budget)
	}
	return nil
}

// applyTo sets the options on a socket.
func (b *BusyPoll) applyTo(fd int) error {
	micros, budget := max(1, int(b.duration().Microseconds())), 64
	if b.Budget > 0 {
		budget = b.Budget
	}
	for _, o := range []struct {
		name       string
		opt, value int
	}{
		{"SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, 1},
		{"SO_BUSY_POLL", unix.SO_BUSY_POLL, micros},
		{"SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, budget},
	} {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.opt, o.value)
		switch {
		case errors.Is(err, unix.ENOPROTOOPT):
			return &FeatureError{Feature: "preferred busy polling (" + o.name + ")", Since: oldestKernel, Err: err}
		case errors.Is(err, unix.EPERM):
			return fmt.Errorf("%w: %s needs CAP_NET_ADMIN: %w", ErrPermission, o.name, err)
		case err != nil:
			return fmt.Errorf("afxdp: set %s to %d: %w", o.name, o.value, err)
		}
	}
	return nil
}

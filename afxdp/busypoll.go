//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// BusyPoll makes the system calls of a socket run the driver's receive work
// (NAPI) in the calling thread instead of waiting for interrupts: application
// and driver then share one core without context switches. For it to take
// effect the interface's interrupts must be deferred, too:
//
//	echo 2      > /sys/class/net/eth0/napi_defer_hard_irqs
//	echo 200000 > /sys/class/net/eth0/gro_flush_timeout
//
// Linux 5.11; needs CAP_NET_ADMIN.
type BusyPoll struct {
	// Time is how long a call polls the driver (SO_BUSY_POLL). Default 20µs.
	Time time.Duration
	// Budget is how many packets one call processes (SO_BUSY_POLL_BUDGET).
	// Default 64.
	Budget int
}

func (b *BusyPoll) check() error {
	if b.Time < 0 || b.Time > time.Second || b.Budget < 0 || b.Budget > 1<<16-1 {
		return fmt.Errorf("%w: Config.BusyPoll time %v, budget %d", ErrConfig, b.Time, b.Budget)
	}
	return nil
}

// apply sets the options on a socket.
func (b *BusyPoll) apply(fd int) error {
	micros, budget := 20, 64
	if b.Time > 0 {
		micros = max(1, int(b.Time.Microseconds()))
	}
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
			return &FeatureError{Feature: "preferred busy polling (" + o.name + ")", Since: "5.11", Err: err}
		case errors.Is(err, unix.EPERM):
			return fmt.Errorf("%w: %s needs CAP_NET_ADMIN: %w", ErrPermission, o.name, err)
		case err != nil:
			return fmt.Errorf("afxdp: set %s to %d: %w", o.name, o.value, err)
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// Tuning describes the settings of an interface for sockets. Zero fields leave a setting unchanged.
type Tuning struct {
	// Queues is how many receive and how many transmit queues are in use (ethtool -L). With fewer
	// queues, the remaining ones get the packets of the others. Sockets must not be open on queues
	// that are removed; Tune waits up to two seconds for the kernel to release those of closed
	// sockets.
	Queues int
	// Spread is the number of receive queues, the first ones, over which the card spreads packets
	// by their hash (ethtool -X, "equal"): the queues after them are left for steered packets, and
	// the first ones suffice for sockets that are not on all queues.
	Spread int
	// Steer selects the packets that the card puts into certain queues, before it spreads the
	// others.
	Steer []Steering
	// DeferIRQs and FlushTimeout keep interrupts off while a program polls: the driver requests
	// none until after DeferIRQs rounds without packets, each FlushTimeout apart
	// (napi_defer_hard_irqs, gro_flush_timeout). BusyPoll needs both, for example 2 and 200 µs;
	// without a program that polls, packets wait that long.
	DeferIRQs    int
	FlushTimeout time.Duration
	// ThreadedNAPI receives packets in kernel threads, which share a CPU with the program, instead
	// of in interrupts, which preempt it.
	ThreadedNAPI bool
}

// Tuned is an interface that [Tune] has set. Its methods are not safe for concurrent use.
type Tuned struct {
	ifindex int
	home    *sys.Namespace
	undo    []func(ifname string) error // in the order of the changes
}

// Tune changes the settings of an interface, and waits until its link is up again if a setting made
// the driver reset it, or until ctx is done. If it fails, the interface is unchanged. Close
// restores the old settings; a killed process leaves the new ones.
//
// A value that the driver does not support is a [FeatureError], more queues than it has an
// ErrNoQueue, fewer than are needed an ErrFewQueues. It needs CAP_NET_ADMIN and CAP_SYS_ADMIN. The
// calling thread's network namespace must be the interface's.
func Tune(ctx context.Context, ifname string, cfg Tuning) (_ *Tuned, err error) {
	switch {
	case cfg.Queues < 0:
		return nil, fmt.Errorf("%w: Tuning.Queues %d is negative; 0 leaves it as it is", ErrConfig, cfg.Queues)
	case cfg.Spread < 0:
		return nil, fmt.Errorf("%w: Tuning.Spread %d is negative; 0 leaves it as it is", ErrConfig, cfg.Spread)
	case cfg.DeferIRQs < 0:
		return nil, fmt.Errorf("%w: Tuning.DeferIRQs %d is negative; 0 leaves it as it is", ErrConfig, cfg.DeferIRQs)
	case cfg.DeferIRQs > math.MaxInt32:
		return nil, fmt.Errorf("%w: Tuning.DeferIRQs %d is more than the kernel accepts; the largest value is %d",
			ErrConfig, cfg.DeferIRQs, math.MaxInt32)
	case cfg.FlushTimeout < 0:
		return nil, fmt.Errorf("%w: Tuning.FlushTimeout %v is negative; 0 leaves it as it is", ErrConfig, cfg.FlushTimeout)
	}
	ifi, err := interfaceByName(ifname)
	if err != nil {
		return nil, err
	}
	l, err := linkByIndex(ifi.Index)
	if err != nil {
		return nil, err
	}
	t := &Tuned{ifindex: l.Attrs().Index}
	if t.home, err = sys.ThreadNamespace(); err != nil {
		return nil, fmt.Errorf("afxdp: tune %s: %w", ifname, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.home.Do(t.restore), t.home.Close())
			t.home = nil
		}
	}()
	if cfg.Queues > 0 {
		if err := t.setQueues(ifname, cfg.Queues); err != nil {
			return nil, err
		}
	}
	if cfg.Spread > 0 {
		if err := t.spreadOver(ifname, cfg.Spread); err != nil {
			return nil, err
		}
	}
	if len(cfg.Steer) > 0 {
		if err := t.steerFlows(ifname, cfg.Steer); err != nil {
			return nil, err
		}
	}
	for _, a := range []struct {
		name  string
		value int64
	}{
		{"napi_defer_hard_irqs", int64(cfg.DeferIRQs)},
		{"gro_flush_timeout", cfg.FlushTimeout.Nanoseconds()},
		{"threaded", map[bool]int64{true: 1}[cfg.ThreadedNAPI]},
	} {
		if a.value == 0 {
			continue
		}
		if err := t.setAttr(ifname, a.name, strconv.FormatInt(a.value, 10)); err != nil {
			return nil, err
		}
	}
	if l.Attrs().OperState != netlink.OperUp {
		return t, nil // and was not before
	}
	return t, awaitLink(ctx, t.ifindex)
}

// setQueues sets the channels of the kind that the driver has.
func (t *Tuned) setQueues(ifname string, n int) error {
	before, err := getChannels(ifname)
	if errors.Is(err, errors.ErrUnsupported) {
		return &FeatureError{Feature: "Tuning.Queues on " + ifname, Needs: "a driver that reports its queues",
			Remedy: "leave it out", Err: err}
	}
	if err != nil {
		return fmt.Errorf("afxdp: queues of %s: %w", ifname, err)
	}
	want, most := before, before.MaxCombined
	if most > 0 {
		want.Combined = uint32(n)
	} else {
		want.Rx, want.Tx, most = uint32(n), uint32(n), min(before.MaxRx, before.MaxTx)
	}
	if n > int(most) {
		return fmt.Errorf("%w: %s has at most %d queues, Tuning.Queues is %d", ErrNoQueue, ifname, most, n)
	}
	if want == before {
		return nil
	}
	if err := resize(ifname, want); errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: set %d queues of %s, which has %d to receive and %d to send: a socket is on a queue that would go, or the attached XDP program needs them; close the sockets, or tune before Attach: %w",
			ErrFewQueues, n, ifname, before.Rx+before.Combined, before.Tx+before.Combined, err)
	} else if err != nil {
		return explainTune(ifname, fmt.Sprintf("set %d queues", n), err)
	}
	t.undo = append(t.undo, func(ifname string) error {
		now, err := getChannels(ifname)
		if err != nil || now != want {
			return err // another process's choice stays
		}
		return resize(ifname, before)
	})
	return nil
}

// resize sets the channels. The kernel does not remove a queue with a socket
// (ethtool_set_channels), and releases that of a closed one some time after Close.
func resize(ifname string, ch ethtoolChannels) error {
	return persist(2*time.Second, func() error { return setChannels(ifname, ch) }, func(err error) bool {
		return errors.Is(err, unix.EINVAL)
	})
}

// setAttr sets a file of /sys/class/net.
func (t *Tuned) setAttr(ifname, attr, value string) error {
	before, err := sys.ReadAttr(ifname, attr)
	if errors.Is(err, unix.ENOENT) {
		return &FeatureError{Feature: attr + " of " + ifname, Since: oldestKernel, Err: err}
	}
	if err != nil {
		return explainTune(ifname, "read "+attr, err)
	}
	if before == value {
		return nil
	}
	if err := sys.WriteAttr(ifname, attr, value); err != nil {
		return explainTune(ifname, "set "+attr+" to "+value, err)
	}
	t.undo = append(t.undo, func(ifname string) error {
		now, err := sys.ReadAttr(ifname, attr)
		if err != nil || now != value {
			return err
		}
		return sys.WriteAttr(ifname, attr, before)
	})
	return nil
}

func explainTune(ifname, what string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: to %s of %s needs CAP_NET_ADMIN and CAP_SYS_ADMIN: %w", ErrPermission, what, ifname, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return &FeatureError{Feature: fmt.Sprintf("to %s of %s", what, ifname), Needs: "a driver that has it",
			Remedy: "leave it out", Err: err}
	}
	return fmt.Errorf("afxdp: %s of %s: %w", what, ifname, err)
}

func awaitLink(ctx context.Context, ifindex int) error {
	for {
		l, err := linkByIndex(ifindex)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s does not come up again: %w", ErrLinkDown, l.Attrs().Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Close restores the interface's settings, except those that another process has changed since.
// First close sockets on queues that it removes: it waits up to two seconds for the kernel to
// release these. If the interface is gone there is nothing to do. It may be called more than once:
// after an error, it retries the failed part.
func (t *Tuned) Close() error {
	if t.home == nil {
		return nil
	}
	if err := t.home.Do(t.restore); err != nil {
		return err
	}
	home := t.home
	t.home = nil
	return home.Close()
}

// restore reverts the changes, in the interface's namespace, and forgets those that it has
// reverted.
func (t *Tuned) restore() error {
	ifi, err := interfaceByIndex(t.ifindex)
	if errors.Is(err, ErrInterfaceGone) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for i := len(t.undo) - 1; i >= 0; i-- {
		if err := t.undo[i](ifi.Name); err != nil {
			errs = append(errs, fmt.Errorf("afxdp: undo the tuning of %s: %w", ifi.Name, err))
		} else {
			t.undo = slices.Delete(t.undo, i, i+1)
		}
	}
	return errors.Join(errs...)
}

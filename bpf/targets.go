// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/netdev"
)

// watchTargets starts to watch which interfaces support XDP transmission, in the caller's
// namespace. The caller holds the lock.
func (a *Aggregator) watchTargets() error {
	if a.watch != nil {
		return nil
	}
	watch, err := netdev.WatchXDP()
	if errors.Is(err, netdev.ErrUnknown) {
		return nil
	}
	if err != nil {
		return err
	}
	a.watch, a.watched = watch, make(chan struct{})
	go func() {
		defer close(a.watched)
		for watch.Wait() == nil {
			a.updateTargets()
		}
	}()
	return nil
}

// updateTargets updates all interfaces that have routes.
func (a *Aggregator) updateTargets() {
	a.mu.Lock()
	defer a.mu.Unlock()
	indices := make(map[uint32]struct{})
	for _, index := range a.routes {
		indices[index] = struct{}{}
	}
	for index := range indices {
		// An interface that cannot be updated is no target, so its frames pass; nor is any once the
		// aggregator is closed.
		_ = a.updateTarget(index)
	}
}

// updateTarget allows or forbids the program to send frames out of an interface. After an error it
// is forbidden. The caller holds the lock.
func (a *Aggregator) updateTarget(index uint32) error {
	// The kernel looks up the interface in the caller's namespace.
	return a.home.runInside(func() error {
		wanted, err := a.isTarget(index)
		if wanted && err == nil {
			err = a.objects.Ports.Put(index, index)
		}
		if wanted && err == nil {
			return nil
		}
		return errors.Join(err, absent(a.objects.Ports.Delete(index)))
	})
}

// isTarget returns whether frames may be sent out of an interface of the caller's namespace.
func (a *Aggregator) isTarget(index uint32) (wanted bool, err error) {
	if _, withheld := a.withheld[index]; withheld {
		return false, nil
	}
	for _, at := range a.routes {
		wanted = wanted || at == index
	}
	if !wanted {
		return false, nil
	}
	wanted, err = netdev.TransmitsXDP(int(index))
	switch {
	case errors.Is(err, netdev.ErrUnknown):
		return true, nil
	case errors.Is(err, unix.ENODEV): // it was removed
		return false, nil
	}
	return wanted, err
}

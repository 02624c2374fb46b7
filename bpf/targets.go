// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/netdev"
)

// watchTargets begins to follow which interfaces can transmit for XDP, in the
// caller's namespace. The caller holds the lock.
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

// updateTargets looks at all interfaces to which there are routes.
func (a *Aggregator) updateTargets() {
	a.mu.Lock()
	defer a.mu.Unlock()
	indices := make(map[uint32]struct{})
	for _, index := range a.routes {
		indices[index] = struct{}{}
	}
	for index := range indices {
		// An interface that cannot be a target is none: its frames pass. Nor
		// can any once the aggregator is closed.
		_ = a.updateTarget(index)
	}
}

// updateTarget makes the program send frames out of an interface, or not. After
// an error it does not. The caller holds the lock.
func (a *Aggregator) updateTarget(index uint32) error {
	// The kernel looks an interface up in the caller's namespace.
	return a.home.do(func() error {
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

// isTarget tells whether frames may be sent out of an interface of the caller's
// namespace.
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

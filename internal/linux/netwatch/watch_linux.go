// SPDX-License-Identifier: Apache-2.0

package netwatch

import (
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

const (
	// The time between two looks is at least minInterval, and twice what the last one took, so that
	// frequent changes do not keep a CPU busy; but no longer than pause, because a look that had to
	// wait for the kernel's lock says nothing about the next one.
	minInterval = 20 * time.Millisecond
	pause       = 200 * time.Millisecond
	// maxInterval is the time between looks without notifications.
	maxInterval = time.Second
)

// Watch calls a function after changes.
type Watch struct {
	namespace *sys.Namespace
	changes   *nl.NetlinkSocket
	wake      chan struct{} // has room for one signal
	stop      chan struct{}
	ends      sync.WaitGroup
	close     sync.Once
}

// Of is what a Watch is notified of.
type Of []uint

var (
	// Interfaces are links, and their addresses.
	Interfaces = Of{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR}
	// Everything is interfaces, routes and neighbours.
	Everything = append(Of{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEIGH}, Interfaces...)
)

// Start begins to watch the network namespace of the calling thread. It calls look on a thread of
// its own in that namespace: soon after a change, at least once a second, and never concurrently.
func Start(of Of, look func()) (*Watch, error) {
	w := &Watch{wake: make(chan struct{}, 1), stop: make(chan struct{})}
	var err error
	if w.namespace, err = sys.ThreadNamespace(); err != nil {
		return nil, fmt.Errorf("watch the network: %w", err)
	}
	if w.changes, err = nl.Subscribe(unix.NETLINK_ROUTE, of...); err != nil {
		w.namespace.Close()
		return nil, fmt.Errorf("watch the network: %w", err)
	}
	w.ends.Go(w.listen)
	w.ends.Go(func() {
		// It fails only for want of a privilege over a namespace that the caller is in.
		_ = w.namespace.Run(func() error { w.looks(look); return nil })
	})
	return w, nil
}

// Look makes the function be called soon.
func (w *Watch) Look() {
	select {
	case w.wake <- struct{}{}:
	default: // that is already due
	}
}

// Close ends the watch, after a call in progress. It may be called more than once.
func (w *Watch) Close() {
	w.close.Do(func() {
		close(w.stop)
		w.changes.Close()
		w.ends.Wait()
		w.namespace.Close()
	})
}

// listen turns notifications into looks. What they say is not read: a look sees the present state,
// also when notifications were lost.
func (w *Watch) listen() {
	for {
		_, _, err := w.changes.Receive()
		if err != nil { // some were lost, or the socket is closed
			select {
			case <-w.stop:
				return
			case <-time.After(minInterval):
			}
		}
		w.Look()
	}
}

func (w *Watch) looks(look func()) {
	tick := time.NewTicker(maxInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-w.wake:
		case <-tick.C:
		}
		began := time.Now()
		look()
		select {
		case <-w.stop:
			return
		case <-time.After(min(max(minInterval, 2*time.Since(began)), pause)):
		}
	}
}

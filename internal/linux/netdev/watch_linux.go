// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch is notified of changes of interfaces' XDP features, in the network namespace in which it
// was opened.
type Watch struct{ socket *nl.NetlinkSocket }

// WatchXDP opens a watch. The error wraps [ErrUnknown] if the kernel is too old.
func WatchXDP() (*Watch, error) {
	id, err := xdpGroup()
	if err != nil {
		return nil, err
	}
	// nl.Subscribe accepts only numbers up to 32.
	s, err := nl.Subscribe(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("watch XDP features: %w", err)
	}
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, int(id)); err != nil {
		s.Close()
		return nil, fmt.Errorf("watch XDP features: %w", err)
	}
	return &Watch{s}, nil
}

// Wait returns when something may have changed, or with an error after the watch is closed. The
// first call may return at once.
func (w *Watch) Wait() error {
	_, _, err := w.socket.Receive()
	if errors.Is(err, unix.ENOBUFS) { // some changes were missed
		return nil
	}
	return err
}

// Close makes Wait return.
func (w *Watch) Close() { w.socket.Close() }

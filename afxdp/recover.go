// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Recover waits until a socket whose method returned ErrLinkDown or ErrInterfaceGone can work
// again, or until ctx is done. If the kernel kept the socket bound while the link was down, it is
// unchanged and queued packets are sent at the next Kick. Otherwise Recover reopens it, see Reopen;
// the XDP program is gone with the interface, see [Attachment.Reattach].
func (s *Socket) Recover(ctx context.Context) error {
	if err := s.enterHalves(both); err != nil {
		return err
	}
	defer s.leaveHalves(both)
	for {
		err := s.linkState()
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrInterfaceGone):
			return s.reopen(ctx)
		}
		if err := s.pauseBefore(ctx, err); err != nil {
			return err
		}
	}
}

// Reopen replaces the kernel's socket by a new one on the same memory, queue and map, after the
// interface was reset or replaced by one of the same name, or renamed. It waits until the interface
// exists and is up, or until ctx is done. Frames that were in flight are returned by Completed;
// whether they were sent is unknown. Packets in the RX ring are lost.
//
// If it fails, the socket has no rings: methods find nothing to do, Kick and Poll return
// ErrInterfaceGone, and Reopen may be called again. Frames in flight stay so until that succeeds,
// or until Close and Reclaim; after zero-copy mode, so do frames in the state "filling".
//
// The calling thread may be in a different network namespace than the interface; then it needs
// CAP_SYS_ADMIN.
func (s *Socket) Reopen(ctx context.Context) error {
	if err := s.enterHalves(both); err != nil {
		return err
	}
	defer s.leaveHalves(both)
	return s.reopen(ctx)
}

func (s *Socket) reopen(ctx context.Context) (err error) {
	if s.cfg.File != nil {
		return fmt.Errorf("%w: close it and open one that its creator passes anew", ErrPassedFD)
	}
	// The program that the driver needs stays: detaching and attaching it again may reset the
	// interface.
	program := s.hook
	s.hook = nil
	defer func() { err = errors.Join(err, program.releaseHook()) }()
	if err := errors.Join(s.removeFromMap(), s.detach()); err != nil {
		return err
	}
	s.holdKicks = 0
	for {
		err := s.home.runInside(func() error { return s.replaceKernelSocket(ctx) })
		if err == nil {
			break
		}
		if !errors.Is(err, ErrInterfaceGone) && !errors.Is(err, ErrLinkDown) {
			return err
		}
		if err := s.pauseBefore(ctx, err); err != nil {
			return err
		}
	}
	for _, f := range s.spare {
		s.pool.pushFrame(f)
	}
	s.spare = nil
	if !s.continues {
		s.reclaimed = s.lent(s.reclaimed[:0], s.flying)
	}
	return nil
}

// replaceKernelSocket connects a new kernel socket to the current interface of that name. When it
// succeeds, no other descriptor gives access to the frames of the previous socket.
func (s *Socket) replaceKernelSocket(ctx context.Context) error {
	ifi, err := s.presentInterface()
	switch {
	case err != nil:
		return err
	case ifi.Flags&net.FlagUp == 0:
		return fmt.Errorf("%w: %s", ErrLinkDown, s.cfg.Interface)
	}
	if s.left != nil && s.left.ifindex != ifi.Index {
		// Being bound to this interface says nothing about the previous one.
		limited, cancel := context.WithTimeout(ctx, s.cfg.BindTimeout)
		defer cancel()
		if err := s.awaitDevice(limited); err != nil {
			return err
		}
	}
	if s.former != nil && s.former.id.ifindex != ifi.Index {
		limited, cancel := context.WithTimeout(ctx, s.cfg.BindTimeout)
		defer cancel()
		if err := s.awaitLanding(limited); err != nil {
			return err
		}
	}
	err = s.connect()
	if err == nil {
		s.left = nil
	} else if s.left == nil {
		err = errors.Join(err, s.takeBack())
	}
	return err
}

// pauseBefore waits briefly for the interface to change. cause is the reason.
func (s *Socket) pauseBefore(ctx context.Context, cause error) error {
	if s.closing() {
		return net.ErrClosed
	}
	select {
	case <-ctx.Done():
		return errors.Join(cause, ctx.Err())
	case <-time.After(10 * time.Millisecond):
		return nil
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// queueID identifies a queue. Indexes of interfaces are unique in their namespace.
type queueID struct {
	ns             sys.NamespaceID
	ifindex, queue int
}

// A departure is the remaining effect of a closed socket in zero-copy mode: a queue whose device
// may still read and write the frames that it was lent. The kernel stops the queue in a workqueue,
// some time after the socket is closed (xp_put_pool and xp_clear_dev in net/xdp/xsk_buff_pool.c).
//
// It first takes the queue's pool of frames from the device and then releases the queue. So the
// device has released the frames as soon as any socket was bound to that queue, or if the queue no
// longer exists.
type departure struct {
	queueID
	home *namespace
	umem *UMEM
	gone atomic.Bool
}

// departures are those that may not be over, of all UMEMs: the next socket on the queue may be on
// another UMEM.
var departures struct {
	sync.Mutex
	of map[queueID][]*departure
}

// depart records that the socket of a queue is about to be closed.
func depart(q queueID, home *namespace, umem *UMEM) *departure {
	d := &departure{queueID: q, home: home, umem: umem}
	departures.Lock()
	defer departures.Unlock()
	if departures.of == nil {
		departures.of = make(map[queueID][]*departure)
	}
	departures.of[q] = append(departures.of[q], d)
	return d
}

// departed records that the device has released all frames of a queue's former sockets.
func departed(q queueID) {
	departures.Lock()
	defer departures.Unlock()
	for _, d := range departures.of[q] {
		d.gone.Store(true)
	}
	delete(departures.of, q)
}

// forgetDepartures removes those of a UMEM that is being closed.
func forgetDepartures(u *UMEM) {
	departures.Lock()
	defer departures.Unlock()
	for q, list := range departures.of {
		if list = slices.DeleteFunc(list, func(d *departure) bool { return d.umem == u }); len(list) == 0 {
			delete(departures.of, q)
		} else {
			departures.of[q] = list
		}
	}
}

// awaitRelease waits until the device has released the frames. A nil departure is over.
func (d *departure) awaitRelease(ctx context.Context) error {
	if d == nil {
		return nil
	}
	for wait := nextWait(0); !d.gone.Load(); wait = nextWait(wait) {
		var free bool
		err := d.home.runInside(func() (err error) {
			free, err = isFree(d.ifindex, d.queue)
			return err
		})
		if err != nil {
			return fmt.Errorf("%w: queue %d of interface %d: %w", ErrStillLent, d.queue, d.ifindex, err)
		}
		if free {
			departed(d.queueID)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: queue %d of interface %d is not free yet, or another process has taken it: %w",
				ErrStillLent, d.queue, d.ifindex, ctx.Err())
		case <-time.After(wait):
		}
	}
	return nil
}

// isFree reports whether a queue has no socket and no device that still works for a former one, or
// does not exist. It briefly binds its own socket in copy mode, for which the driver does nothing.
func isFree(ifindex, queue int) (free bool, err error) {
	fd, err := newSocket()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd))) }()
	size := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return false, os.NewSyscallError("mmap", err)
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(mem))) }()
	if err := registerUMEM(fd, mem, uint32(size), 0, 0, 0); err != nil {
		return false, os.NewSyscallError("setsockopt XDP_UMEM_REG", err)
	}
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 1); err != nil {
			return false, os.NewSyscallError("setsockopt of a ring", err)
		}
	}
	err = unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(ifindex), QueueID: uint32(queue)})
	switch {
	case err == nil, errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL):
		return true, nil // EINVAL: the interface has fewer queues now
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENETDOWN):
		return false, nil
	}
	return false, os.NewSyscallError("bind", err)
}

// awaitDevice waits until the device has released the frames that were lent through the previous
// kernel socket.
func (s *Socket) awaitDevice(ctx context.Context) error {
	if err := s.left.awaitRelease(ctx); err != nil {
		return err
	}
	s.left = nil
	return nil
}

// takeBack returns the frames of a fill ring that no longer exists to the pool, once the device has
// released them. It waits for that as long as for a busy queue. On error they stay lent.
func (s *Socket) takeBack() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.BindTimeout)
	defer cancel()
	if err := s.awaitDevice(ctx); err != nil {
		return err
	}
	for _, f := range s.lent(nil, s.filling) {
		s.pool.pushFrame(f)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package link

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/telemetry"
)

// arrivals are the times that the kernel adds to the datagrams of a receive batch.
type arrivals struct {
	draw    telemetry.Draw
	control []stampMessage
}

// stampMessage is a control message with a time (SCM_TIMESTAMPNS).
type stampMessage struct {
	header unix.Cmsghdr
	at     unix.Timespec
}

// stampDatagrams asks the kernel for the times.
func (s *mmsgSocket) stampDatagrams(draw telemetry.Draw) bool {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) != nil {
		return false
	}
	s.arrivals = &arrivals{draw: draw, control: make([]stampMessage, batchSize)}
	return true
}

// makeRoom prepares the first n messages of a batch: the kernel has changed their lengths.
func (a *arrivals) makeRoom(m *messages, n int) {
	for i := range n {
		h := &m.headers[i].Hdr
		h.Control = (*byte)(unsafe.Pointer(&a.control[i]))
		h.SetControllen(int(unsafe.Sizeof(a.control[i])))
	}
}

// noteArrivals sets when drawn packets of a batch arrived. The kernel stamps them with the wall clock.
// The difference of the clocks is read now, so that a clock that was set at an earlier time does no harm.
func (a *arrivals) noteArrivals(m *messages, pkts []Packet) {
	var between time.Duration // from the wall clock to CLOCK_MONOTONIC
	for i := range pkts {
		c := &a.control[i]
		if !draws(a.draw, pkts[i].Payload) || uintptr(m.headers[i].Hdr.Controllen) < unsafe.Sizeof(*c) ||
			c.header.Level != unix.SOL_SOCKET || c.header.Type != unix.SCM_TIMESTAMPNS {
			continue
		}
		if between == 0 {
			now, ok := sys.KernelClock()
			if !ok {
				return
			}
			between = now - time.Duration(time.Now().UnixNano())
		}
		pkts[i].Arrived = time.Duration(c.at.Nano()) + between
	}
}

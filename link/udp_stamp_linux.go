// SPDX-License-Identifier: Apache-2.0

package link

import (
	"math"
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

// noteArrivals sets when drawn packets of a batch arrived. The kernel stamps them with the wall
// clock. The difference of the clocks is read now, so that a clock that was set at an earlier time
// does no harm.
func (a *arrivals) noteArrivals(m *messages, pkts []Packet) {
	var between time.Duration // from the wall clock to CLOCK_MONOTONIC
	for i := range pkts {
		c := &a.control[i]
		if !draws(a.draw, pkts[i].Payload) || uintptr(m.headers[i].Hdr.Controllen) < unsafe.Sizeof(*c) ||
			c.header.Level != unix.SOL_SOCKET || c.header.Type != unix.SCM_TIMESTAMPNS {
			continue
		}
		if between == 0 {
			var ok bool
			if between, ok = wallToKernel(sys.KernelClock); !ok {
				return
			}
		}
		pkts[i].Arrived = time.Duration(c.at.Nano()) + between
	}
}

// closeReadings is the time within which two clocks are read if the thread runs on meanwhile, and
// clockReadings how often they are read for that.
const (
	closeReadings = 5 * time.Microsecond
	clockReadings = 4
)

// wallToKernel returns what has to be added to the wall clock for the kernel's clock. A thread that
// is put off between its readings would be wrong by as much, so the closest pair of a few counts.
func wallToKernel(kernel func() (time.Duration, bool)) (between time.Duration, ok bool) {
	least := time.Duration(math.MaxInt64)
	for range clockReadings {
		before := time.Now()
		now, ok := kernel()
		if !ok {
			return 0, false
		}
		after := time.Now()
		wall := time.Duration(before.UnixNano())
		// Each reading has two clocks, between which the thread may be put off as well.
		took := max(after.Sub(before), time.Duration(after.UnixNano())-wall)
		if took < least {
			least, between = took, now-wall-took/2
		}
		if least < closeReadings {
			break
		}
	}
	return between, true
}

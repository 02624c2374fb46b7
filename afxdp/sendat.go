// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// launchAhead is the longest time before its launch at which a packet is passed to the device:
// devices distinguish times only within about a second.
const launchAhead = 100 * time.Millisecond

// SendAt sends packets not before a time: it is Send and Kick, and returns the result of Send.
//
// If the device keeps the time (Info.LaunchTime), SendAt passes the packets to it some 100 ms
// before, with TxMeta.RequestLaunchTime, for which it sets WithTxMeta in descs; other requests in
// the metadata of descriptors that already have the flag stay. Otherwise it sleeps until that time:
// packets are then sent when the system's timer has woken the program, some 50 µs late and more on
// a busy machine.
//
// After a Wake it returns 0 without an error and has sent nothing.
func (s *Socket) SendAt(at time.Time, descs []Desc) (int, error) {
	clock := s.clock.Load()
	ahead := time.Duration(0)
	if clock != nil {
		ahead = launchAhead
	}
	for wait := time.Until(at) - ahead; wait > 0; wait = time.Until(at) - ahead {
		ev, err := s.Poll(0, wait)
		if err != nil || ev&EventWake != 0 {
			return 0, err
		}
	}
	if clock != nil {
		if err := s.requestLaunch(clock, at, descs); err != nil {
			return 0, err
		}
	}
	n, err := s.Send(descs)
	return n, errors.Join(err, s.Kick())
}

// requestLaunch sets the launch time in the metadata of each packet.
func (s *Socket) requestLaunch(clock *deviceClock, at time.Time, descs []Desc) error {
	ns, err := clock.readingAt(at)
	if err != nil {
		return err
	}
	first := true // of a packet's fragments
	for i := range descs {
		d := &descs[i]
		if first {
			if int(d.Off) < TxMetaSize || int(d.Frame) >= len(s.state) || int(d.Off) > s.umem.cfg.FrameSize {
				return &DescError{Desc: *d, Reason: "no room for the TX metadata before the packet"}
			}
			m := s.umem.TxMeta(*d)
			if d.Flags&WithTxMeta == 0 {
				m.Reset()
				d.Flags |= WithTxMeta
			}
			m.RequestLaunchTime(ns)
		}
		first = d.Flags&More == 0
	}
	return nil
}

// deviceClock is the clock of a network card.
type deviceClock struct {
	file *os.File // nil in tests
	now  func() (int64, error)
}

// openClock opens the clock with a number of Device.Clock.
func openClock(number int) (*deviceClock, error) {
	f, err := os.Open(fmt.Sprintf("/dev/ptp%d", number))
	if err != nil {
		return nil, err
	}
	id := int32(^f.Fd()<<3 | 3) // FD_TO_CLOCKID of linux/posix-timers.h
	return &deviceClock{file: f, now: func() (int64, error) {
		var ts unix.Timespec
		if err := unix.ClockGettime(id, &ts); err != nil {
			return 0, fmt.Errorf("afxdp: read %s: %w", f.Name(), err)
		}
		return ts.Nano(), nil
	}}, nil
}

// readingAt returns the reading of the device's clock at a time, assuming that both clocks run
// alike until then.
func (c *deviceClock) readingAt(t time.Time) (uint64, error) {
	before := time.Now()
	device, err := c.now()
	if err != nil {
		return 0, err
	}
	// The clock was read about half-way between the two readings of ours.
	return uint64(device + int64(t.Sub(before.Add(time.Since(before)/2)))), nil
}

func (c *deviceClock) closeClock() error {
	if c == nil || c.file == nil {
		return nil
	}
	return c.file.Close()
}

// useClock opens the device's clock if the device keeps launch times.
func (s *Socket) useClock(info *Info) {
	if !info.ZeroCopy || !info.Device.TxLaunchTime || info.Device.Clock < 0 || s.umem.txMeta == 0 {
		return
	}
	clock, err := openClock(info.Device.Clock)
	if err != nil {
		return // Info reports it
	}
	info.LaunchTime = true
	s.clock.Store(clock)
}

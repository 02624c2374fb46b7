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

// launchAhead is how long before its time a packet is handed to the device at most:
// devices tell times apart within a second or so only.
const launchAhead = 100 * time.Millisecond

// SendAt sends packets not before a time: it is Send and Kick, and returns what Send does.
//
// Where the device keeps the time (Info.LaunchTime), SendAt hands the packets over some 100 ms
// before, with TxMeta.RequestLaunchTime, for which it sets WithTxMeta in descs; other requests
// in the metadata of descriptors that have the flag stay. Elsewhere it
// sleeps until the time has come: then packets leave when the system's timer has woken
// the program, some 50 µs late and more on a busy machine.
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

// requestLaunch asks for a time in the metadata of each packet.
func (s *Socket) requestLaunch(clock *deviceClock, at time.Time, descs []Desc) error {
	ns, err := clock.at(at)
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

// openClock opens the clock with a number, as Device.Clock has it.
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

// at returns what the device's clock shows at a time, as far as both run alike until then.
func (c *deviceClock) at(t time.Time) (uint64, error) {
	before := time.Now()
	device, err := c.now()
	if err != nil {
		return 0, err
	}
	// The clock was read about half-way.
	return uint64(device + int64(t.Sub(before.Add(time.Since(before)/2)))), nil
}

func (c *deviceClock) close() error {
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
		return // Info tells
	}
	info.LaunchTime = true
	s.clock.Store(clock)
}

// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"time"

	"github.com/libra-ina/libra/link"
)

// pace is how long frames gather in the queue before they are written. Waking up for every batch
// would take time from the link on a busy machine.
const pace = time.Millisecond

// pump passes frames to put until the link is closed or stop is, and then the frames still in the
// queue. It calls idle when the queue is empty.
func pump(l *link.Listener, stop <-chan struct{}, put func(link.TappedFrame) error, idle func() error) error {
	defer l.Close()
	for {
		if err := drain(l, stop, put); err != nil {
			return err
		}
		if err := idle(); err != nil {
			return err
		}
		select {
		case <-l.More():
			time.Sleep(pace)
			continue
		case <-l.Done():
		case <-stop:
			l.Close()
		}
		if err := drain(l, nil, put); err != nil {
			return err
		}
		return idle()
	}
}

// drain empties the queue, unless stop is closed before.
func drain(l *link.Listener, stop <-chan struct{}, put func(link.TappedFrame) error) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		f, ok := l.Read()
		if !ok {
			return nil
		}
		if err := put(f); err != nil {
			return err
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// A queue that is never empty does not prevent the others from being received: while two have
// frames, they take turns.
func TestAFXDPQueuesTakeTurns(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 1, Queues: 2})
	h, sw := bed.Host(0), bed.Switch()
	l, frame := linkAndFrame(t, bed)
	const frames = 40
	// Frames sent from a queue at one end of the cable arrive in the same queue at the other.
	for queue := range 2 {
		if err := sw.Do(func() error { return sendFrom(h.PortName, queue, slices.Repeat([][]byte{frame}, frames/2)) }); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func() (n [2]int) {
		for i, s := range l.socks {
			c, err := s.Rings()
			if err != nil {
				t.Fatal(err)
			}
			n[i] = c.Rx
		}
		return n
	}
	n := waiting()
	for end := time.Now().Add(eventLimit); n[0]+n[1] < frames; n = waiting() {
		if time.Now().After(end) {
			t.Fatalf("%v of %d frames have arrived", n, frames)
		}
		time.Sleep(time.Millisecond)
	}
	if n[0] != n[1] {
		t.Fatalf("the queues have %v frames", n)
	}

	pkts := make([]Packet, 1)
	last := -1
	for k := range frames {
		got, err := l.Receive(pkts)
		if got != 1 || err != nil {
			t.Fatalf("frame %d: %d, %v", k, got, err)
		}
		queue := int(pkts[0].Handle >> 16)
		if n[0] > 0 && n[1] > 0 && queue == last {
			t.Fatalf("frame %d comes from queue %d again, and the queues have %v", k, queue, n)
		}
		n[queue]--
		last = queue
	}
	if n != [2]int{} || l.Stats().Received != frames {
		t.Errorf("%v frames are left; %+v", n, l.Stats())
	}
}

// sendFrom sends frames from one transmit queue of an interface.
func sendFrom(iface string, queue int, frames [][]byte) (err error) {
	umem, err := afxdp.NewUMEM(afxdp.UMEMConfig{Frames: 128})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	pool, err := umem.NewPool(0)
	if err != nil {
		return err
	}
	s, err := afxdp.Open(pool, afxdp.Config{Interface: iface, Queue: queue, RxFrames: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var descs []afxdp.Desc
	for _, frame := range frames {
		f, ok := pool.Alloc()
		if !ok {
			return errors.New("no frame")
		}
		descs = append(descs, afxdp.Desc{Frame: f, Len: uint32(copy(umem.Bytes(f), frame))})
	}
	if n, err := s.Send(descs); n != len(descs) || err != nil {
		return fmt.Errorf("%d of %d frames sent: %w", n, len(descs), err)
	}
	done := make([]afxdp.Frame, len(descs))
	for sent := 0; sent < len(descs); {
		if err := s.Kick(); err != nil {
			return err
		}
		n, err := s.Completed(done)
		if err != nil {
			return err
		}
		sent += n
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"testing"
	"time"
)

// TestZeroCopyStarved lets a receiver run out of frames and then give back a few at a time. The
// kernel returns no frame that it was not lent, and the device writes into none. Known faulty
// drivers are expected to fail: as soon as one does not, BindAuto may use its zero-copy mode.
func TestZeroCopyStarved(t *testing.T) {
	a, b := zeroCopyNICs(t)
	at := attachNIC(t, b)
	from := newSoakEnd(t, Config{Interface: a, RxFrames: -1})
	const keep = soakFrames - 256
	to := newSoakEnd(t, Config{Interface: b, XSKMap: at.XSKMap(), RxFrames: soakFrames - keep})
	waitLink(t, b)
	receive := func(until func() bool) {
		for end := time.Now().Add(2 * time.Second); !until() && time.Now().Before(end); {
			to.receive()
		}
	}
	flow := func(packets int) {
		for want := to.moved + packets; to.moved < want; {
			before := to.moved
			from.send()
			receive(func() bool { return to.moved >= before+16 })
			if to.moved == before {
				return // the driver waits for a descriptor that the device is far from
			}
			to.lend(keep)
		}
	}
	for range 3 {
		flow(512 + 48) // twice around the rings, and on
		for range 40 {
			from.send()
			time.Sleep(time.Millisecond)
		}
		receive(func() bool { return to.umem.Census().Filling == 0 })
		for range 4 {
			to.lend(len(to.owned) - 20)
			from.send()
			from.send()
			before := to.moved
			receive(func() bool { return to.moved >= before+20 })
		}
		to.lend(keep)
	}
	for _, f := range to.owned {
		to.check(f)
	}
	st, err := to.s.Stats()
	if err != nil {
		t.Fatal(err)
	}
	driver := to.s.Info().Device.Driver
	t.Logf("%s: %d packets, %d times a frame that was not lent, %d without a packet, %d overwritten", driver, to.moved, st.BadDescs, to.foreign, len(to.spoiled))
	if wrong := st.BadDescs > 0 || to.foreign+len(to.spoiled) > 0; wrong != announcesTwice[driver] {
		t.Errorf("%s keeps to the frames that it was lent: %v", driver, !wrong)
	}
	from.account()
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Without launch times no packet is sent before its time, and late ones are sent at once, in order.
func TestSendAtIsNeverEarly(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	at := attach(t, ns, AttachConfig{Interface: "b", Match: MatchAll()})
	to := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: at.XSKMap()})
	from := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	if from.Info().LaunchTime {
		t.Error("veth keeps launch times")
	}
	for i, wait := range []time.Duration{30 * time.Millisecond, time.Millisecond, 0, -time.Second} {
		due := time.Now().Add(wait)
		n, err := from.SendAt(due, newPackets(t, from, uint64(4*i), 4, 100))
		if n != 4 || err != nil {
			t.Fatal(n, err)
		}
		if early := time.Until(due); early > 0 {
			t.Errorf("sent %v before the time", early)
		}
	}
	if diff := cmp.Diff(upTo(0, 16), receive(t, to, 16)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A device with launch times gets the packets early, with the time on its own clock.
func TestSendAtLeavesTheTimeToTheDevice(t *testing.T) {
	const device = 5_000_000_000_000 // ns: the device's clock stands still there
	s, k := newSim(t, simConfig{frames: 8, ring: 8, multi: true, txMeta: true})
	s.info.Store(&Info{ZeroCopy: true, LaunchTime: true, Device: Device{Known: true, TxLaunchTime: true, TxTimestamp: true}})
	s.clock.Store(&deviceClock{now: func() (int64, error) { return device, nil }})
	frames := make([]Frame, 4)
	s.Pool().AllocBatch(frames)
	descs := []Desc{
		{Frame: frames[0], Off: 64, Len: 100},
		{Frame: frames[1], Off: 64, Len: 100, Flags: WithTxMeta},
		{Frame: frames[2], Off: 64, Len: 100, Flags: More}, {Frame: frames[3], Off: 64, Len: 20},
	}
	for i := range descs {
		for j := range s.UMEM().TxMeta(descs[i]) {
			s.UMEM().TxMeta(descs[i])[j] = 0xff // the frame's earlier contents
		}
	}
	s.UMEM().TxMeta(descs[1]).Reset()
	s.UMEM().TxMeta(descs[1]).RequestTimestamp()
	due := time.Now().Add(60 * time.Millisecond)
	if n, err := s.SendAt(due, descs); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	handed := time.Now()
	if !handed.Before(due) || k.kicks == 0 {
		t.Errorf("handed over %v before the time, with %d kicks", due.Sub(handed), k.kicks)
	}
	for i, want := range []uint64{txMetaLaunchTime, txMetaLaunchTime | txMetaTimestamp, txMetaLaunchTime, 0} {
		d, ok := k.transmit()
		if !ok {
			t.Fatal("descriptor", i, "is missing")
		}
		if asks := d.Options&uint32(WithTxMeta) != 0; asks != (want != 0) {
			t.Errorf("descriptor %d has the options %#x", i, d.Options)
		}
		if want == 0 {
			continue
		}
		m := s.umem.mem[d.Addr-TxMetaSize:]
		if flags := binary.NativeEndian.Uint64(m); flags != want {
			t.Errorf("packet %d asks for %#x, want %#x", i, flags, want)
		}
		launch := int64(binary.NativeEndian.Uint64(m[16:])) - device
		if least := due.Sub(handed); launch < int64(least) || launch > int64(60*time.Millisecond) {
			t.Errorf("packet %d leaves in %v, want between %v and 60ms", i, time.Duration(launch), least)
		}
	}
}

func TestSendAtErrors(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8, txMeta: true})
	f, _ := s.Pool().Alloc()
	s.clock.Store(&deviceClock{now: func() (int64, error) { return 0, nil }})
	for _, d := range []Desc{{Frame: f, Off: TxMetaSize - 1, Len: 100}, {Frame: 8, Off: 64, Len: 100}, {Frame: f, Off: 4096, Len: 100}} {
		var refused *DescError
		if n, err := s.SendAt(time.Now(), []Desc{d}); n != 0 || !errors.As(err, &refused) {
			t.Errorf("%+v: %d, %v", d, n, err)
		}
	}
	s.clock.Store(&deviceClock{now: func() (int64, error) { return 0, unix.EIO }})
	if n, err := s.SendAt(time.Now(), []Desc{{Frame: f, Off: 64, Len: 100}}); n != 0 || !errors.Is(err, unix.EIO) {
		t.Error(n, err)
	}
	if _, ok := k.transmit(); ok {
		t.Error("something was sent")
	}
	if _, err := openClock(1 << 20); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
}

// Wake and Close end the wait, and nothing is sent.
func TestSendAtIsWoken(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	packets := newPackets(t, s, 0, 1, 100)
	for _, c := range []struct {
		end  func() error
		want error
	}{{func() error { s.Wake(); return nil }, nil}, {s.Close, net.ErrClosed}} {
		ended := make(chan error, 1)
		time.AfterFunc(20*time.Millisecond, func() { ended <- c.end() })
		n, err := s.SendAt(time.Now().Add(time.Hour), packets)
		if n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%d, %v, want %v", n, err, c.want)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

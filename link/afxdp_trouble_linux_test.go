// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// afxdpPair opens links between two hosts of a bed.
func afxdpPair(t *testing.T) (bed *testbed.Bed, links [2]Link, path Path) {
	t.Helper()
	bed = bedtest.New(t, testbed.Config{Hosts: 2, Queues: 2})
	for i := range links {
		h := bed.Host(i)
		if err := h.Do(func() (err error) {
			links[i], err = OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { links[i].Close() })
	}
	path, err := links[0].Path(t.Context(), links[1].Local())
	if err != nil {
		t.Fatal(err)
	}
	return bed, links, path
}

// TestAFXDPLinkDown takes the interface down under a link: that does not end the link, Stats has
// the reason, and the link works again when the interface does.
func TestAFXDPLinkDown(t *testing.T) {
	bed, links, path := afxdpPair(t)
	h := bed.Host(0)
	set := func(change func(netlink.Link) error) {
		t.Helper()
		if err := h.Do(func() error {
			l, err := netlink.LinkByName(h.Interface)
			if err != nil {
				return err
			}
			return change(l)
		}); err != nil {
			t.Fatal(err)
		}
	}
	b, ok := links[0].Alloc()
	if !ok {
		t.Fatal("no buffer")
	}
	send := func() {
		t.Helper()
		if _, err := links[0].Send([]Frame{{Buf: b, Len: 100, To: path}}); err != nil {
			t.Fatal(err)
		}
	}
	set(netlink.LinkSetDown)
	for end := time.Now().Add(eventLimit); links[0].Stats().LastError == nil; {
		send()
		if err := links[0].Wait(time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("Stats has no reason")
		}
	}
	set(netlink.LinkSetUp)
	pkts := make([]Packet, 8)
	for end := time.Now().Add(eventLimit); ; {
		send()
		n, err := links[1].Receive(pkts)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if err := links[1].Wait(time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("nothing arrives after the interface is up again")
		}
	}
}

// A Send of more frames than fit into a ring at once takes all of them.
func TestAFXDPSendsSeveralBatches(t *testing.T) {
	_, links, path := afxdpPair(t)
	frames := make([]Frame, 2*batchSize+1)
	for i := range frames {
		b, ok := links[0].Alloc()
		if !ok {
			t.Fatal("no buffer")
		}
		frames[i] = Frame{Buf: b, Len: 100, To: path}
	}
	if n, err := links[0].Send(frames); n != len(frames) || err != nil || links[0].Stats().Sent != uint64(n) {
		t.Errorf("%d frames of %d are taken, %v; %+v", n, len(frames), err, links[0].Stats())
	}
}

// TestAFXDPOverrun sends more than the receiver has buffers for. The receiver counts the lost
// frames, also after Close.
func TestAFXDPOverrun(t *testing.T) {
	_, links, path := afxdpPair(t)
	const frames = 2 * rxFrames
	for range frames {
		b, ok := links[0].Alloc()
		for end := time.Now().Add(eventLimit); !ok; b, ok = links[0].Alloc() {
			if err := links[0].Wait(time.Millisecond); err != nil || time.Now().After(end) {
				t.Fatal("no buffer: ", err)
			}
		}
		if n, err := links[0].Send([]Frame{{Buf: b, Len: 100, To: path}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		links[0].Free(b)
	}
	for end := time.Now().Add(eventLimit); links[1].Stats().Overrun == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v after %d frames", links[1].Stats(), frames)
		}
	}
	before := links[1].Stats()
	if before.Overrun > frames {
		t.Errorf("%d frames lost of %d", before.Overrun, frames)
	}
	if err := links[1].Close(); err != nil {
		t.Error(err)
	}
	if after := links[1].Stats(); after.Overrun < before.Overrun {
		t.Errorf("%d frames lost, %d after Close", before.Overrun, after.Overrun)
	}
}

// TestAFXDPFreeTwice gives a buffer back twice.
func TestAFXDPFreeTwice(t *testing.T) {
	_, links, _ := afxdpPair(t)
	b, ok := links[0].Alloc()
	if !ok {
		t.Fatal("no buffer")
	}
	links[0].Free(b)
	defer func() {
		if recover() == nil {
			t.Error("a buffer was freed twice, and nothing was said")
		}
	}()
	links[0].Free(b)
}

// TestAFXDPForeignPath sends over a path of another kind of link.
func TestAFXDPForeignPath(t *testing.T) {
	_, links, _ := afxdpPair(t)
	udp := openTestUDP(t, "127.0.0.1:0")
	path, err := udp.Path(t.Context(), udp.Local())
	if err != nil {
		t.Fatal(err)
	}
	b, _ := links[0].Alloc()
	defer func() {
		if err, ok := recover().(error); !ok || errors.Is(err, ErrConfig) {
			t.Errorf("a path of another link: %v", err)
		}
	}()
	_, err = links[0].Send([]Frame{{Buf: b, Len: 20, To: path}})
	t.Errorf("a path of another link was taken: %v", err)
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nicsVariable names two interfaces whose drivers have zero-copy, on one wire that nothing else
// uses: "eth0,eth1". scripts/kernel-test.sh emulates them.
const nicsVariable = "AFXDP_TEST_NICS"

// zeroCopyNICs returns them, and checks at the end that no program is left.
func zeroCopyNICs(t *testing.T) (a, b string) {
	t.Helper()
	a, b, ok := strings.Cut(os.Getenv(nicsVariable), ",")
	if !ok {
		t.Skipf("needs two interfaces whose drivers have zero-copy, named in %s; make kernel-test emulates such", nicsVariable)
	}
	for _, name := range []string{a, b} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			// The test packets have an address that no interface has.
			err = errors.Join(netlink.SetPromiscOn(l), netlink.LinkSetUp(l))
		}
		if err != nil {
			t.Fatal(name, err)
		}
		t.Cleanup(func() {
			if id := attachedProgram(l.Attrs().Index); id != 0 {
				t.Errorf("%s was left with program %d", name, id)
			}
		})
	}
	return a, b
}

// openNIC opens a socket on its own UMEM and waits until the link is up: the previous test may hold
// the queue for a while, and drivers reset the link for a program and a socket.
func openNIC(t *testing.T, cfg Config) *Socket {
	t.Helper()
	cfg.BindTimeout, cfg.Mode = eventLimit, BindZeroCopy
	s, err := Open(newPool(t, newUMEM(t, UMEMConfig{Frames: 1024}), 0), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if !s.Info().ZeroCopy {
		t.Fatalf("%s is in copy mode", cfg.Interface)
	}
	if d := s.Info().Device; !d.Known || !d.ZeroCopy || !d.Native || d.MaxSegments < 1 || d.Driver == "" {
		t.Errorf("%s is in zero-copy mode, and its driver tells %+v", cfg.Interface, d)
	}
	waitLink(t, cfg.Interface)
	return s
}

func waitLink(t *testing.T, name string) {
	t.Helper()
	for end := time.Now().Add(eventLimit); ; time.Sleep(20 * time.Millisecond) {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is %v", name, l.Attrs().OperState)
		}
	}
}

func attachNIC(t *testing.T, name string) *Attachment {
	t.Helper()
	at, err := Attach(AttachConfig{Interface: name, Match: MatchAll()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := at.Close(); err != nil {
			t.Error(err)
		}
	})
	return at
}

// A socket that only sends needs no Attachment, nor does one whose Attachment was closed first,
// which is the right order under load.
func TestZeroCopySendOnly(t *testing.T) {
	a, b := zeroCopyNICs(t)
	s := openNIC(t, Config{Interface: a, RxFrames: -1})
	transmit(t, s, newPackets(t, s, 0, 100, 100))
	at := attachNIC(t, b)
	s = openNIC(t, Config{Interface: b, XSKMap: at.XSKMap()})
	transmit(t, s, newPackets(t, s, 0, 100, 100))
	if err := at.Close(); err != nil {
		t.Fatal(err)
	}
	waitLink(t, b)
	transmit(t, s, newPackets(t, s, 100, 100, 100))
}

func TestZeroCopyTransfer(t *testing.T) {
	a, b := zeroCopyNICs(t)
	at := attachNIC(t, b)
	from := openNIC(t, Config{Interface: a, RxFrames: -1})
	to := openNIC(t, Config{Interface: b, XSKMap: at.XSKMap()})
	for i := range uint64(50) {
		if err := from.Pool().Free(transmit(t, from, newPackets(t, from, i*32, 32, 190))...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(upTo(i*32, 32), receive(t, to, 32)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// TestZeroCopyReclaim closes and reopens a receiver in the middle of traffic and writes into every
// frame that it owns then: the device must not write into them.
func TestZeroCopyReclaim(t *testing.T) {
	a, b := zeroCopyNICs(t)
	at := attachNIC(t, b)
	sender := openNIC(t, Config{Interface: a, RxFrames: -1})
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		frames := make([]Frame, 64)
		for number := uint64(0); ; number++ {
			select {
			case <-stop:
				return
			default:
			}
			if sender.Pool().Available() >= 32 {
				if _, err := sender.Send(newPackets(t, sender, number, 32, 200)); err != nil {
					t.Error(err)
				}
			}
			err := sender.Kick()
			n, completedErr := sender.Completed(frames)
			if err := errors.Join(err, completedErr, sender.Pool().Free(frames[:n]...)); err != nil {
				t.Error(err)
				return
			}
			if n == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	defer flood.Wait()
	defer close(stop)

	const frames, lent = 512, 256
	u := newUMEM(t, UMEMConfig{Frames: frames})
	pool := newPool(t, u, 0)
	cfg := Config{Interface: b, XSKMap: at.XSKMap(), RxFrames: lent, BindTimeout: eventLimit, Mode: BindZeroCopy}
	descs := make([]Desc, 64)
	traffic := func(s *Socket) {
		t.Helper()
		got := 0
		for end := time.Now().Add(eventLimit); got < 200; {
			if _, err := s.Poll(EventRx, time.Millisecond); err != nil {
				t.Fatal(err)
			}
			n, err := s.Receive(descs)
			if err == nil {
				err = s.Release(descs[:n])
			}
			if err != nil {
				t.Fatal(err)
			}
			if got += n; time.Now().After(end) {
				t.Fatal("no traffic")
			}
		}
	}
	// untouched owns every free frame for a while.
	untouched := func(want int) {
		t.Helper()
		mine := make([]Frame, frames)
		mine = mine[:pool.AllocBatch(mine)]
		if len(mine) != want {
			t.Errorf("%d frames are free, want %d", len(mine), want)
		}
		canary := bytes.Repeat([]byte{0xa5}, u.FrameSize())
		for _, f := range mine {
			copy(u.Bytes(f), canary)
		}
		time.Sleep(100 * time.Millisecond)
		bad := 0
		for _, f := range mine {
			if !bytes.Equal(u.Bytes(f), canary) {
				bad++
			}
		}
		if bad > 0 {
			t.Errorf("the device wrote into %d of %d frames that the program owns", bad, len(mine))
		}
		if err := pool.Free(mine...); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		s, err := Open(pool, cfg)
		if err != nil {
			t.Fatal(err)
		}
		traffic(s)
		if err := s.Reopen(t.Context()); err != nil {
			t.Fatal(err)
		}
		untouched(frames - lent)
		traffic(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Reclaim(); err != nil {
			t.Fatal(err)
		}
		untouched(frames)
		// One that fails after the bind, because the map is full.
		failing := cfg
		if failing.XSKMap, err = newXSKMap(1); err != nil {
			t.Fatal(err)
		}
		if err := failing.XSKMap.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(pool, failing); err == nil {
			t.Fatal("opened with a closed map", s.Close())
		}
		untouched(frames)
	}
}

// BindAuto on a UMEM of another device is the best mode of its own device, and copy mode if
// zero-copy is not safe.
func TestZeroCopyBesideCopyMode(t *testing.T) {
	a, _ := zeroCopyNICs(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "copy0"}, PeerName: "copy1"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netlink.LinkDel(veth); err != nil {
			t.Error(err)
		}
	}()
	if err := netlink.LinkSetUp(veth); err != nil {
		t.Fatal(err)
	}
	open := func(order [2]string, want bool) {
		t.Helper()
		u := newUMEM(t, UMEMConfig{})
		for _, name := range order {
			s, err := Open(newPool(t, u, 1024), Config{Interface: name, RxFrames: -1, BindTimeout: eventLimit})
			if err != nil {
				t.Fatal(order, name, err)
			}
			defer s.Close()
			if got, want := s.Info().ZeroCopy, name == a && want; got != want {
				t.Errorf("%v: %s is in zero-copy mode: %v, want %v", order, name, got, want)
			}
		}
		for _, s := range u.sockets {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	d, err := QueryDevice(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, order := range [][2]string{{a, "copy0"}, {"copy0", a}} {
		open(order, safeMode(d.Driver) != BindCopy)
		// As with a driver that is safe.
		twice, wild := announcesTwice[d.Driver], sendsWildHeaders[d.Driver]
		announcesTwice[d.Driver], sendsWildHeaders[d.Driver] = false, false
		open(order, true)
		announcesTwice[d.Driver], sendsWildHeaders[d.Driver] = twice, wild
	}
}

// All queues of a card, which share one UMEM in zero-copy mode, receive packets of their Match, and
// send them back in the same frames.
func TestZeroCopyGroup(t *testing.T) {
	a, b := zeroCopyNICs(t)
	group, err := OpenAll(b, GroupConfig{Match: MatchEtherType(testEtherType), Socket: Config{Mode: BindZeroCopy, BindTimeout: eventLimit}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range group.Sockets() {
		if !s.Info().ZeroCopy {
			t.Errorf("queue %d is in copy mode", s.Info().Queue)
		}
	}
	echo := Serve(func(s *Socket, packets []Desc) error {
		_, err := s.Send(packets)
		return err
	})
	at := attachNIC(t, a)
	s := openNIC(t, Config{Interface: a, XSKMap: at.XSKMap(), RxFrames: 512})
	waitLink(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- group.Run(ctx, echo) }()
	for i := range uint64(20) {
		if err := s.Pool().Free(transmit(t, s, newPackets(t, s, i*16, 16, 190))...); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(upTo(i*16, 16), receive(t, s, 16)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if err := group.Close(); err != nil {
		t.Error(err)
	}
}

// A card with several queues is configured and restored. Only some have a table to spread packets
// by: QEMU's igb has one, its virtio-net has none.
func TestZeroCopyCardIsTuned(t *testing.T) {
	a, _ := zeroCopyNICs(t)
	read := func() (queues int, table []uint32) {
		t.Helper()
		queues, _, err := QueueCounts(a)
		if err == nil {
			table, err = getIndirection(a)
		}
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Fatal(err)
		}
		return queues, table
	}
	tune := func(cfg Tuning) (queues int, table []uint32) {
		t.Helper()
		tuned, err := Tune(t.Context(), a, cfg)
		if err != nil {
			t.Fatalf("%+v: %v", cfg, err)
		}
		// The driver of igb resets the card for another number of queues.
		if l, err := netlink.LinkByName(a); err != nil || l.Attrs().OperState != netlink.OperUp || l.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
			t.Errorf("%+v: the link is not up again: %v, %+v", cfg, err, l)
		}
		queues, table = read()
		if err := tuned.Close(); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
		waitLink(t, a)
		return queues, table
	}
	waitLink(t, a)
	queues, table := read()
	if queues < 2 {
		t.Skipf("%s has one queue", a)
	}
	if got, _ := tune(Tuning{Queues: 1}); got != 1 {
		t.Errorf("%d queues, want 1", got)
	}
	if len(table) == 0 {
		var missing *FeatureError
		if _, err := Tune(t.Context(), a, Tuning{Spread: 1}); !errors.As(err, &missing) || missing.Remedy == "" {
			t.Error(err)
		}
	} else if _, got := tune(Tuning{Spread: 1}); !cmp.Equal(got, inTurn(len(table), 1)) {
		t.Errorf("packets are spread over %v", got)
	}
	queuesAfter, after := read()
	if queuesAfter != queues || !cmp.Equal(table, after) {
		t.Errorf("%d queues and %v, %d and %v before", queuesAfter, after, queues, table)
	}
}

func TestZeroCopyLinkDownAndUp(t *testing.T) {
	a, _ := zeroCopyNICs(t)
	s := openNIC(t, Config{Interface: a, RxFrames: -1})
	transmit(t, s, newPackets(t, s, 0, 10, 100))
	l, err := netlink.LinkByName(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(l); err != nil {
		t.Fatal(err)
	}
	sent := newPackets(t, s, 10, 10, 100)
	if n, err := s.Send(sent); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	wantErr(t, s.Kick(), ErrLinkDown)
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	if err := s.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitLink(t, a)
	transmit(t, s, newPackets(t, s, 20, 10, 100))
}

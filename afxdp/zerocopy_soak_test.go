// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

var soakTime = flag.Duration("soak", 20*time.Second, "how long TestZeroCopySoak goes on at least")

// soakVariable names the interface of the process that is killed.
const soakVariable = "AFXDP_TEST_SOAK"

const soakFrames = 1024

var canary = bytes.Repeat([]byte{0xa5}, 2048)

// soakEnd is a socket and the test's frames, each with a canary.
type soakEnd struct {
	t       *testing.T
	umem    *UMEM
	pool    *Pool
	cfg     Config
	s       *Socket
	owned   []Frame // the oldest first
	spoiled []Frame // overwritten while the test owned them
	foreign int     // frames that arrived without a packet of the test
	checked int     // canaries
	moved   int     // packets
}

func newSoakEnd(t *testing.T, cfg Config) *soakEnd {
	t.Helper()
	cfg.BindTimeout = eventLimit
	cfg.Mode = soakMode(cfg.Interface)
	e := &soakEnd{t: t, umem: newUMEM(t, UMEMConfig{Frames: soakFrames}), cfg: cfg}
	e.pool = newPool(t, e.umem, 0)
	t.Cleanup(func() {
		if e.s != nil {
			e.must(e.s.Close())
		}
	})
	e.open()
	return e
}

// soakMode requires zero-copy mode, except on veth, which shows that the test itself is right.
func soakMode(ifname string) BindMode {
	if d, err := QueryDevice(ifname); err == nil && d.Driver == "veth" {
		return BindAuto
	}
	return BindZeroCopy
}

func (e *soakEnd) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(e.cfg.Interface, err)
	}
}

// open opens the socket with the usual number of frames to be filled; the test owns the others.
func (e *soakEnd) open() {
	e.t.Helper()
	if e.cfg.RxFrames > 0 {
		for e.pool.Available() < e.cfg.RxFrames {
			e.must(e.pool.Free(e.take()))
		}
	}
	var err error
	e.s, err = Open(e.pool, e.cfg)
	e.must(err)
	for f, ok := e.pool.Alloc(); ok; f, ok = e.pool.Alloc() {
		e.own(f)
	}
}

func (e *soakEnd) own(frames ...Frame) {
	for _, f := range frames {
		copy(e.umem.Bytes(f), canary)
	}
	e.owned = append(e.owned, frames...)
}

// take returns the frame that was owned for longest.
func (e *soakEnd) take() Frame {
	e.t.Helper()
	f := e.owned[0]
	e.owned = e.owned[1:]
	e.check(f)
	return f
}

func (e *soakEnd) check(f Frame) {
	e.t.Helper()
	if e.checked++; !bytes.Equal(e.umem.Bytes(f), canary) {
		e.spoiled = append(e.spoiled, f)
		copy(e.umem.Bytes(f), canary)
	}
}

// account checks all canaries, that each frame is in its place, and that the kernel returned no
// frame that it did not have.
func (e *soakEnd) account() {
	e.t.Helper()
	for _, f := range e.owned {
		e.check(f)
	}
	if st, err := e.s.Snapshot(); err != nil || len(e.spoiled)+e.foreign > 0 || st.BadDescs > 0 {
		e.t.Errorf("%s: the frames %d were overwritten while the test owned them, %d came without a packet, and %d that were not lent: %v",
			e.cfg.Interface, e.spoiled, e.foreign, st.BadDescs, err)
	}
	e.spoiled, e.foreign = nil, 0
	c := e.umem.Census()
	if c.Yours != len(e.owned) || c.Free != e.pool.Available() || c.Free+c.Yours+c.Filling+c.InFlight != soakFrames {
		e.t.Errorf("%s: %d frames are owned and %d in the pool of %d, and the states are %+v", e.cfg.Interface, len(e.owned), e.pool.Available(), soakFrames, c)
	}
}

// close takes all frames back.
func (e *soakEnd) close() {
	e.t.Helper()
	e.must(e.s.Close())
	frames, err := e.s.Reclaim()
	e.must(err)
	e.own(frames...)
	if c := e.umem.Census(); c.Filling+c.InFlight != 0 {
		e.t.Errorf("%s: leaked: %+v", e.cfg.Interface, c)
	}
	e.account()
}

// up waits until a link is up.
func (e *soakEnd) up(err error) {
	e.t.Helper()
	if errors.Is(err, ErrLinkDown) {
		err = e.s.Recover(e.t.Context())
	}
	e.must(err)
}

// send sends some packets, and owns the sent frames.
func (e *soakEnd) send() {
	e.t.Helper()
	var descs [16]Desc
	n := 0
	for ; n < len(descs) && len(e.owned) > 0; n++ {
		descs[n] = Desc{Frame: e.take(), Off: uint16(e.umem.RxOffset()), Len: 200}
		fillPacket(e.umem.Packet(descs[n]), uint64(e.moved+n))
	}
	sent, err := e.s.Send(descs[:n])
	e.must(err)
	e.moved += sent
	for _, d := range descs[sent:n] {
		e.own(d.Frame)
	}
	e.up(e.s.Kick())
	var done [64]Frame
	n, err = e.s.Completed(done[:])
	e.must(err)
	e.own(done[:n]...)
}

// receive receives packets and checks them.
func (e *soakEnd) receive() {
	e.t.Helper()
	_, err := e.s.Poll(EventRx, time.Millisecond)
	e.up(err)
	var descs [64]Desc
	n, err := e.s.Receive(descs[:])
	e.must(err)
	for _, d := range descs[:n] {
		if _, err := packetNumber(e.umem.Packet(d)); err != nil {
			e.foreign++
		}
		e.own(d.Frame)
	}
	e.moved += n
}

// lend fills with the frames that were owned for longest, and keeps some.
func (e *soakEnd) lend(keep int) {
	e.t.Helper()
	for len(e.owned) > keep {
		f := e.take()
		if n, err := e.s.Fill([]Frame{f}); n == 0 {
			e.must(err)
			e.own(f)
			break
		}
	}
}

// TestZeroCopySoak sends packets from one card to the other while links go down and up, queues are
// reset, sockets closed and opened, and a process that holds the queue is killed. The device writes
// into no frame that the test owns, and no frame is lost.
//
// The sender is faster than the receiver, whose fill ring is sometimes empty; except with drivers
// that do not handle that, see TestZeroCopyStarved.
func TestZeroCopySoak(t *testing.T) {
	a, b := zeroCopyNICs(t)
	at := attachNIC(t, b)
	from := newSoakEnd(t, Config{Interface: a, RxFrames: -1})
	lent, window := 256, soakFrames
	if d, err := QueryDevice(b); err != nil {
		t.Fatal(err)
	} else if announcesTwice[d.Driver] {
		lent, window = 768, 64 // igb has rings of 256
	}
	to := newSoakEnd(t, Config{Interface: b, XSKMap: at.XSKMap(), RxFrames: lent})
	flow := func(packets int) {
		t.Helper()
		end := time.Now().Add(eventLimit)
		sent, came, last := from.moved, to.moved, time.Now()
		for want := to.moved + packets; to.moved < want; {
			if time.Since(last) > time.Second { // missing ones were lost
				sent, came, last = from.moved, to.moved, time.Now()
			}
			if from.moved-sent < to.moved-came+window {
				from.send()
			}
			before := to.moved
			to.receive()
			to.lend(soakFrames - lent)
			if to.moved > before {
				last = time.Now()
			}
			if time.Now().After(end) {
				there, _ := from.s.Stats()
				here, _ := to.s.Stats()
				t.Fatalf("%d packets are missing after a minute: sender %+v, receiver %+v", want-to.moved, there, here)
			}
		}
	}
	reopen := func(e *soakEnd) func() {
		return func() {
			e.must(e.s.Reopen(t.Context()))
			if n := len(e.s.reclaimed); n > 0 {
				var done [soakFrames]Frame
				n, err := e.s.Completed(done[:])
				e.must(err)
				e.own(done[:n]...)
			}
		}
	}
	carrier := func(e *soakEnd) func() {
		return func() {
			l, err := netlink.LinkByName(e.cfg.Interface)
			e.must(err)
			e.must(netlink.LinkSetDown(l))
			e.account()
			e.must(netlink.LinkSetUp(l))
			waitLink(t, e.cfg.Interface)
		}
	}
	again := func(e *soakEnd) func() {
		return func() {
			e.close()
			e.open()
		}
	}
	events := []struct {
		name string
		do   func()
		n    int
	}{
		{"link of the sender down and up", carrier(from), 0}, {"link of the receiver down and up", carrier(to), 0},
		{"queue of the sender reset", reopen(from), 0}, {"queue of the receiver reset", reopen(to), 0},
		{"sender closed and opened", again(from), 0}, {"receiver closed and opened", again(to), 0},
		{"process killed", func() {
			to.close()
			to.must(at.Close())
			killReceiver(t, b, from)
			to.account()
			waitLink(t, b)
			at = attachNIC(t, b)
			to.cfg.XSKMap = at.XSKMap()
			to.open()
		}, 0},
	}
	random := rand.New(rand.NewPCG(1, 2))
	start, order := time.Now(), []int(nil)
	for len(order) > 0 || time.Since(start) < *soakTime || events[0].n == 0 {
		if len(order) == 0 {
			order = random.Perm(len(events))
		}
		flow(100)
		e := &events[order[0]]
		order = order[1:]
		e.do()
		e.n++
		from.account()
		to.account()
	}
	flow(100)
	from.close()
	to.close()
	for _, e := range events {
		t.Logf("%d times: %s", e.n, e.name)
	}
	t.Logf("%v, %d packets sent, %d received, %d canaries looked at", time.Since(start).Round(time.Second), from.moved, to.moved, from.checked+to.checked)
}

// killReceiver kills a process that receives what the sender sends.
func killReceiver(t *testing.T, ifname string, from *soakEnd) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), soakVariable+"="+ifname), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(out).ReadString('\n')
		lines <- err
	}()
	for receives := false; !receives; {
		select {
		case err = <-lines:
			receives = true
		default:
			from.send()
			time.Sleep(time.Millisecond)
		}
	}
	for range 50 {
		from.send()
	}
	killed := errors.Join(err, cmd.Process.Kill())
	_ = cmd.Wait() // the error is that it was killed
	if killed != nil {
		t.Fatal(killed)
	}
}

// soakChild receives until it is killed. It prints a line when packets have arrived.
func soakChild(ifname string) error {
	at, err := Attach(AttachConfig{Interface: ifname, Match: MatchAll()})
	if err != nil {
		return err
	}
	u, err := NewUMEM(UMEMConfig{Frames: 4 * soakFrames})
	if err != nil {
		return err
	}
	pool, err := u.NewPool(0)
	if err != nil {
		return err
	}
	s, err := Open(pool, Config{Interface: ifname, XSKMap: at.XSKMap(), BindTimeout: eventLimit, Mode: soakMode(ifname)})
	if err != nil {
		return err
	}
	descs := make([]Desc, 64)
	for told := false; ; {
		_, err := s.Poll(EventRx, time.Second)
		if errors.Is(err, ErrLinkDown) {
			continue // the driver resets it for the socket
		}
		n, receiveErr := s.Receive(descs)
		if err := errors.Join(err, receiveErr, s.Release(descs[:n])); err != nil {
			return err
		}
		if n > 0 && !told {
			told = true
			fmt.Println("receives")
		}
	}
}

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Entries that fill their frame to the last byte are good, alone and as fragments,
// and come as the kernel wrote them.
func TestPacketsFillTheirFrames(t *testing.T) {
	for _, multi := range []bool{false, true} {
		s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: multi})
		if n, err := s.Refill(5); n != 5 || err != nil {
			t.Fatal(n, err)
		}
		var want []Desc
		for i, e := range []struct{ off, length, options uint32 }{{256, 1792, 0}, {0, 2048, 0}, {2047, 1, 0}, {300, 1748, uint32(More)}, {256, 1792, 0}} {
			if !multi && e.options != 0 {
				break
			}
			f := k.fill.addrs[i] >> 11
			k.rx.descs[i] = xdpDesc{Addr: f<<11 + uint64(e.off), Len: e.length, Options: e.options}
			k.rx.submit(1)
			want = append(want, Desc{Frame: Frame(f), Off: uint16(e.off), Len: e.length, Flags: DescFlags(e.options)})
		}
		got := make([]Desc, 20)
		n, err := s.Receive(got)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got[:n]); diff != "" || s.count.BadDescs != 0 || s.count.RxReceived != uint64(n) {
			t.Errorf("multi-buffer %v: %+v (-want +got):\n%s", multi, s.count, diff)
		}
		// The same packets go out again, to the last byte.
		for i := range got[:n] {
			got[i].Len = max(got[i].Len, minPacket)
			got[i].Off = min(got[i].Off, uint16(2048-got[i].Len))
		}
		if sent, err := s.Send(got[:n]); sent != n || err != nil {
			t.Errorf("multi-buffer %v: %d of %d packets sent: %v", multi, sent, n, err)
		}
		for _, d := range got[:n] {
			e, _ := k.transmit()
			if want := (xdpDesc{Addr: uint64(d.Frame)<<11 + uint64(d.Off), Len: d.Len, Options: uint32(d.Flags)}); e != want {
				t.Errorf("multi-buffer %v: entry %+v, want %+v", multi, e, want)
			}
		}
		if s.InFlight() != n || s.count.TxSubmitted != uint64(n) {
			t.Errorf("%d in flight, %d submitted, want %d", s.InFlight(), s.count.TxSubmitted, n)
		}
	}
}

// The last fragment of a dropped packet looks like a packet.
func TestRestOfADroppedPacketIsNone(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: true})
	if _, err := s.Refill(16); err != nil {
		t.Fatal(err)
	}
	k.rx.descs[0] = xdpDesc{Addr: ^uint64(0), Len: 60, Options: uint32(More)}
	k.rx.submit(1)
	descs := make([]Desc, MaxFragments)
	if n, err := s.Receive(descs); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	k.deliver(1, 0)
	k.deliver(2, 0)
	if n, err := s.Receive(descs); n != 1 || err != nil || s.umem.Packet(descs[0])[0] != 2 {
		t.Errorf("%d packets, %v; want the second alone", n, err)
	}
	if s.count.BadDescs != 2 || s.count.RxReceived != 1 {
		t.Errorf("counted %+v", s.count)
	}
	checkFrames(t, s)
}

// A batch that is shorter than a packet is an error, and takes nothing.
func TestShortBatch(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 64, multi: true})
	if _, err := s.Refill(16); err != nil {
		t.Fatal(err)
	}
	k.deliver(1, uint32(More))
	k.deliver(2, uint32(More))
	for size := range 3 {
		n, err := s.Receive(make([]Desc, size))
		if n != 0 || errors.Is(err, ErrShortBatch) != (size > 0) {
			t.Errorf("a batch of %d: %d, %v", size, n, err)
		}
	}
	if c := s.umem.Census(); c.Filling != 16 {
		t.Errorf("frames are %+v", c)
	}
	// The packet has not ended, but the batch could hold more.
	descs := make([]Desc, 8)
	if n, err := s.Receive(descs); n != 0 || err != nil {
		t.Errorf("a packet whose end has not come: %d, %v", n, err)
	}
	k.deliver(3, 0)
	if n, err := s.Receive(descs); n != 3 || err != nil {
		t.Errorf("the packet: %d, %v", n, err)
	}
	for i, d := range descs[:3] {
		if s.umem.Packet(d)[0] != byte(i+1) || (d.Flags == More) != (i < 2) {
			t.Errorf("fragment %d is %+v", i, d)
		}
	}
}

// What the fill ring has no room for goes to the pool when it is released, and stays
// with its owner when it is filled.
func TestFullFillRing(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 16, ring: 8})
	for _, c := range []struct{ ask, want int }{{-1, 0}, {0, 0}, {3, 3}, {100, 5}, {1, 0}} {
		if n, err := s.Refill(c.ask); n != c.want || err != nil {
			t.Fatalf("refilled %d of %d, want %d, %v", n, c.ask, c.want, err)
		}
	}
	frames := make([]Frame, 5)
	if n := s.Pool().AllocBatch(frames); n != 5 || s.Pool().Available() != 3 {
		t.Fatal(n)
	}
	k.fill.available(8)
	k.fill.release(2)
	descs := make([]Desc, 4)
	for i := range descs {
		descs[i].Frame = frames[i]
	}
	if err := s.Release(descs); err != nil {
		t.Fatal(err)
	}
	if got, want := s.fill.addrs[:2], []uint64{uint64(frames[0]) << 11, uint64(frames[1]) << 11}; !slices.Equal(got, want) {
		t.Errorf("the ring has %x, want %x", got, want)
	}
	if s.Pool().Available() != 5 || s.state[frames[1]] != s.filling || s.state[frames[2]] != stateFree || s.state[frames[3]] != stateFree {
		t.Errorf("%d frames are free", s.Pool().Available())
	}
	k.fill.release(1)
	var pair [2]Frame
	pair[0] = frames[4]
	pair[1], _ = s.Pool().Alloc()
	if n, err := s.Fill(pair[:]); n != 1 || err != nil || s.state[pair[0]] != s.filling || s.state[pair[1]] != stateYours {
		t.Errorf("filled %d, %v", n, err)
	}
	if got := s.fill.addrs[2]; got != uint64(pair[0])<<11 {
		t.Errorf("the ring has %x", got)
	}
	// A frame that is not the caller's ends the batch behind those before it.
	k.fill.release(4)
	for name, give := range map[string]func(...Frame) (int, error){
		"release": func(f ...Frame) (int, error) {
			err := s.Release([]Desc{{Frame: f[0]}, {Frame: f[1]}, {Frame: f[2]}})
			return 1, err
		},
		"fill": func(f ...Frame) (int, error) { return s.Fill(f) },
	} {
		a, _ := s.Pool().Alloc()
		b, _ := s.Pool().Alloc()
		for _, strange := range []Frame{pair[0], 16, 1 << 30} {
			n, err := give(a, strange, b)
			var fe *FrameError
			if n != 1 || !errors.As(err, &fe) || fe.Op != name || fe.Frame != strange || s.state[a] != s.filling || s.state[b] != stateYours {
				t.Errorf("%s: %d, %v", name, n, err)
			}
			s.state[a] = stateYours
			k.fill.release(1)
		}
		if err := s.Pool().Free(a, b); err != nil {
			t.Fatal(err)
		}
	}
}

// Every ring that the kernel makes impossible is reported by every method that
// writes or reads it.
func TestCorruptRingsOfAllMethods(t *testing.T) {
	one, frame := make([]Desc, 1), make([]Frame, 1)
	for name, call := range map[string]func(*Socket) error{
		"Release": func(s *Socket) error { return s.Release(one) },
		"Fill":    func(s *Socket) error { _, err := s.Fill(frame); return err },
		"Refill":  func(s *Socket) error { _, err := s.Refill(1); return err },
		"Send":    func(s *Socket) error { _, err := s.Send(one); return err },
		"stock":   func(s *Socket) error { s.state[3] = s.filling; return s.stock(1) },
	} {
		s, k := newSim(t, simConfig{frames: 16, ring: 8})
		s.fill.cons, s.tx.cons = ^uint32(7), ^uint32(7) // full, so that it looks
		k.fill.consumer.Store(1)
		k.tx.consumer.Store(1)
		if err := call(s); !errors.Is(err, ErrRingCorrupt) {
			t.Errorf("%s: %v, want ErrRingCorrupt", name, err)
		}
		if s.fill.producer.Load() != 0 || s.tx.producer.Load() != 0 {
			t.Errorf("%s has written", name)
		}
	}
	// So does Kick, also if the kernel does it while it is called.
	s, k := kickCase(t, 3, 0, 0)
	k.onSend = func() unix.Errno { k.tx.consumer.Store(99); return 0 }
	if err := s.Kick(); !errors.Is(err, ErrRingCorrupt) {
		t.Errorf("Kick: %v, want ErrRingCorrupt", err)
	}
}

// A socket has no more packets in flight than the completion ring has room for.
func TestSendIsBounded(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 32, ring: 8})
	s.maxInFlight = 5
	var descs [8]Desc
	for i := range descs {
		f, _ := s.Pool().Alloc()
		descs[i] = Desc{Frame: f, Off: 256, Len: minPacket}
	}
	for _, c := range []struct{ completed, want int }{{0, 5}, {0, 0}, {2, 2}, {1, 1}} {
		for range c.completed {
			d, _ := k.transmit()
			k.complete(d.Addr)
		}
		done := make([]Frame, 8)
		n, err := s.Completed(done)
		if n != c.completed || err != nil {
			t.Fatal(n, err)
		}
		for i, f := range done[:n] {
			descs[i].Frame = f
		}
		if n, err := s.Send(descs[:]); n != c.want || err != nil && !errors.Is(err, ErrFrameState) {
			t.Errorf("%d sent, want %d, %v", n, c.want, err)
		}
		if s.InFlight() != 5 {
			t.Errorf("%d in flight", s.InFlight())
		}
		if c.want == 5 {
			copy(descs[:], descs[5:])
		}
	}
	if s.count.TxCompleted != 3 || s.count.TxSubmitted != 8 {
		t.Errorf("counted %+v", s.count)
	}
}

// The reasons why a descriptor is refused, with what is next to them and is not.
func TestDescriptorReasons(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 64, ring: 64, multi: true, txMeta: true})
	plain, _ := newSim(t, simConfig{frames: 64, ring: 64})
	for name, c := range map[string]struct {
		s      *Socket
		descs  []Desc
		reason string
	}{
		"shortest":         {plain, []Desc{{Off: 256, Len: 14}}, ""},
		"short":            {plain, []Desc{{Off: 256, Len: 13}}, "shorter than an Ethernet header"},
		"empty":            {plain, []Desc{{Off: 256}}, "shorter than an Ethernet header"},
		"start of a frame": {plain, []Desc{{Len: 14}}, ""},
		"end of a frame":   {plain, []Desc{{Off: 2034, Len: 14}}, ""},
		"beyond":           {plain, []Desc{{Off: 2035, Len: 14}}, "reaches beyond the frame"},
		"flag":             {plain, []Desc{{Off: 256, Len: 60, Flags: 4}}, "unknown flags"},
		"fragments":        {plain, []Desc{{Off: 256, Len: 60, Flags: More}}, "several fragments without Config.MultiBuffer"},
		"metadata":         {plain, []Desc{{Off: 256, Len: 60, Flags: WithTxMeta}}, "metadata without UMEMConfig.TxMetadata"},
		"room":             {s, []Desc{{Off: TxMetaSize, Len: 60}}, ""},
		"no room":          {s, []Desc{{Off: TxMetaSize - 1, Len: 60}}, "no room for the TX metadata before the packet"},
		"end of fragments": {s, []Desc{{Off: 256, Len: 2048 - 256, Flags: More}, {Off: 2040, Len: 8}}, ""},
		"beyond at last":   {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 2041, Len: 8}}, "reaches beyond the frame"},
		"one byte":         {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256, Len: 1}}, ""},
		"no byte":          {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256}}, "shorter than an Ethernet header"},
		"with metadata":    {s, []Desc{{Off: 256, Len: 60, Flags: More | WithTxMeta}, {Off: 256, Len: 1}}, ""},
		"late metadata":    {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256, Len: 60, Flags: WithTxMeta}}, "metadata on a fragment that is not the first"},
		"second packet":    {s, []Desc{{Off: 256, Len: 60, Flags: More}, {Off: 256, Len: 1}, {Off: 256, Len: 60, Flags: WithTxMeta}}, ""},
		"most fragments":   {s, slices.Repeat([]Desc{{Off: 256, Len: 60}}, MaxFragments), ""},
		"more fragments":   {s, slices.Repeat([]Desc{{Off: 256, Len: 60}}, MaxFragments+1), "more fragments than MaxFragments"},
		"no end":           {s, []Desc{{Off: 256, Len: 60}, {Off: 256, Len: 60, Flags: More}}, "the last descriptor of the batch has More set"},
	} {
		frames := make([]Frame, len(c.descs))
		c.s.Pool().AllocBatch(frames)
		for i := range c.descs {
			c.descs[i].Frame = frames[i]
			clear(c.s.umem.Bytes(frames[i]))
			if len(c.descs) >= MaxFragments && i < len(c.descs)-1 {
				c.descs[i].Flags = More
			}
		}
		n, err := c.s.Send(c.descs)
		var de *DescError
		switch {
		case c.reason == "":
			if n != len(c.descs) || err != nil {
				t.Errorf("%s: %d of %d taken, %v", name, n, len(c.descs), err)
			}
		case !errors.As(err, &de) || de.Reason != c.reason:
			t.Errorf("%s: %v, want %q", name, err, c.reason)
		case name == "no end" && (n != 1 || de.Desc != c.descs[1]):
			t.Errorf("%s: %d taken, %+v refused", name, n, de.Desc)
		}
		for i, f := range frames {
			want := stateYours
			if i < n {
				want = c.s.flying
			}
			if c.s.state[f] != want {
				t.Errorf("%s: frame %d is %s", name, i, stateName(c.s.state[f]))
			}
			c.s.state[f] = stateYours
		}
		// The rings and the pool begin anew.
		c.s.tx.consumer.Store(c.s.tx.producer.Load())
		c.s.inFlight = 0
		if err := c.s.Pool().Free(frames...); err != nil {
			t.Fatal(err)
		}
	}
}

// A batch whose packet does not fit the ring is cut before that packet.
func TestSendCutsBeforeAPacket(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 64, ring: 4, multi: true})
	frames := make([]Frame, 6)
	s.Pool().AllocBatch(frames)
	descs := make([]Desc, 6)
	for i := range descs {
		descs[i] = Desc{Frame: frames[i], Off: 256, Len: 60}
	}
	descs[2].Flags, descs[3].Flags = More, More
	if n, err := s.Send(descs); n != 2 || err != nil {
		t.Errorf("%d taken, %v, want the 2 packets before that of three fragments", n, err)
	}
	for i, f := range frames {
		if want := []frameState{s.flying, stateYours}[min(i/2, 1)]; s.state[f] != want {
			t.Errorf("frame %d is %s", i, stateName(s.state[f]))
		}
	}
}

// Frames that a replaced socket had in flight come first.
func TestReclaimedFramesAreCompletions(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	var descs [4]Desc
	for i := range descs {
		f, _ := s.Pool().Alloc()
		descs[i] = Desc{Frame: f, Off: 256, Len: 60}
	}
	if n, err := s.Send(descs[:]); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	if ev := s.ready(EventCompletion); ev != 0 {
		t.Errorf("events %b", ev)
	}
	for _, d := range descs[:3] {
		s.reclaimed = append(s.reclaimed, d.Frame)
	}
	d, _ := k.transmit()
	k.complete(uint64(descs[3].Frame)<<11 + d.Addr&2047)
	done := make([]Frame, 2)
	for _, want := range [][]Frame{{descs[0].Frame, descs[1].Frame}, {descs[2].Frame}, {descs[3].Frame}, {}} {
		if ev := s.ready(EventCompletion | EventRx); (ev == EventCompletion) != (len(want) > 0) {
			t.Errorf("events %b before %v", ev, want)
		}
		n, err := s.Completed(done)
		if err != nil || !slices.Equal(done[:n], want) {
			t.Errorf("%v, %v, want %v", done[:n], err, want)
		}
		for _, f := range done[:n] {
			if s.state[f] != stateYours {
				t.Errorf("frame %d is %s", f, stateName(s.state[f]))
			}
		}
	}
	if s.InFlight() != 0 {
		t.Errorf("%d in flight", s.InFlight())
	}
}

// Poll tells all that is there of what was asked for.
func TestReady(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if _, err := s.Refill(4); err != nil {
		t.Fatal(err)
	}
	f, _ := s.Pool().Alloc()
	if n, err := s.Send([]Desc{{Frame: f, Off: 256, Len: 60}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	poll := func(want, got Events) {
		t.Helper()
		if ev, err := s.Poll(want, 0); ev != got || err != nil {
			t.Errorf("events %b of %b, want %b, %v", ev, want, got, err)
		}
	}
	poll(EventRx|EventCompletion, 0)
	d, _ := k.transmit()
	k.complete(d.Addr)
	poll(EventRx, 0)
	poll(EventRx|EventCompletion, EventCompletion)
	k.deliver(1, 0)
	poll(EventRx, EventRx)
	poll(EventCompletion, EventCompletion)
	if err := s.wake.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.wake.Close()
	s.Wake()
	poll(EventRx|EventCompletion, EventRx|EventCompletion|EventWake)
	poll(EventRx|EventCompletion, EventRx|EventCompletion)
	// Those of several sockets come together.
	other, _ := newSim(t, simConfig{frames: 8, ring: 8})
	for _, socks := range [][]*Socket{{s, other}, {other, s}} {
		if ev, err := NewPoller(socks...).Poll(EventRx, 0); ev != EventRx || err != nil {
			t.Errorf("events %b, %v", ev, err)
		}
	}
}

// A Poller needs all of its sockets, and leaves those alone that it cannot have.
func TestPollerLeavesItsSockets(t *testing.T) {
	a, _ := newSim(t, simConfig{frames: 8, ring: 8})
	b, _ := newSim(t, simConfig{frames: 8, ring: 8})
	p := NewPoller(a, b)
	for _, c := range []struct {
		enter func()
		want  error
	}{
		{func() {}, nil},
		{func() { _ = b.gate.enter() }, ErrConcurrentUse},
		{func() { b.gate.leave(); b.gate.close(func() {}) }, net.ErrClosed},
	} {
		c.enter()
		if _, err := p.Poll(EventRx, 0); !errors.Is(err, c.want) {
			t.Errorf("error %v, want %v", err, c.want)
		}
		if _, err := a.Poll(EventRx, 0); err != nil {
			t.Errorf("after %v the other socket is %v", c.want, err)
		}
	}
}

// How long Poll sleeps, and what for.
func TestSleep(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if err := s.wake.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.wake.Close()
	p := &s.polls
	// sleep returns what was left of an hour when it was woken at once.
	sleep := func(want Events) time.Duration {
		t.Helper()
		if _, err := unix.Write(s.wake.FD(), []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if ev, err := p.sleep(want, time.Hour); ev != 0 || err != nil {
			t.Fatalf("events %b, %v", ev, err)
		}
		events := map[bool]int16{true: unix.POLLIN}[want&EventRx != 0]
		if diff := cmp.Diff([]unix.PollFd{{Fd: -1, Events: events}, {Fd: int32(s.wake.FD()), Events: unix.POLLIN, Revents: unix.POLLIN}}, p.fds); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s.wake.Sleeping() {
			t.Error("is still asleep")
		}
		return time.Duration(p.ts.Nano())
	}
	for _, want := range []Events{EventRx, EventCompletion, EventRx | EventCompletion, 0} {
		if left := sleep(want); left < time.Minute {
			t.Errorf("sleeps for %v", left)
		}
	}
	// Packets that the kernel did not take are offered again soon, unless it is awake.
	f, _ := s.Pool().Alloc()
	if n, err := s.Send([]Desc{{Frame: f, Off: 256, Len: 60}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if left := sleep(EventRx); left > 200*time.Microsecond {
		t.Errorf("sleeps for %v with a backlog", left)
	}
	s.tx.flags.Store(0)
	if left := sleep(EventRx); left < time.Minute {
		t.Errorf("sleeps for %v with a backlog that the kernel looks at", left)
	}
	// Frames complete without a word.
	if ev, err := s.Poll(EventCompletion, 20*time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	go func() {
		for !s.wake.Sleeping() {
			time.Sleep(time.Millisecond)
		}
		d, _ := k.transmit()
		k.complete(d.Addr)
	}()
	if ev, err := s.Poll(EventCompletion, -1); ev != EventCompletion || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	if s.count.Overslept != 0 {
		t.Errorf("overslept %d times", s.count.Overslept)
	}
}

// Without BusyPoll nothing but sleeping wakes the driver, also if it asks for that.
func TestPollLeavesTheDriverAlone(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if err := s.wake.Open(); err != nil {
		t.Fatal(err)
	}
	defer s.wake.Close()
	s.fill.flags.Store(ringNeedWakeup)
	k.onRecv = func() unix.Errno { t.Error("is woken"); return 0 }
	s.polls.checked = time.Now().Add(time.Hour)
	if ev, err := s.Poll(EventRx, time.Millisecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	if s.count.RxWakeups != 0 {
		t.Errorf("%d wake-ups", s.count.RxWakeups)
	}
}

// Packets that come unasked are not overslept.
func TestOversleptIsForReceivers(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	if _, err := s.Refill(4); err != nil {
		t.Fatal(err)
	}
	k.deliver(1, 0)
	s.polls.countOverslept(EventCompletion)
	if s.count.Overslept != 0 {
		t.Errorf("overslept %d times", s.count.Overslept)
	}
	s.polls.countOverslept(EventCompletion | EventRx)
	if s.count.Overslept != 1 {
		t.Errorf("overslept %d times", s.count.Overslept)
	}
}

// The interfaces are looked at every 200ms, and each time while one is gone.
func TestLinkIsChecked(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	calls, answer := 0, unix.Errno(0)
	k.onRecv = func() unix.Errno { calls++; return answer }
	poll := func(want error, n int) {
		t.Helper()
		if err := s.polls.checkLinks(); !errors.Is(err, want) || calls != n {
			t.Errorf("%v, %d calls; want %v, %d", err, calls, want, n)
		}
	}
	s.polls.checked = time.Now().Add(time.Hour)
	poll(nil, 0)
	s.polls.checked = time.Now().Add(-linkCheck)
	poll(nil, 1)
	if since := time.Since(s.polls.checked); since > time.Minute {
		t.Errorf("checked %v ago", since)
	}
	answer = unix.ENETDOWN
	s.polls.checked = time.Now().Add(-linkCheck)
	s.info.Store(&Info{})
	poll(ErrLinkDown, 2)
	poll(ErrLinkDown, 3)
	answer = unix.ENXIO
	poll(ErrInterfaceGone, 4)
	answer = unix.EINTR // passes by itself
	poll(nil, 5)
	if linkCheck != 200*time.Millisecond {
		t.Errorf("every %v", linkCheck)
	}
	// In zero-copy mode it may be a program that lacks.
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	s.info.Store(&Info{ZeroCopy: true, Ifindex: lo.Index})
	answer = unix.ENETDOWN
	s.polls.checked = time.Time{}
	poll(ErrNoProgram, 6)
}

// What a driver answers when it is polled, or looked at while spinning, ends Poll.
func TestPollReportsErrorsWhileBusy(t *testing.T) {
	for name, prepare := range map[string]func(*Socket){
		"polling the driver": func(s *Socket) { s.cfg.BusyPoll = &BusyPoll{Time: time.Hour}; s.polls.init(s) },
		"spinning": func(s *Socket) {
			s.fill.flags.Store(ringNeedWakeup)
			s.cfg.Spin = time.Hour
			s.polls.init(s)
		},
	} {
		s, k := newSim(t, simConfig{frames: 8, ring: 8})
		prepare(s)
		s.info.Store(&Info{})
		calls := 0
		k.onRecv = func() unix.Errno {
			if calls++; calls == 3 {
				return unix.ENXIO
			}
			return 0
		}
		if ev, err := s.Poll(EventRx, time.Hour); ev != 0 || !errors.Is(err, ErrInterfaceGone) || calls != 3 {
			t.Errorf("%s: events %b, %v after %d calls", name, ev, err, calls)
		}
		// What it finds ends Poll, too.
		if _, err := s.Refill(1); err != nil && !errors.Is(err, ErrInterfaceGone) {
			t.Fatal(err)
		}
		k.onRecv = func() unix.Errno { k.deliver(1, 0); return 0 }
		if ev, err := s.Poll(EventRx, time.Hour); ev != EventRx || err != nil {
			t.Errorf("%s: events %b, %v", name, ev, err)
		}
		// And so does Close.
		if _, err := s.Receive(make([]Desc, 8)); err != nil {
			t.Fatal(err)
		}
		if err := s.wake.Open(); err != nil {
			t.Fatal(err)
		}
		closed := make(chan bool)
		k.onRecv = func() unix.Errno {
			if !s.gate.closing() {
				go func() { closed <- s.gate.close(s.wake.Interrupt) }()
				for !s.gate.closing() {
					time.Sleep(time.Microsecond)
				}
			}
			return 0
		}
		if ev, err := s.Poll(EventRx, time.Hour); ev != 0 || !errors.Is(err, net.ErrClosed) || !<-closed {
			t.Errorf("%s: events %b, %v", name, ev, err)
		}
		if err := s.wake.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Poll spins for as long as is left, and for longer after it paid.
func TestSpinAdapts(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 8, ring: 8})
	s.cfg.Spin = 800 * time.Microsecond
	s.polls.init(s)
	p := &s.polls
	if p.spin != s.cfg.Spin || p.spinMax != s.cfg.Spin {
		t.Fatalf("spins %v of %v", p.spin, p.spinMax)
	}
	if _, err := s.Refill(8); err != nil {
		t.Fatal(err)
	}
	for _, want := range []time.Duration{400, 200, 100, 100} {
		if ev, err := p.spinFor(EventRx, time.Now(), -1); ev != 0 || err != nil || p.spin != want*time.Microsecond {
			t.Errorf("in vain: events %b, %v; spins %v, want %v", ev, err, p.spin, want*time.Microsecond)
		}
	}
	s.fill.flags.Store(ringNeedWakeup)
	k.onRecv = func() unix.Errno { k.deliver(1, 0); return 0 }
	for _, want := range []time.Duration{200, 400, 800, 800} {
		p.spin = max(p.spin, want*time.Microsecond/2) // however slow this machine is
		if ev, err := p.spinFor(EventRx, time.Now().Add(time.Hour), -1); ev != EventRx || err != nil || p.spin != want*time.Microsecond {
			t.Errorf("with success: events %b, %v; spins %v, want %v", ev, err, p.spin, want*time.Microsecond)
		}
		if n, err := s.Receive(make([]Desc, 8)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	// No longer than the timeout.
	p.spin = time.Hour
	k.onRecv = nil
	if ev, err := p.spinFor(EventRx, time.Now(), time.Microsecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
	s.cfg.BusyPoll = &BusyPoll{Time: time.Hour}
	p.init(s)
	if ev, err := p.pollDrivers(EventRx, time.Now(), time.Microsecond); ev != 0 || err != nil {
		t.Errorf("events %b, %v", ev, err)
	}
}

// The counters of the kernel's sockets that a Socket has had are added up.
func TestKernelStatsAreAddedUp(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	p.b.past = xdpStatistics{RxDropped: 1, RxInvalidDescs: 2, TxInvalidDescs: 3, RxRingFull: 4, RxFillRingEmptyDescs: 5, TxRingEmptyDescs: 6}
	before, err := getStatistics(p.b.FD())
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		st, err := p.b.Snapshot()
		want := KernelStats{
			RxDropped: 1 + before.RxDropped, RxInvalidDescs: 2 + before.RxInvalidDescs, TxInvalidDescs: 3 + before.TxInvalidDescs,
			RxRingFull: 4 + before.RxRingFull, FillRingEmpty: 5 + before.RxFillRingEmptyDescs, TxRingEmpty: 6 + before.TxRingEmptyDescs,
		}
		if diff := cmp.Diff(want, st.Kernel); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
		}
	}
	check("open")
	// Reopening keeps what the replaced socket has counted.
	bad := newPackets(t, p.a, 0, 1, 60)
	p.a.tx.descs[0] = xdpDesc{Addr: 1 << 40, Len: 60} // refused by the kernel
	p.a.tx.submit(1)
	_ = p.a.Kick()
	if err := p.a.Pool().Free(bad[0].Frame); err != nil {
		t.Fatal(err)
	}
	st, err := p.a.Stats()
	if err != nil || st.Kernel.TxInvalidDescs != 1 {
		t.Fatalf("%+v, %v", st.Kernel, err)
	}
	if err := p.ns.Do(func() error { return p.a.Reopen(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if st, err = p.a.Stats(); err != nil || st.Kernel.TxInvalidDescs != 1 {
		t.Errorf("after Reopen: %+v, %v", st.Kernel, err)
	}
	if err := p.a.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err = p.a.Snapshot(); err != nil || st.Kernel.TxInvalidDescs != 1 {
		t.Errorf("after Close: %+v, %v", st.Kernel, err)
	}
	if err := p.b.Close(); err != nil {
		t.Fatal(err)
	}
	check("closed")
}

// Every counter is published in its place.
func TestCountersArePublished(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	want := Counters{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	s.count = want
	s.publish()
	st, err := s.Snapshot()
	if diff := cmp.Diff(want, st.Counters); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// A method that finds nothing publishes, and only then.
	for name, call := range map[string]func() error{
		"Completed": func() error { _, err := s.Completed(make([]Frame, 1)); return err },
		"Receive":   func() error { _, err := s.Receive(make([]Desc, 1)); return err },
	} {
		s.count.TxKicks++
		if err := call(); err != nil {
			t.Fatal(err)
		}
		if got := s.published.values[3].Load(); got == s.count.TxKicks {
			t.Errorf("%s publishes what is known", name)
		}
		s.published.behind = 1
		if err := call(); err != nil {
			t.Fatal(err)
		}
		if got := s.published.values[3].Load(); got != s.count.TxKicks || s.published.behind != 0 {
			t.Errorf("%s: %d published, want %d", name, got, s.count.TxKicks)
		}
	}
}

func TestPool(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: 8, HugePages: HugePagesOff})
	first, second := newPool(t, u, 3), newPool(t, u, 0)
	if first.UMEM() != u || first.Available() != 3 || second.Available() != 5 {
		t.Fatalf("pools of %d and %d", first.Available(), second.Available())
	}
	for want := range Frame(3) {
		if f, ok := first.Alloc(); f != want || !ok || u.state[f] != stateYours {
			t.Errorf("frame %d, %v, want %d", f, ok, want)
		}
	}
	if f, ok := first.Alloc(); f != 0 || ok {
		t.Errorf("frame %d, %v of an empty pool", f, ok)
	}
	batch := make([]Frame, 4)
	if n := second.AllocBatch(batch); n != 4 || !slices.Equal(sortFrames(batch), []Frame{3, 4, 5, 6}) {
		t.Errorf("%d frames, %v", n, batch)
	}
	for _, f := range batch {
		if u.state[f] != stateYours {
			t.Errorf("frame %d is %s", f, stateName(u.state[f]))
		}
	}
	if n := second.AllocBatch(batch); n != 1 || batch[0] != 7 || second.Available() != 0 {
		t.Errorf("%d frames, %v", n, batch[:n])
	}
	err := second.Free(7, 2, 8, 3)
	var fe *FrameError
	if !errors.As(err, &fe) || *fe != (FrameError{"free", 8, "no such frame"}) || second.Available() != 2 {
		t.Errorf("%v, %d are free", err, second.Available())
	}
	if err := second.Free(7); !errors.As(err, &fe) || *fe != (FrameError{"free", 7, "free"}) {
		t.Error(err)
	}
	if f, ok := second.Alloc(); f != 2 || !ok {
		t.Errorf("frame %d, %v, want that which came last", f, ok)
	}
	if got, want := u.Census(), (Census{Free: 1, Yours: 7}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Where a frame's bytes, packets and metadata are.
func TestViewsOfFrames(t *testing.T) {
	for _, size := range []int{2048, 4096} {
		u := newUMEM(t, UMEMConfig{Frames: 4, FrameSize: size, Headroom: 6, HugePages: HugePagesOff})
		if u.Frames() != 4 || u.FrameSize() != size || u.RxOffset() != 262 || u.RxRoom() != size-262 || len(u.mem) != 4*size {
			t.Errorf("%d frames of %d bytes, packets at %d with room for %d", u.Frames(), u.FrameSize(), u.RxOffset(), u.RxRoom())
		}
		for i := range u.mem {
			u.mem[i] = byte(i / 64)
		}
		at := func(name string, b []byte, start, length, capacity int) {
			t.Helper()
			if len(b) != length || cap(b) != capacity || addressOf(b) != addressOf(u.mem)+uintptr(start) {
				t.Errorf("%s: %d bytes of %d at %d, want %d of %d at %d", name, len(b), cap(b), addressOf(b)-addressOf(u.mem), length, capacity, start)
			}
		}
		d := Desc{Frame: 2, Off: 300, Len: 60}
		at("frame", u.Bytes(2), 2*size, size, size)
		at("packet", u.Packet(d), 2*size+300, 60, size-300)
		at("TX metadata", u.TxMeta(d), 2*size+300-TxMetaSize, TxMetaSize, TxMetaSize)
		at("RX metadata", u.RxMeta(d, 10), 2*size+290, 10, 10)
	}
}

func TestConfigEdges(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: 2048, HugePages: HugePagesOff})
	pool := newPool(t, u, 0)
	for name, c := range map[string]struct {
		cfg   Config
		words string
	}{
		"defaults":         {Config{}, ""},
		"largest ring":     {Config{RxRing: 1 << 20}, ""},
		"larger ring":      {Config{RxRing: 1 << 21}, "Config.RxRing 2097152 is not a power of two in [1, 2^20]"},
		"smallest ring":    {Config{TxRing: 1}, ""},
		"odd ring":         {Config{FillRing: 3}, "Config.FillRing 3 is not"},
		"no ring":          {Config{CompletionRing: -1}, "Config.CompletionRing -1 is not"},
		"fragments":        {Config{RxRing: 64, TxRing: 64, FillRing: 64, CompletionRing: 64, MultiBuffer: true}, ""},
		"fragments, RX":    {Config{RxRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"fragments, TX":    {Config{TxRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"fragments, fill":  {Config{FillRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"fragments, done":  {Config{CompletionRing: 32, MultiBuffer: true}, "rings of at least 64 entries"},
		"last queue":       {Config{Queue: 65535}, ""},
		"queue":            {Config{Queue: 65536}, "Config.Queue 65536"},
		"negative queue":   {Config{Queue: -1}, "Config.Queue -1"},
		"budget":           {Config{TxRing: 64, TxBudget: 64}, ""},
		"budget and ring":  {Config{TxRing: 64, TxBudget: 65}, "Config.TxBudget 65 is not in [1, TxRing = 64]"},
		"negative budget":  {Config{TxBudget: -1}, "Config.TxBudget -1 is not in [1, TxRing = 2048]"},
		"fill":             {Config{FillRing: 64, RxFrames: 64}, ""},
		"fill and ring":    {Config{FillRing: 64, RxFrames: 65}, "Config.RxFrames 65 exceeds FillRing 64"},
		"all frames":       {Config{RxFrames: 2048}, ""},
		"too many frames":  {Config{FillRing: 4096, RxFrames: 2049}, "Config.RxFrames 2049, the pool has 2048"},
		"packet":           {Config{MaxPacket: -1}, "Config.MaxPacket -1"},
		"poll time":        {Config{BusyPoll: &BusyPoll{Time: time.Second, Budget: 65535}}, ""},
		"poll's long time": {Config{BusyPoll: &BusyPoll{Time: time.Second + 1}}, "Config.BusyPoll time 1.000000001s, budget 0"},
		"poll's past":      {Config{BusyPoll: &BusyPoll{Time: -1}}, "Config.BusyPoll time -1ns, budget 0"},
		"poll budget":      {Config{BusyPoll: &BusyPoll{Budget: 65536}}, "Config.BusyPoll time 0s, budget 65536"},
		"no poll budget":   {Config{BusyPoll: &BusyPoll{Budget: -1}}, "Config.BusyPoll time 0s, budget -1"},
	} {
		err := c.cfg.setDefaults(pool)
		if (err == nil) != (c.words == "") || err != nil && (!errors.Is(err, ErrConfig) && !errors.Is(err, ErrNoFrames) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
	}
	for _, c := range []struct{ given, want Config }{
		{Config{}, Config{RxRing: 2048, TxRing: 2048, FillRing: 2048, CompletionRing: 2048, RxFrames: 1024, TxBudget: 256, BindTimeout: 2 * time.Second}},
		{
			Config{RxRing: 2, TxRing: 128, FillRing: 4, CompletionRing: 8, RxFrames: 0, BindTimeout: 1},
			Config{RxRing: 2, TxRing: 128, FillRing: 4, CompletionRing: 8, RxFrames: 4, TxBudget: 128, BindTimeout: 1},
		},
		{
			Config{RxRing: 2, TxRing: 2, FillRing: 4, CompletionRing: 8, RxFrames: -5, TxBudget: 1, BindTimeout: -1},
			Config{RxRing: 2, TxRing: 2, FillRing: 4, CompletionRing: 8, RxFrames: 0, TxBudget: 1, BindTimeout: -1},
		},
	} {
		if err := c.given.setDefaults(pool); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.want, c.given); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for _, c := range []struct {
		poll *BusyPoll
		want time.Duration
	}{{nil, 0}, {&BusyPoll{}, 20 * time.Microsecond}, {&BusyPoll{Time: 1}, 1}} {
		if got := c.poll.duration(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.poll, got, c.want)
		}
	}
}

func TestUMEMConfigEdges(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   UMEMConfig
		words string
	}{
		"one frame":      {UMEMConfig{Frames: 1}, ""},
		"no frame":       {UMEMConfig{Frames: -1}, "UMEMConfig.Frames -1 is not in [1, 2^24]"},
		"many frames":    {UMEMConfig{Frames: 1<<24 + 1}, "UMEMConfig.Frames 16777217 is not in [1, 2^24]"},
		"page":           {UMEMConfig{Frames: 1, FrameSize: 4096}, ""},
		"beyond a page":  {UMEMConfig{Frames: 1, FrameSize: 8192}, "UMEMConfig.FrameSize 8192 is not a power of two in [2048, 4096]"},
		"small":          {UMEMConfig{Frames: 1, FrameSize: 1024}, "UMEMConfig.FrameSize 1024 is not"},
		"odd":            {UMEMConfig{Frames: 1, FrameSize: 3072}, "UMEMConfig.FrameSize 3072 is not"},
		"headroom":       {UMEMConfig{Frames: 1, Headroom: 2048 - 256 - 14 - 1}, ""},
		"all headroom":   {UMEMConfig{Frames: 1, Headroom: 2048 - 256 - 14}, "UMEMConfig.Headroom 1778 leaves no room for packets in frames of 2048"},
		"no headroom":    {UMEMConfig{Frames: 1, Headroom: -1}, "UMEMConfig.Headroom -1 leaves"},
		"checksum":       {UMEMConfig{Frames: 1, SoftwareChecksum: true}, "SoftwareChecksum needs TxMetadata"},
		"checksum, meta": {UMEMConfig{Frames: 1, SoftwareChecksum: true, TxMetadata: true}, ""},
	} {
		c.cfg.HugePages = HugePagesOff
		u, err := NewUMEM(c.cfg)
		if err == nil {
			if want := map[bool]int{true: TxMetaSize}[c.cfg.TxMetadata]; u.txMeta != want {
				t.Errorf("%s: %d bytes of metadata", name, u.txMeta)
			}
			err = errors.Join(u.Close(), u.Close())
		}
		if (err == nil) != (c.words == "") || err != nil && (!errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.words)) {
			t.Errorf("%s: %v, want %q", name, err, c.words)
		}
	}
	u := newUMEM(t, UMEMConfig{HugePages: HugePagesOff})
	if u.Frames() != 4096 || u.FrameSize() != 2048 || u.Pages() != PagesNormal {
		t.Errorf("%d frames of %d bytes on %v pages", u.Frames(), u.FrameSize(), u.Pages())
	}
	for _, n := range []int{-1, 4097} {
		if _, err := u.NewPool(n); !errors.Is(err, ErrNoFrames) {
			t.Errorf("a pool of %d: %v", n, err)
		}
	}
}

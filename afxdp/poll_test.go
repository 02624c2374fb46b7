// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

func TestCloseWakesPoll(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	errs := make(chan error)
	go func() {
		_, err := p.b.Poll(EventRx, -1)
		errs <- err
	}()
	for !p.b.in.wake.Sleeping() {
		time.Sleep(time.Millisecond)
	}
	if err := p.b.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, <-errs, net.ErrClosed)
	for name, call := range map[string]func() error{
		"Send":      func() error { _, err := p.b.Send(nil); return err },
		"Completed": func() error { _, err := p.b.Completed(nil); return err },
		"Receive":   func() error { _, err := p.b.Receive(nil); return err },
		"Release":   func() error { return p.b.Release(nil) },
		"Fill":      func() error { _, err := p.b.Fill(nil); return err },
		"Refill":    func() error { _, err := p.b.Refill(1); return err },
		"Kick":      p.b.Kick,
		"Poll":      func() error { _, err := p.b.Poll(EventRx, 0); return err },
		"Stats":     func() error { _, err := p.b.Stats(); return err },
		"Reopen":    func() error { return p.b.Reopen(t.Context()) },
		"Recover":   func() error { return p.b.Recover(t.Context()) },
	} {
		if err := call(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v, want net.ErrClosed", name, err)
		}
	}
	if err := p.b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	p.b.Wake() // must not write to a descriptor that may now be another's
}

func TestWakeFromAnotherGoroutine(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	for range 20 {
		done := make(chan struct{})
		go func() {
			p.b.Wake()
			close(done)
		}()
		if ev, err := p.b.Poll(EventRx, eventLimit); ev != EventWake || err != nil {
			t.Fatalf("Poll returned %b, %v", ev, err)
		}
		<-done
	}
	if ev, err := p.b.Poll(EventRx, time.Millisecond); ev != 0 || err != nil {
		t.Errorf("one Wake was reported twice, or something came: %b, %v", ev, err)
	}
}

// Close must wait for the loop that is inside the socket, and then the rings must not be used; a
// mistake is a segmentation fault here.
func TestCloseUnderLoad(t *testing.T) {
	p := newPair(t, UMEMConfig{Frames: 512}, Config{})
	loop := func(s *Socket, sending bool) error {
		descs, frames := make([]Desc, 64), make([]Frame, 64)
		for {
			if sending {
				n := s.Pool().AllocBatch(frames)
				for i, f := range frames[:n] {
					descs[i] = Desc{Frame: f, Off: 256, Len: 100}
				}
				sent, err := s.Send(descs[:n])
				// Unsent packets belong to the caller, even if the socket was closed.
				if err := errors.Join(err, s.Pool().Free(frames[sent:n]...)); err != nil {
					return err
				}
				if err := s.Kick(); err != nil {
					return err
				}
			}
			n, err := s.Completed(frames)
			if err != nil {
				return err
			}
			if err := s.Pool().Free(frames[:n]...); err != nil {
				return err
			}
			if n, err = s.Receive(descs); err != nil {
				return err
			}
			if err := s.Release(descs[:n]); err != nil {
				return err
			}
		}
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = loop(p.a, true) })
	wg.Go(func() { errs[1] = loop(p.b, false) })
	time.Sleep(50 * time.Millisecond)
	if err := errors.Join(p.prog.Close(), p.b.Close(), p.a.Close()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for _, err := range errs {
		wantErr(t, err, net.ErrClosed)
	}
	for _, s := range []*Socket{p.a, p.b} {
		flying, err := s.Reclaim()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Pool().Free(flying...); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.a.Pool().Available(); n != 512 {
		t.Errorf("sender: %d of 512 frames are left", n)
	}
}

// Backlog and FD may be called at any moment of a Close by another goroutine; reading an unmapped
// ring is a segmentation fault.
func TestBacklogDuringClose(t *testing.T) {
	const queues = 50 // so that none has to wait until it is free again
	ns := newNet(t, testbed.VethConfig{Queues: queues})
	pool := newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0)
	for i := range 2 * queues {
		s := open(t, ns, pool, Config{Interface: "a", Queue: i % queues, RxRing: 64, TxRing: 64, FillRing: 64, CompletionRing: 64, RxFrames: -1})
		started, done := make(chan struct{}), make(chan any)
		go func() {
			debug.SetPanicOnFault(true)
			defer func() { done <- recover() }()
			close(started)
			for s.FD() >= 0 || s.Backlog() > 0 {
				for range 100 {
					s.Backlog()
				}
			}
		}()
		<-started
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if fault := <-done; fault != nil {
			t.Fatal(fault)
		}
	}
}

func TestConcurrentUseIsRefused(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	done := make(chan error)
	go func() {
		_, err := p.b.Poll(EventRx, -1)
		done <- err
	}()
	for !p.b.in.wake.Sleeping() {
		time.Sleep(time.Millisecond)
	}
	_, err := p.b.Receive(make([]Desc, 1))
	wantErr(t, err, ErrConcurrentUse)
	p.b.Wake()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestBusyPoll(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{BusyPoll: &BusyPoll{Time: 50 * time.Microsecond, Budget: 32}})
	if !p.b.Info().BusyPoll {
		t.Error("Info does not tell of busy polling")
	}
	for name, c := range map[string]struct{ opt, want int }{
		"SO_PREFER_BUSY_POLL": {unix.SO_PREFER_BUSY_POLL, 1},
		"SO_BUSY_POLL":        {unix.SO_BUSY_POLL, 50}, // the budget cannot be read back
	} {
		if got, err := unix.GetsockoptInt(p.b.FD(), unix.SOL_SOCKET, c.opt); got != c.want || err != nil {
			t.Errorf("%s is %d (%v), want %d", name, got, err, c.want)
		}
	}
	for attr, value := range map[string]string{"napi_defer_hard_irqs": "2", "gro_flush_timeout": "200000"} {
		if err := p.ns.SetDeviceAttr("b", attr, value); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(20) {
		transmit(t, p.a, newPackets(t, p.a, i*8, 8, 190))
		if diff := cmp.Diff(upTo(i*8, 8), receive(t, p.b, 8)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// A program that waits for packets polls the driver: in Poll, as well as in a
// loop of Receive alone.
func TestBusyPollOfReceivers(t *testing.T) {
	for name, wait := range map[string]func(*Socket) error{
		"Poll":    func(s *Socket) error { _, err := s.Poll(EventRx, time.Second); return err },
		"Receive": func(*Socket) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 200 * time.Microsecond
			p := newPair(t, UMEMConfig{}, Config{BusyPoll: &BusyPoll{Time: limit}})
			calls := &countedCalls{kernelCalls: p.b.calls}
			p.b.calls = calls
			descs := make([]Desc, 64)
			for i := range uint64(50) {
				before := calls.recvs
				transmit(t, p.a, newPackets(t, p.a, i*8, 8, 190))
				for got := 0; got < 8; {
					if err := wait(p.b); err != nil {
						t.Fatal(err)
					}
					n, err := p.b.Receive(descs)
					if err == nil {
						err = p.b.Release(descs[:n])
					}
					if err != nil {
						t.Fatal(err)
					}
					got += n
				}
				if _, err := p.b.Poll(EventRx, 0); err != nil {
					t.Fatal(err)
				}
				if n, err := p.b.Receive(descs); n != 0 || err != nil {
					t.Fatal(n, err)
				}
				if calls.recvs == before {
					t.Fatal("no call polled the driver")
				}
			}
			before, start := calls.recvs, time.Now()
			if ev, err := p.b.Poll(EventRx, 2*limit); ev != 0 || err != nil {
				t.Fatal(ev, err)
			}
			if n := calls.recvs - before; n == 0 || time.Since(start) < 2*limit {
				t.Errorf("%d calls in an idle Poll of %v", n, time.Since(start))
			}
		})
	}
}

func TestSpinThenSleep(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{Spin: 100 * time.Microsecond})
	if ev, err := p.b.Poll(EventRx, time.Millisecond); ev != 0 || err != nil {
		t.Fatal(ev, err)
	}
	if got := p.b.in.polls.spin; got != 50*time.Microsecond {
		t.Errorf("after spinning in vain the next limit is %v, want half of 100µs", got)
	}
	transmit(t, p.a, newPackets(t, p.a, 0, 1, 60))
	receive(t, p.b, 1)
	for range 10 {
		if _, err := p.b.Poll(EventRx, time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := p.b.in.polls.spin, 100*time.Microsecond/8; got != want {
		t.Errorf("an idle socket spins for %v, want %v", got, want)
	}
}

func TestThreadedNAPI(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	if err := p.ns.SetThreadedNAPI("b", true); err != nil {
		t.Fatal(err)
	}
	transmit(t, p.a, newPackets(t, p.a, 0, 200, 190))
	if diff := cmp.Diff(upTo(0, 200), receive(t, p.b, 200)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := p.ns.SetThreadedNAPI("nosuch", true); !errors.Is(err, unix.ENOENT) {
		t.Errorf("absent interface: %v", err)
	}
}

// A kernel that forgets to wake the program costs time, but no packets, and it is visible.
func TestLostWakeupIsCounted(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 16, ring: 8})
	if err := s.in.wake.Open(); err != nil { // and only the timeout ends a sleep
		t.Fatal(err)
	}
	defer s.in.wake.Close()
	if _, err := s.Refill(8); err != nil {
		t.Fatal(err)
	}
	delivered := make(chan bool)
	go func() {
		for !s.in.wake.Sleeping() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond) // until it sleeps
		delivered <- k.deliver(1, 0)
	}()
	ev, err := s.Poll(EventRx, -1)
	if !<-delivered || ev != EventRx || err != nil {
		t.Fatalf("events %b, %v", ev, err)
	}
	if s.in.count.Overslept != 1 {
		t.Errorf("%d lost wake-ups counted, want 1", s.in.count.Overslept)
	}
}

// A driver in zero-copy mode may find the fill ring empty before frames are put
// there, and set the flag after the program looked at it. A program that waits for
// packets looks again.
func TestFillWakeupIsNotLost(t *testing.T) {
	for name, wait := range map[string]func(*Socket) error{
		"Receive": func(s *Socket) error { _, err := s.Receive(make([]Desc, 8)); return err },
		"spinning Poll": func(s *Socket) error {
			s.in.polls.spinMax, s.in.polls.spin = time.Minute, time.Minute
			_, err := s.Poll(EventRx, time.Second)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, k := newSim(t, simConfig{frames: 16, ring: 8})
			if _, err := s.Refill(8); err != nil {
				t.Fatal(err)
			}
			s.fill.flags.Store(ringNeedWakeup)
			k.onRecv = func() unix.Errno {
				s.fill.flags.Store(0)
				k.deliver(0, 0)
				return 0
			}
			if err := wait(s); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Receive(make([]Desc, 8)); n != 1 || err != nil {
				t.Errorf("received %d, %v", n, err)
			}
			if s.in.count.RxWakeups != 1 {
				t.Errorf("%d wake-ups, want 1", s.in.count.RxWakeups)
			}
		})
	}
}

// A Wake just before the socket announces its sleep ends that sleep.
func TestWakeBeforeSleep(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	openWakers(t, s)
	s.Wake() // which sees no sleep to end
	start := time.Now()
	s.in.polls.which = receiving
	if some, err := s.in.polls.blockFor(EventRx, eventLimit); !some || err != nil || time.Since(start) >= eventLimit {
		t.Errorf("%v, %v after %v", some, err, time.Since(start))
	}
}

// A sleep for both halves lets Snapshot see the counts of both.
func TestSleepShowsCounters(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	openWakers(t, s)
	s.in.count.RxReceived, s.out.count.TxSubmitted = 1, 2
	s.in.polls.which = both
	if _, err := s.in.polls.sleepFor(EventRx|EventCompletion, 0); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Snapshot(); st.RxReceived != 1 || st.TxSubmitted != 2 {
		t.Errorf("%+v, %v", st.Counters, err)
	}
}

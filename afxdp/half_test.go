// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// One goroutine sends on a socket while another one receives on it: at both ends of a pair of
// interfaces, no packet is lost, repeated or changed. Close ends all of them.
func TestHalvesOfASocket(t *testing.T) {
	const packets, window = 5000, 64
	ns := newNet(t, testbed.VethConfig{})
	var ends [2]*Socket
	for i, name := range []string{"a", "b"} {
		prog := attach(t, ns, AttachConfig{Interface: name, Match: MatchAll()})
		ends[i] = open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 1024}), 512), Config{Interface: name, XSKMap: prog.XSKMap(), RxFrames: 512})
	}
	// The receiver reports its progress to the sender at its own end, so that no queue overflows
	// and each packet has to arrive.
	var got [2]chan int
	for i := range got {
		got[i] = make(chan int, packets)
	}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i, s := range ends {
		own, err := s.UMEM().NewPool(0) // the sender's
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { errs[2*i] = sendNumbers(s, own, packets, window, got[1-i]) })
		wg.Go(func() { errs[2*i+1] = receiveNumbers(s, packets, got[i]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, s := range ends {
		st, err := s.Stats()
		want := Counters{RxReceived: packets, TxSubmitted: packets, TxCompleted: packets}
		have := Counters{RxReceived: st.RxReceived, TxSubmitted: st.TxSubmitted, TxCompleted: st.TxCompleted, BadDescs: st.BadDescs, BadCompletions: st.BadCompletions}
		if diff := cmp.Diff(want, have); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	s := ends[0]
	for i, want := range []Events{EventRx, EventCompletion} {
		wg.Go(func() { _, errs[i] = s.Poll(want, -1) })
	}
	awaitSleep(s)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for i := range 2 {
		wantErr(t, errs[i], net.ErrClosed)
	}
}

// sendNumbers sends packets numbered from 0, at most window more than have arrived.
func sendNumbers(s *Socket, pool *Pool, packets, window int, arrived <-chan int) error {
	frames := make([]Frame, 32)
	for sent, there := 0, 0; there < packets || s.InFlight() > 0; {
		for more := true; more; {
			select {
			case <-arrived:
				there++
			default:
				more = false
			}
		}
		n := pool.AllocBatch(frames[:min(len(frames), packets-sent, there+window-sent)])
		descs := make([]Desc, n)
		for i, f := range frames[:n] {
			descs[i] = Desc{Frame: f, Off: 256, Len: 100}
			fillPacket(s.UMEM().Packet(descs[i]), uint64(sent+i))
		}
		for rest := descs; len(rest) > 0; {
			n, err := s.Send(rest)
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		sent += n
		if err := s.Kick(); err != nil {
			return err
		}
		if _, err := s.Poll(EventCompletion, time.Millisecond); err != nil {
			return err
		}
		n, err := s.Completed(frames)
		if err == nil {
			err = pool.Free(frames[:n]...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// receiveNumbers receives packets in order.
func receiveNumbers(s *Socket, packets int, arrived chan<- int) error {
	descs := make([]Desc, 32)
	for next := 0; next < packets; {
		if ev, err := s.Poll(EventRx, eventLimit); ev == 0 || err != nil {
			return errors.Join(errors.New("no packet came"), err)
		}
		n, err := s.Receive(descs)
		if err != nil {
			return err
		}
		for _, d := range descs[:n] {
			number, err := packetNumber(s.UMEM().Packet(d))
			if err != nil {
				return err
			}
			if number != uint64(next) {
				return errors.New("packets are missing or not in order")
			}
			next++
			arrived <- next
		}
		if err := s.Release(descs[:n]); err != nil {
			return err
		}
	}
	return nil
}

// awaitSleep waits until both halves of a socket sleep in Poll.
func awaitSleep(s *Socket) {
	for !s.in.wake.Sleeping() || !s.out.wake.Sleeping() {
		time.Sleep(time.Millisecond)
	}
}

// Each half has one goroutine, and calls that need both halves fail in either.
func TestHalvesHaveOneGoroutineEach(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	s := p.b
	halves := map[side]map[string]func() error{
		receiving: {
			"Receive": func() error { _, err := s.Receive(make([]Desc, 1)); return err },
			"Release": func() error { return s.Release(nil) },
			"Fill":    func() error { _, err := s.Fill(nil); return err },
			"Refill":  func() error { _, err := s.Refill(0); return err },
			"Poll":    func() error { _, err := s.Poll(EventRx, 0); return err },
		},
		sending: {
			"Send":            func() error { _, err := s.Send(nil); return err },
			"Kick":            s.Kick,
			"Completed":       func() error { _, err := s.Completed(nil); return err },
			"Poll":            func() error { _, err := s.Poll(EventCompletion, 0); return err },
			"Poll for a Wake": func() error { _, err := s.Poll(0, 0); return err },
		},
		both: {
			"Poll":    func() error { _, err := s.Poll(EventRx|EventCompletion, 0); return err },
			"Stats":   func() error { _, err := s.Stats(); return err },
			"Rings":   func() error { _, err := s.Rings(); return err },
			"Recover": func() error { return s.Recover(t.Context()) },
			"Reopen":  func() error { return s.Reopen(t.Context()) },
		},
	}
	for _, held := range []side{receiving, sending, both} {
		if err := s.enterHalves(held); err != nil {
			t.Fatal(err)
		}
		for needs, calls := range halves {
			for name, call := range calls {
				var want error
				if held&needs != 0 {
					want = ErrConcurrentUse
				}
				if err := call(); !errors.Is(err, want) {
					t.Errorf("%s of half %b while %b is taken: %v, want %v", name, needs, held, err, want)
				}
			}
		}
		s.leaveHalves(held)
	}
	for _, calls := range halves {
		for name, call := range calls {
			if err := call(); err != nil {
				t.Errorf("%s alone: %v", name, err)
			}
		}
	}
}

// Wake ends the sleep of both goroutines.
func TestWakeOfBothHalves(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a"})
	var wg sync.WaitGroup
	for _, want := range []Events{EventRx, EventCompletion} {
		wg.Go(func() {
			if ev, err := s.Poll(want, -1); ev != EventWake || err != nil {
				t.Errorf("events %b, %v", ev, err)
			}
		})
	}
	awaitSleep(s)
	s.Wake()
	wg.Wait()
}

// Close ends the sleep of either goroutine at once, not at the next look at the link.
func TestCloseInterruptsBothHalves(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{Frames: 64}), 0), Config{Interface: "a"})
	if err := s.enterHalves(both); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for _, which := range []side{receiving, sending} {
		fds := []unix.PollFd{{Fd: int32(s.half(which).wake.FD()), Events: unix.POLLIN}}
		interrupted := 0
		for end := time.Now().Add(eventLimit); interrupted == 0 && time.Now().Before(end); {
			interrupted, _ = unix.Poll(fds, 100) // again after a signal
		}
		if interrupted != 1 {
			t.Errorf("half %b would sleep on", which)
		}
		s.leaveHalves(which)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// The socket is closed when a call of Close returns, also if another call does the work.
func TestSecondCloseWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Socket{in: half{gate: newGate()}, out: half{gate: newGate()}, closed: make(chan struct{})}
		s.closeGates() // like the first call, which has not finished
		returned := false
		go func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			returned = true
		}()
		synctest.Wait()
		if returned {
			t.Error("did not wait")
		}
		close(s.closed)
		synctest.Wait()
		if !returned {
			t.Error("waits on")
		}
	})
}

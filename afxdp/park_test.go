// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/test/refuse"
)

// newPoller returns a Poller that sleeps in ppoll, or one that parks.
func newPoller(t *testing.T, parked bool, socks ...*Socket) *Poller {
	t.Helper()
	p := NewPoller(socks...)
	if parked {
		if err := p.Park(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Packets end each sleep of a Poller that parks, and none of them waits for the sleep's timeout;
// also packets for a socket that was reopened.
func TestPacketsEndParking(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	poller := newPoller(t, true, p.b)
	answers := newPoller(t, true, p.a)
	const rounds = 300
	for begin := uint64(0); begin < 3*rounds; begin += rounds {
		done := make(chan error)
		go func() {
			for i := range uint64(rounds) {
				if ready, err := poller.Poll(EventRx, eventLimit); err != nil || len(ready) != 1 || ready[0].Events != EventRx {
					done <- errors.Join(err, errors.New("no packet came"))
					return
				}
				if diff := cmp.Diff(upTo(begin+i, 1), receive(t, p.b, 1)); diff != "" {
					done <- errors.New(diff)
					return
				}
				p.a.Wake() // the answer
			}
			done <- nil
		}()
		for i := range uint64(rounds) {
			transmit(t, p.a, newPackets(t, p.a, begin+i, 1, 190))
			if ready, err := answers.Poll(EventRx, eventLimit); err != nil || len(ready) != 1 || ready[0].Events != EventWake {
				t.Fatal(ready, err)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if n := p.b.in.count.Overslept; n != 0 {
			t.Errorf("%d of %d sleeps ended by their time, with packets waiting", n, rounds)
		}
		if err := p.b.Reopen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestParkingEnds(t *testing.T) {
	p := newPair(t, UMEMConfig{}, Config{})
	poller := newPoller(t, true, p.a, p.b)
	for _, limit := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 250 * time.Millisecond} {
		start := time.Now()
		if ready, err := poller.Poll(EventRx, limit); len(ready) != 0 || err != nil || time.Since(start) < limit {
			t.Errorf("%v, %v after %v of %v", ready, err, time.Since(start), limit)
		}
	}
	for range 100 {
		go p.b.Wake()
		if ready, err := poller.Poll(EventRx, eventLimit); !slices.Equal(ready, []Ready{{p.b, EventWake, nil}}) || err != nil {
			t.Fatal(ready, err)
		}
	}
	go func() {
		for !p.a.in.wake.Sleeping() {
			time.Sleep(time.Millisecond)
		}
		_ = p.a.Close()
	}()
	if ready, err := poller.Poll(EventRx, -1); !slices.Equal(ready, []Ready{{p.a, 0, net.ErrClosed}}) || err != nil {
		t.Errorf("%v, %v", ready, err)
	}
	transmitTo := newPackets(t, p.b, 0, 1, 60) // the other socket continues
	if err := p.b.Pool().Free(transmitTo[0].Frame); err != nil {
		t.Fatal(err)
	}
	go p.b.Wake()
	if ready, err := poller.Poll(EventRx, eventLimit); !slices.Equal(ready, []Ready{{p.b, EventWake, nil}}) || err != nil {
		t.Errorf("%v, %v", ready, err)
	}
}

// A sleep counts as too long if packets arrived and only its timeout ended it, and not if Wake did.
func TestOversleptWhileParked(t *testing.T) {
	for name, c := range map[string]struct {
		wake bool
		want uint64
	}{"by time": {false, 1}, "by Wake": {true, 0}} {
		t.Run(name, func(t *testing.T) {
			s, k := newSim(t, simConfig{frames: 8, ring: 8})
			openWakers(t, s)
			if _, err := s.Refill(4); err != nil {
				t.Fatal(err)
			}
			p := newPoller(t, true, s)
			go func() {
				for !s.in.wake.Sleeping() {
					time.Sleep(time.Millisecond)
				}
				k.deliver(1, 0) // without waking the program
				if c.wake {
					s.Wake()
				}
			}()
			if ready, err := p.Poll(EventRx, time.Minute); len(ready) != 1 || ready[0].Events&EventRx == 0 || err != nil {
				t.Errorf("%v, %v", ready, err)
			}
			if got := s.in.count.Overslept; got != c.want {
				t.Errorf("%d sleeps were too long, want %d", got, c.want)
			}
		})
	}
}

// A Poller that cannot park returns an error, and leaves no descriptor behind.
func TestParkingIsRefused(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	openWakers(t, s)
	before := refuse.CountDescriptors(t)
	for _, call := range []uintptr{unix.SYS_EPOLL_CREATE1, unix.SYS_FCNTL} {
		err := refuse.Run(func() error { return NewPoller(s).Park() }, refuse.Call{Number: call, Err: unix.EDOM})
		if !errors.Is(err, unix.EDOM) {
			t.Errorf("call %d: %v", call, err)
		}
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	p := NewPoller(s)
	if err := p.Park(); err != nil {
		t.Fatal(err)
	}
	p.Watch(fd)
	err = refuse.Run(func() error { _, err := p.Poll(EventRx, time.Second); return err }, refuse.Call{Number: unix.SYS_EPOLL_CTL, Err: unix.EDOM})
	if !errors.Is(err, unix.EDOM) {
		t.Errorf("a descriptor that cannot be added: %v", err)
	}
	if err := errors.Join(p.Close(), unix.Close(fd)); err != nil {
		t.Error(err)
	}
	if now := refuse.CountDescriptors(t); now != before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}

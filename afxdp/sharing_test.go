// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// The number of a closed socket is not reused while frames carry it: reclaiming them would take the
// new socket's.
func TestReclaimAfterAnotherSocketWasOpened(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	p0, p1 := newPool(t, u, 32), newPool(t, u, 32)
	s0 := open(t, ns, p0, Config{Interface: "a", RxFrames: 16})
	if err := s0.Close(); err != nil {
		t.Fatal(err)
	}
	s1 := open(t, ns, p1, Config{Interface: "a", Queue: 1, RxFrames: 16})
	for range 2 { // also when asked again
		if flying, err := s0.Reclaim(); len(flying) > 0 || err != nil {
			t.Fatal(flying, err)
		}
	}
	if p0.Available() != 32 || p1.Available() != 16 {
		t.Errorf("%d and %d frames are free, want 32 and 16", p0.Available(), p1.Available())
	}
	if diff := cmp.Diff(Census{Free: 48, Filling: 16}, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	transmit(t, s1, newPackets(t, s1, 0, 5, 60))
}

// Numbers of sockets without frames, or whose frames were reclaimed, are reused; the others run out
// with an error that names the remedy.
func TestSocketNumbersAreUsedAgain(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: maxSockets + 1})
	pool := newPool(t, u, 0)
	// cycle registers a socket, lends n frames through it and closes it.
	cycle := func(n int) (*Socket, error) {
		s := &Socket{in: half{gate: newGate()}, out: half{gate: newGate()}, umem: u, pool: pool, state: u.state, fd: -1, closed: make(chan struct{})}
		s.disconnect()
		if err := s.openWakers(); err != nil {
			t.Fatal(err)
		}
		if err := u.register(s); err != nil {
			return nil, errors.Join(err, s.closeWakers())
		}
		s.setStates()
		for range n {
			f, ok := pool.Alloc()
			if !ok {
				t.Fatal("no free frame")
			}
			u.state[f] = s.filling
		}
		return s, s.Close()
	}
	mustCycle := func(n int) *Socket {
		s, err := cycle(n)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for range maxSockets + 1 {
		mustCycle(0)
	}
	for range maxSockets + 1 {
		if _, err := mustCycle(1).Reclaim(); err != nil {
			t.Fatal(err)
		}
	}
	var last *Socket
	for range maxSockets {
		last = mustCycle(1)
	}
	_, err := cycle(1)
	wantErr(t, err, ErrConfig)
	if _, err := last.Reclaim(); err != nil {
		t.Fatal(err)
	}
	mustCycle(1)
}

// When another goroutine calls Close, the owner, who is notified first, may reclaim frames only
// when the kernel has no more access to them.
func TestReclaimWaitsForClose(t *testing.T) {
	p := newPair(t, UMEMConfig{Frames: 256}, Config{RxFrames: 128})
	stop := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		frames := make([]Frame, 64)
		for number := uint64(0); ; {
			select {
			case <-stop:
				return
			default:
			}
			if p.a.Pool().Available() == 0 {
				time.Sleep(time.Millisecond)
			} else {
				if _, err := p.a.Send(newPackets(t, p.a, number, 1, 60)); err != nil {
					t.Error(err)
				}
				number++
			}
			if err := p.a.Kick(); err != nil {
				t.Error(err)
			}
			if n, err := p.a.Completed(frames); err != nil || p.a.Pool().Free(frames[:n]...) != nil {
				t.Error(err)
			}
		}
	})
	defer sender.Wait()
	defer close(stop)
	sock, pool := p.b, p.b.Pool()
	for range 10 {
		closed := make(chan error)
		go func(s *Socket) { closed <- s.Close() }(sock)
		descs := make([]Desc, 64)
		for {
			if _, err := sock.Poll(EventRx, -1); err != nil {
				wantErr(t, err, net.ErrClosed)
				break
			}
			n, err := sock.Receive(descs)
			if err == nil {
				err = sock.Release(descs[:n])
			}
			if err != nil {
				wantErr(t, err, net.ErrClosed)
				if err := pool.Free(frameNumbers(descs[:n])...); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
		if _, err := sock.Reclaim(); err != nil {
			t.Fatal(err)
		}
		if n := len(sock.mappings); n > 0 {
			t.Fatalf("Reclaim returned with %d rings mapped", n)
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		if pool.Available() != 256 {
			t.Fatalf("%d frames are free, want 256", pool.Available())
		}
		sock = open(t, p.ns, pool, Config{Interface: "b", XSKMap: p.prog.XSKMap(), RxFrames: 128})
	}
}

// Two goroutines with a socket each on one UMEM reopen at will.
func TestSocketsOfOneUMEMReopenIndependently(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{Queues: 2})
	u := newUMEM(t, UMEMConfig{Frames: 256})
	var owners sync.WaitGroup
	pools := []*Pool{newPool(t, u, 128), newPool(t, u, 128)}
	for queue, pool := range pools {
		cfg := Config{Interface: "a", Queue: queue, RxFrames: 64}
		s := open(t, ns, pool, cfg)
		owners.Go(func() {
			frames := make([]Frame, 64)
			for i := range 15 {
				f := make([]Frame, 8)
				descs := make([]Desc, pool.AllocBatch(f))
				for j := range descs {
					descs[j] = Desc{Frame: f[j], Off: 256, Len: 60}
				}
				n, err := s.Send(descs)
				if err != nil || n != len(descs) {
					t.Error(n, err)
					return
				}
				if i%3 == 0 {
					if err := s.Close(); err != nil {
						t.Error(err)
						return
					}
					flying, err := s.Reclaim()
					if err != nil || pool.Free(flying...) != nil || pool.Available() != 128 {
						t.Errorf("%d in flight, %v, %d free", len(flying), err, pool.Available())
						return
					}
					if s, err = tryOpen(ns, pool, cfg); err != nil {
						t.Error(err)
						return
					}
					continue
				}
				if err := ns.Do(func() error { return s.Reopen(t.Context()) }); err != nil {
					t.Error(err)
					return
				}
				n, err = s.Completed(frames)
				if err != nil || n != len(descs) || pool.Free(frames[:n]...) != nil {
					t.Errorf("%d of %d came back, %v", n, len(descs), err)
					return
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if _, err := s.Reclaim(); err != nil || pool.Available() != 128 {
				t.Errorf("%v, %d frames are free", err, pool.Available())
			}
		})
	}
	owners.Wait()
	if diff := cmp.Diff(Census{Free: 256}, u.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

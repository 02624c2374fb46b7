// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Two goroutines with a socket each, and one that only sends, on one queue: each gets its packets
// back, in order and unchanged, and its frames; and none of their frames is written. This also
// holds on kernels on which sockets must send in turn.
func TestShareQueue(t *testing.T) {
	for name, release := range map[string]string{"": kernelRelease(), "in turn": "6.12.30"} {
		t.Run(name, func(t *testing.T) {
			defer func(old func() string) { kernelRelease = old }(kernelRelease)
			kernelRelease = func() string { return release }
			const packets = 3000
			n := newSharedNet(t, 2048, 2)
			var mates []*mate
			for i := range 2 {
				mates = append(mates, newMate(t, open(t, n.ns, newPool(t, n.umem, 512), n.config(i)), i))
			}
			sender := open(t, n.ns, newPool(t, n.umem, 512), Config{Interface: "a", ShareQueue: true, RxFrames: -1})
			for i, m := range append(mates, &mate{s: sender}) {
				if info := m.s.Info(); info.ZeroCopy || info.SharedUMEM != (i > 0) {
					t.Errorf("socket %d: %+v", i, info)
				}
			}
			var wg sync.WaitGroup
			for _, m := range mates {
				wg.Go(func() {
					for stop := time.Now().Add(eventLimit); m.sent < packets && time.Now().Before(stop); {
						if err := m.turn(48); err != nil {
							t.Error(err)
							return
						}
					}
					if err := errors.Join(m.finish(), m.checkCanaries(), m.pool.Free(m.canaries...)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Go(func() {
				m := &mate{s: sender, pool: sender.Pool(), index: 7, descs: make([]Desc, 8), frames: make([]Frame, 8)}
				for m.sent < packets/4 {
					m.got = m.sent - uint64(m.s.InFlight()) // they do not come back
					if err := m.turn(8); err != nil {
						t.Error(err)
						return
					}
				}
				for m.s.InFlight() > 0 {
					if err := errors.Join(m.s.Kick(), m.complete()); err != nil {
						t.Error(err)
						return
					}
				}
				if m.pool.Available() != 512 {
					t.Errorf("%d of the sender's 512 frames are free", m.pool.Available())
				}
			})
			wg.Wait()
			if t.Failed() {
				return
			}
			if diff := cmp.Diff(Census{Free: 2048 - 256, Filling: 256}, n.umem.Census()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for i, m := range mates {
				st, err := m.s.Stats()
				have := Counters{RxReceived: st.RxReceived, TxSubmitted: st.TxSubmitted, TxCompleted: st.TxCompleted, BadDescs: st.BadDescs, BadCompletions: st.BadCompletions}
				want := Counters{RxReceived: m.sent, TxSubmitted: m.sent, TxCompleted: m.sent}
				if diff := cmp.Diff(want, have); diff != "" || err != nil {
					t.Errorf("mate %d: %v (-want +got):\n%s", i, err, diff)
				}
				rings, err := m.s.Rings()
				if diff := cmp.Diff(RingCounts{Fill: 256}, rings); diff != "" || err != nil {
					t.Errorf("mate %d: %v (-want +got):\n%s", i, err, diff)
				}
			}
			if len(n.umem.queues) != 1 {
				t.Errorf("%d queues", len(n.umem.queues))
			}
		})
	}
}

// In whatever order sockets of a queue are closed and reopened under load, the others continue, no
// frame is written that the kernel does not own, and in the end all are free.
func TestShareQueueClosesInAnyOrder(t *testing.T) {
	const mates, rounds = 3, 34
	n := newSharedNet(t, 4096, mates)
	var wg sync.WaitGroup
	// The last socket of the queue gets the frames of the fill ring, including the others'.
	var bank struct {
		sync.Mutex
		frames []Frame
	}
	balance := func(pool *Pool, most int) error {
		bank.Lock()
		defer bank.Unlock()
		for pool.Available() > most {
			f, _ := pool.Alloc()
			bank.frames = append(bank.frames, f)
		}
		for len(bank.frames) > 0 && pool.Available() < most {
			if err := pool.Free(bank.frames[0]); err != nil {
				return err
			}
			bank.frames = bank.frames[1:]
		}
		return nil
	}
	for i := range mates {
		pool := newPool(t, n.umem, 1024)
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			s, err := tryOpen(n.ns, pool, n.config(i))
			if err != nil {
				t.Error(err)
				return
			}
			m := newMate(t, s, i)
			m.lossless = false
			fail := func(err error) bool {
				if err != nil {
					t.Errorf("mate %d: %v", i, err)
				}
				return err != nil
			}
			for range rounds {
				for range 1 + random.IntN(40) {
					if m.sent-m.got > 512 {
						m.got = m.sent // they were lost
					}
					if fail(m.turn(64)) {
						return
					}
				}
				if random.IntN(2) == 0 {
					if fail(m.s.Reopen(context.Background())) {
						return
					}
				} else {
					if fail(errors.Join(m.shut(), balance(pool, 900))) {
						return
					}
					if m.s, err = tryOpen(n.ns, pool, n.config(i)); fail(err) {
						return
					}
				}
				m.got = m.sent // of which some are lost
			}
			for stop := time.Now().Add(eventLimit); m.s.InFlight() > 0 && time.Now().Before(stop); {
				if fail(errors.Join(m.s.Kick(), m.complete())) {
					return
				}
			}
			fail(errors.Join(m.checkCanaries(), pool.Free(m.canaries...), m.shut(), balance(pool, 0)))
		})
	}
	wg.Wait()
	if err := balance(newPool(t, n.umem, 0), 4096); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(Census{Free: 4096}, n.umem.Census()); diff != "" && !t.Failed() {
		for i, st := range n.umem.state {
			if st != stateFree {
				t.Logf("frame %d: %#x", i, st)
				break
			}
		}
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(n.umem.queues) != 0 {
		t.Errorf("%d queues", len(n.umem.queues))
	}
	for number, taken := range n.umem.numbers {
		if taken {
			t.Errorf("number %d is taken", number)
		}
	}
}

// A second socket that cannot be opened does not change the first one, and gets its frames back.
func TestShareQueueFailedOpen(t *testing.T) {
	n := newSharedNet(t, 1024, 2)
	m := newMate(t, open(t, n.ns, newPool(t, n.umem, 512), n.config(0)), 0)
	other := newPool(t, n.umem, 512)
	closed, err := newXSKMap(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := m.s.cfg.XSKMap.Clone()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	for name, c := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"the other one's map":   {func(c *Config) { c.XSKMap = again }, ErrConfig},
		"closed map":            {func(c *Config) { c.XSKMap = closed }, ErrConfig},
		"zero-copy":             {func(c *Config) { c.Mode = BindZeroCopy }, ErrConfig},
		"multi-buffer":          {func(c *Config) { c.MultiBuffer = true }, ErrConfig},
		"one that does not":     {func(c *Config) { c.ShareQueue = false }, ErrQueueBusy},
		"interface not there":   {func(c *Config) { c.Interface = "c" }, ErrInterfaceGone},
		"more frames than free": {func(c *Config) { c.RxFrames = 513 }, ErrNoFrames},
	} {
		cfg := n.config(1)
		c.change(&cfg)
		if _, err := tryOpen(n.ns, other, cfg); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if other.Available() != 512 || n.umem.queues[m.s.queue] == nil || n.umem.queues[m.s.queue].users != 1 {
			t.Errorf("%s: %d frames are free, %+v", name, other.Available(), n.umem.queues)
		}
	}
	elsewhere := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	_, err = tryOpen(n.ns, elsewhere, Config{Interface: "a", ShareQueue: true, BindTimeout: time.Millisecond})
	wantErr(t, err, ErrQueueBusy)
	for m.sent < 100 {
		if err := m.turn(32); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(m.finish(), m.checkCanaries()); err != nil {
		t.Fatal(err)
	}
	rings, err := m.s.Rings()
	if diff := cmp.Diff(RingCounts{Fill: 128}, rings); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// A socket that does not share its queue keeps it exclusively.
func TestShareQueueIsAgreedOn(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	u := newUMEM(t, UMEMConfig{Frames: 64})
	open(t, ns, newPool(t, u, 32), Config{Interface: "a"})
	_, err := tryOpen(ns, newPool(t, u, 32), Config{Interface: "a", ShareQueue: true})
	wantErr(t, err, ErrQueueBusy)
}

// The interface is deleted and created again, and moves to another namespace and back: both sockets
// recover.
func TestShareQueueInterfaceVanishes(t *testing.T) {
	n := newSharedNet(t, 1024, 2)
	var mates [2]*mate
	for i := range mates {
		mates[i] = newMate(t, open(t, n.ns, newPool(t, n.umem, 512), n.config(i)), i)
		mates[i].lossless = false
	}
	for range 3 {
		for _, m := range mates {
			for range 20 {
				if err := m.turn(16); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := n.ns.Delete("a"); err != nil {
			t.Fatal(err)
		}
		for _, m := range mates {
			var err error
			for stop := time.Now().Add(eventLimit); err == nil && time.Now().Before(stop); {
				err = m.turn(64)
			}
			wantErr(t, err, ErrInterfaceGone)
		}
		if err := n.ns.Veth(testbed.VethConfig{}); err != nil {
			t.Fatal(err)
		}
		if err := n.ns.Do(n.prog.Reattach); err != nil {
			t.Fatal(err)
		}
		for _, m := range mates { // one goroutine, one after the other
			if err := m.s.Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.got = m.sent
		}
		if a, b := mates[0].s.mates, mates[1].s.mates; a != b || a.users != 2 {
			t.Fatalf("not together: %+v, %+v", a, b)
		}
		rings, err := mates[0].s.Rings()
		if err != nil || rings.Fill != 256 {
			t.Errorf("%d frames in the fill ring, %v", rings.Fill, err)
		}
		for _, m := range mates {
			for m.s.InFlight() > 0 {
				if err := m.complete(); err != nil {
					t.Fatal(err)
				}
			}
			transmitted := newPackets(t, m.s, 0, 8, 60)
			if err := m.pool.Free(transmit(t, m.s, transmitted)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, m := range mates {
		if err := errors.Join(m.checkCanaries(), m.pool.Free(m.canaries...), m.shut()); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(Census{Free: 1024}, n.umem.Census()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A completion that is announced twice, or for a frame that no socket has sent, is ignored.
func TestShareQueueBadCompletions(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 64, ring: 16})
	q := &sharedQueue{number: 9, fill: s.fill, completion: s.completion, users: 2}
	q.filling, q.landed = statesOf(q.number)
	other := &Socket{umem: s.umem, state: s.state, id: 2}
	other.setStates()
	s.completion = addrRing{ring: emptyRing()}
	s.filling, s.mates, s.landed, other.landed = q.filling, q, make([]Frame, 0, 16), make([]Frame, 0, 16)
	q.members = []*Socket{s, other}
	sent := newPackets(t, s, 0, 2, 60)
	if n, err := s.Send(sent); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	s.state[40] = other.flying
	for _, f := range []uint64{uint64(sent[1].Frame), 40, uint64(sent[1].Frame), 41, 1 << 20, 40} {
		k.complete(f << 11)
	}
	if ev := s.ready(sending, EventCompletion); ev != EventCompletion {
		t.Errorf("events %b", ev)
	}
	done := make([]Frame, 8)
	n, err := s.Completed(done)
	if diff := cmp.Diff([]Frame{sent[1].Frame}, done[:n]); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if n, err := s.Completed(done); n != 0 || err != nil {
		t.Error(n, err)
	}
	if s.out.count.BadCompletions != 4 || s.InFlight() != 1 || !cmp.Equal(other.landed, []Frame{40}) {
		t.Errorf("%d bad completions, %d in flight, %v for the other", s.out.count.BadCompletions, s.InFlight(), other.landed)
	}
	k.completion.producer.Store(k.completion.producer.Load() + 1000)
	if _, err := s.Completed(done); !errors.Is(err, ErrRingCorrupt) {
		t.Errorf("%v", err)
	}
}

func TestSendsInTurn(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-13-amd64": false, "6.5.9": false, "6.6": true, "6.12.117+deb13": true, "6.17.3": true,
		"6.18.0": false, "7.2.13": false, "5.10": false, "": false,
	} {
		if sendsInTurn(release) != want {
			t.Errorf("%s: %v", release, !want)
		}
	}
}

// Before 6.15 the kernel does not serialise processors that run a program in generic mode.
func TestShareQueueInGenericMode(t *testing.T) {
	defer func(old func() string) { kernelRelease = old }(kernelRelease)
	ns := newNet(t, testbed.VethConfig{})
	attach(t, ns, AttachConfig{Interface: "a", Match: MatchAll(), Mode: AttachGeneric})
	pool := newPool(t, newUMEM(t, UMEMConfig{}), 0)
	cfg := Config{Interface: "a", ShareQueue: true}
	kernelRelease = func() string { return "6.12.30" }
	_, err := tryOpen(ns, pool, cfg)
	wantErr(t, err, errors.ErrUnsupported)
	kernelRelease = func() string { return "6.15.0" }
	open(t, ns, pool, cfg)
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Frames that a program filled before Serve also wait for packets from then on.
func TestServeKeepsWhatWasFilledBefore(t *testing.T) {
	const given = 4
	s, k := newSim(t, simConfig{frames: 16, ring: 8})
	if _, err := s.Refill(given); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	loop := Serve(func(*Socket, []Desc) error { return enough })
	for i := range uint64(3 * given) {
		if !k.deliver(i, 0) {
			t.Fatalf("packet %d finds no frame", i)
		}
		wantErr(t, loop(s), enough)
	}
}

// Frames that a handler has when the socket is closed go to the pool, which another socket may use.
func TestServeKeepsNoFramesOfAClosedSocket(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	const frames = 64
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: frames})
	_, done := runGroup(g, Serve(func(s *Socket, _ []Desc) error { return s.Close() }))
	tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	transmit(t, tx, newPackets(t, tx, 1, 4, 100))
	if err := waitRun(t, done); err != nil {
		t.Fatal(err)
	}
	s := g.Sockets()[0]
	if _, err := s.Reclaim(); err != nil {
		t.Fatal(err)
	}
	if n := s.Pool().Available(); n != frames {
		t.Errorf("%d of %d frames are in the pool", n, frames)
	}
}

// Frames that arrive empty, or with bytes beyond their end, are replaced by others that wait for
// packets.
func TestServeFillsForBadEntries(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 16, ring: 8, multi: true})
	if _, err := s.Refill(4); err != nil {
		t.Fatal(err)
	}
	s.unfilled = 0
	turn := serveTurn{
		s: s, handle: func(*Socket, []Desc) error { return nil },
		packets: make([]Desc, serveBatch), received: make([]Frame, 0, serveBatch), sent: make([]Frame, serveBatch),
	}
	for i := range uint64(12) {
		// A packet of two frames, the second of which is bad.
		for j, options := range []uint32{uint32(More), 0} {
			if !k.deliver(i, options) {
				t.Fatalf("frame %d of packet %d finds no room", j, i)
			}
		}
		k.rx.descs[(k.rx.prod-1)&(k.rx.size-1)].Len = 0
		if err := turn.runTurn(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Census{Free: 12, Filling: 4}, s.umem.Census()); diff != "" {
			t.Fatalf("packet %d: (-want +got):\n%s", i, diff)
		}
	}
}

// Frames that the fill ring refuses are reported, and stay with the program.
func TestServeReportsARefusedFill(t *testing.T) {
	s, k := newSim(t, simConfig{frames: 16, ring: 8})
	f, _ := s.Pool().Alloc()
	s.unfilled = 1
	k.fill.consumer.Store(1)
	s.fill.prod, s.fill.cons = 0, ^uint32(7) // full, so that it looks
	wantErr(t, (&serveTurn{s: s}).fillReceived([]Frame{f}), ErrRingCorrupt)
	if s.state[f] != stateYours {
		t.Errorf("the frame is %s", stateName(s.state[f]))
	}
}

// Frames that are left when the link goes down, or when another process detaches the program, go to
// the pool: Run calls the loop again.
func TestServeKeepsNoFramesWhenItFails(t *testing.T) {
	lo, err := net.InterfaceByName("lo") // which has no program
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{ErrLinkDown, ErrNoProgram} {
		s, k := newSim(t, simConfig{frames: 16, ring: 8})
		s.info.Store(&Info{ZeroCopy: errors.Is(want, ErrNoProgram), Ifindex: lo.Index})
		k.onRecv = func() unix.Errno { return unix.ENETDOWN }
		k.fill.flags.Store(ringNeedWakeup)
		var frames [4]Frame
		s.Pool().AllocBatch(frames[:])
		s.unfilled = 2
		wantErr(t, (&serveTurn{s: s}).fillReceived(frames[:]), want)
		if diff := cmp.Diff(Census{Free: 14, Filling: 2}, s.umem.Census()); diff != "" {
			t.Errorf("%v: (-want +got):\n%s", want, diff)
		}
	}
}

// A handler's error is returned alone, so that it ends Run, even if the link is down then.
func TestServeReturnsTheHandlersError(t *testing.T) {
	own := errors.New("own")
	for _, flag := range []uint32{0, ringNeedWakeup} {
		s, k := newSim(t, simConfig{frames: 16, ring: 8})
		if _, err := s.Refill(4); err != nil {
			t.Fatal(err)
		}
		k.onSend = func() unix.Errno { return unix.ENETDOWN }
		k.onRecv = k.onSend
		k.fill.flags.Store(flag)
		k.deliver(1, 0)
		k.deliver(2, 0)
		err := Serve(func(s *Socket, packets []Desc) error {
			if n, err := s.Send(packets[:1]); n != 1 || err != nil {
				t.Error(n, err)
			}
			return own
		})(s)
		if !errors.Is(err, own) || errors.Is(err, ErrLinkDown) {
			t.Errorf("the loop returns %v, want %v", err, own)
		}
	}
}

// Whatever a handler does with its descriptors, the frames that it does not send are filled again,
// and so are those that it sends.
func TestServeLosesNoFrames(t *testing.T) {
	ns := newNet(t, testbed.VethConfig{})
	const frames, packets = 128, 1000
	g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: frames})
	var came, failed int
	turned := errors.New("turned round")
	stop, done := runGroup(g, func(s *Socket) error {
		for {
			err := Serve(func(s *Socket, packets []Desc) error {
				came += len(packets)
				answers := packets[:0]
				for _, d := range packets {
					if number, err := packetNumber(s.UMEM().Packet(d)); err != nil {
						return err
					} else if number%3 == 0 {
						answers = append(answers, d)
					}
				}
				own, ok := s.Pool().Alloc()
				if ok {
					answers = append(answers, Desc{Frame: own, Off: 256, Len: 60})
				}
				n, err := s.Send(answers)
				if err != nil || ok && n < len(answers) {
					err = errors.Join(err, s.Pool().Free(own))
				}
				if failed++; err == nil && failed%10 == 0 {
					return turned
				}
				return err
			})(s)
			if !errors.Is(err, turned) {
				return err
			}
		}
	})
	defer stop()
	s := g.Sockets()[0]
	tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
	for i := range uint64(packets) / 10 {
		if err := tx.Pool().Free(transmit(t, tx, newPackets(t, tx, 10*i, 10, 100))...); err != nil {
			t.Fatal(err)
		}
		until(t, "packets", func() bool {
			st, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			return st.RxReceived+st.Kernel.RxDropped+st.Kernel.RxRingFull >= 10*(i+1)
		})
	}
	stop()
	if err := waitRun(t, done); err != nil {
		t.Fatal(err)
	}
	if came != packets {
		t.Errorf("%d of %d packets came", came, packets)
	}
	if _, err := s.Reclaim(); err != nil {
		t.Fatal(err)
	}
	yours := 0
	for _, state := range g.umem.state {
		if state == stateYours {
			yours++
		}
	}
	// In flight at the end, returned by Reclaim.
	if free := s.Pool().Available(); free+yours != frames || yours > frames/2 {
		t.Errorf("%d frames are free and %d yours, of %d", free, yours, frames)
	}
}

// A handler may answer from frames of the pool for ever, and from received ones, however few there
// are of either: sent frames return to their place. Meanwhile Snapshot sees the counts of received
// and sent packets, even when no more arrive.
func TestServeGivesFramesBackWhereTheyWere(t *testing.T) {
	for name, c := range map[string]struct {
		frames int
		pool   bool
	}{"of the pool": {64, true}, "received": {4, false}} {
		t.Run(name, func(t *testing.T) {
			ns := newNet(t, testbed.VethConfig{})
			g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: c.frames})
			var refused atomic.Int64
			stop, done := runGroup(g, Serve(func(s *Socket, packets []Desc) error {
				for i, d := range packets {
					if c.pool {
						own, ok := s.Pool().Alloc()
						if !ok {
							refused.Add(1)
							continue
						}
						packets[i] = Desc{Frame: own, Off: 256, Len: d.Len}
						copy(s.UMEM().Packet(packets[i]), s.UMEM().Packet(d))
					}
					if n, err := s.Send(packets[i : i+1]); err != nil || n != 1 {
						return fmt.Errorf("sent %d, %w", n, err)
					}
				}
				return nil
			}))
			defer stop()
			s := g.Sockets()[0]
			tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
			for i := range uint64(300) {
				if err := tx.Pool().Free(transmit(t, tx, newPackets(t, tx, i, 1, 100))...); err != nil {
					t.Fatal(err)
				}
				until(t, "the answer", func() bool {
					st, err := s.Snapshot()
					if err != nil {
						t.Fatal(err)
					}
					return st.RxReceived == i+1 && st.TxCompleted+uint64(refused.Load()) == i+1
				})
			}
			if n := refused.Load(); n != 0 {
				t.Errorf("the pool had no frame %d times", n)
			}
			stop()
			if err := waitRun(t, done); err != nil {
				t.Error(err)
			}
		})
	}
}

// Frames that a handler held when the socket was reopened are filled when they are returned: until
// then the ring has too few.
func TestServeFillsWhatWasMissing(t *testing.T) {
	s, _ := newSim(t, simConfig{frames: 8, ring: 8})
	held := make([]Frame, 3)
	if n := s.Pool().AllocBatch(held); n != 3 {
		t.Fatal(n)
	}
	if err := s.stockFillRing(7); err != nil {
		t.Fatal(err)
	}
	if err := (&serveTurn{s: s}).fillReceived(held); err != nil {
		t.Fatal(err)
	}
	if n, ok := s.fill.pendingEntries(); n != 7 || !ok || s.Pool().Available() != 1 {
		t.Errorf("%d frames are to be filled and %d free, want 7 and 1", n, s.Pool().Available())
	}
}

// However a handler gives its frames away, the number of frames that wait for packets stays the
// same, and so does the pool's.
func TestServeFillsWhatAHandlerGaveAway(t *testing.T) {
	const frames = 64
	for name, handle := range map[string]func(*Socket, []Desc) error{
		"to the pool": func(s *Socket, packets []Desc) error { return s.Pool().Free(frameNumbers(packets)...) },
		"to be filled, with answers of the pool": func(s *Socket, packets []Desc) error {
			if err := s.Release(packets); err != nil {
				return err
			}
			for range packets {
				own, ok := s.Pool().Alloc()
				if !ok {
					return ErrNoFrames
				}
				if n, err := s.Send([]Desc{{Frame: own, Off: 256, Len: 60}}); n != 1 || err != nil {
					return fmt.Errorf("sent %d, %w", n, err)
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNet(t, testbed.VethConfig{})
			g := openAll(t, ns, GroupConfig{Match: MatchEtherType(testEtherType), Frames: frames})
			stop, done := runGroup(g, Serve(handle))
			defer stop()
			s := g.Sockets()[0]
			tx := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", RxFrames: -1})
			for i := range uint64(3 * frames) {
				if err := tx.Pool().Free(transmit(t, tx, newPackets(t, tx, i, 1, 100))...); err != nil {
					t.Fatal(err)
				}
				for end := time.Now().Add(eventLimit); ; time.Sleep(100 * time.Microsecond) {
					st, err := s.Snapshot()
					if err != nil {
						t.Fatal(err)
					}
					if st.RxReceived == i+1 && st.TxCompleted == st.TxSubmitted {
						break
					}
					if time.Now().After(end) {
						stop()
						t.Fatalf("packet %d: %+v, Run: %v", i, st, waitRun(t, done))
					}
				}
			}
			stop()
			if err := waitRun(t, done); err != nil {
				t.Error(err)
			}
		})
	}
}

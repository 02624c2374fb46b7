// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/linux/testbed"
)

// sharedNet is an interface whose peer sends packets back, and a program that gives those of
// EtherType testEtherType+i to the sockets in the i-th map.
type sharedNet struct {
	ns   *testbed.Namespace
	umem *UMEM
	prog *Attachment
}

func newSharedNet(t *testing.T, frames, mates int) sharedNet {
	t.Helper()
	n := sharedNet{ns: newNet(t, testbed.VethConfig{}), umem: newUMEM(t, UMEMConfig{Frames: frames})}
	reflectPackets(t, n.ns)
	cfg := AttachConfig{Interface: "a", Match: MatchEtherType(testEtherType)}
	for i := 1; i < mates; i++ {
		cfg.Others = append(cfg.Others, MatchEtherType(testEtherType+uint16(i)))
	}
	n.prog = attach(t, n.ns, cfg)
	return n
}

// config is of the i-th mate.
func (n *sharedNet) config(i int) Config {
	return Config{Interface: "a", ShareQueue: true, XSKMap: n.prog.OtherXSKMap(i - 1), RxFrames: 128}
}

// reflectPackets sends packets of mates 0 to 2 that arrive at interface b back, until the end of
// the test.
func reflectPackets(t *testing.T, ns *testbed.Namespace) {
	t.Helper()
	prog := attach(t, ns, AttachConfig{Interface: "b", Match: MatchEtherType(testEtherType, testEtherType+1, testEtherType+2)})
	s := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "b", XSKMap: prog.XSKMap(), RxFrames: 1024})
	loop := Serve(func(s *Socket, packets []Desc) error { _, err := s.Send(packets); return err })
	ended := make(chan error)
	go func() {
		err := loop(s)
		for errors.Is(err, ErrLinkDown) {
			if err = s.Recover(context.Background()); err == nil {
				err = loop(s)
			}
		}
		ended <- err
	}()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) && !errors.Is(err, ErrInterfaceGone) {
			t.Error(err)
		}
	})
}

// A mate is one goroutine's socket: it sends numbered packets of its EtherType, and expects them
// back.
type mate struct {
	s        *Socket
	pool     *Pool
	index    int
	sent     uint64
	got      uint64
	lossless bool
	canaries []Frame // that must not change
	descs    []Desc
	frames   []Frame
}

func newMate(t *testing.T, s *Socket, index int) *mate {
	m := &mate{s: s, pool: s.Pool(), index: index, descs: make([]Desc, 32), frames: make([]Frame, 32), lossless: true}
	m.canaries = make([]Frame, 16)
	if n := m.pool.AllocBatch(m.canaries); n != len(m.canaries) {
		t.Fatal("too few frames")
	}
	for _, f := range m.canaries {
		m.paint(f)
	}
	return m
}

func (m *mate) paint(f Frame) {
	b := m.s.UMEM().Bytes(f)
	for i := 0; i < len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], uint64(f)<<32|uint64(i)|uint64(m.index)<<16)
	}
}

func (m *mate) checkCanaries() error {
	for _, f := range m.canaries {
		b := m.s.UMEM().Bytes(f)
		for i := 0; i < len(b); i += 8 {
			if got, want := binary.NativeEndian.Uint64(b[i:]), uint64(f)<<32|uint64(i)|uint64(m.index)<<16; got != want {
				return fmt.Errorf("frame %d at %d: %#x, want %#x", f, i, got, want)
			}
		}
	}
	return nil
}

func (m *mate) etherType(p []byte, from, to int) error {
	if got := int(binary.BigEndian.Uint16(p[12:])); got != testEtherType+from {
		return fmt.Errorf("mate %d got a packet of type %#x", m.index, got)
	}
	binary.BigEndian.PutUint16(p[12:], uint16(testEtherType+to))
	return nil
}

// turn sends and receives some packets. At most window packets are in flight.
func (m *mate) turn(window uint64) error {
	if room := int(window) - int(m.sent-m.got); room > 0 {
		n := m.pool.AllocBatch(m.frames[:min(room, len(m.frames))])
		for i, f := range m.frames[:n] {
			m.descs[i] = Desc{Frame: f, Off: 256, Len: 100}
			p := m.s.UMEM().Packet(m.descs[i])
			fillPacket(p, m.sent+uint64(i))
			if err := m.etherType(p, 0, m.index); err != nil {
				return err
			}
		}
		taken, err := m.s.Send(m.descs[:n])
		m.sent += uint64(taken)
		if err := errors.Join(err, m.pool.Free(frameNumbers(m.descs[taken:n])...)); err != nil {
			return err
		}
	}
	if err := m.s.Kick(); err != nil {
		return err
	}
	if _, err := m.s.Poll(EventRx|EventCompletion, time.Millisecond); err != nil {
		return err
	}
	if err := m.complete(); err != nil {
		return err
	}
	return m.receive()
}

func (m *mate) complete() error {
	n, err := m.s.Completed(m.frames)
	return errors.Join(err, m.pool.Free(m.frames[:n]...))
}

func (m *mate) receive() error {
	n, err := m.s.Receive(m.descs)
	if err != nil {
		return err
	}
	for _, d := range m.descs[:n] {
		p := m.s.UMEM().Packet(d)
		if err := m.etherType(p, m.index, 0); err != nil {
			return err
		}
		number, err := packetNumber(p)
		if err != nil {
			return err
		}
		if m.lossless && number != m.got {
			return fmt.Errorf("mate %d got packet %d, expected %d", m.index, number, m.got)
		}
		m.got = max(m.got, number+1) // some arrive after a Reopen that did not wait for them
	}
	return m.s.Release(m.descs[:n])
}

// finish waits for packets in flight.
func (m *mate) finish() error {
	for stop := time.Now().Add(eventLimit); m.got < m.sent || m.s.InFlight() > 0; {
		if err := m.turn(0); err != nil {
			return err
		}
		if time.Now().After(stop) {
			st, _ := m.s.Stats()
			return fmt.Errorf("mate %d: %d of %d packets came back, %d in flight, %d queued, %+v", m.index, m.got, m.sent, m.s.InFlight(), m.s.Backlog(), st)
		}
	}
	return nil
}

// shut closes the socket, and frees returned frames.
func (m *mate) shut() error {
	if err := m.s.Close(); err != nil {
		return err
	}
	flying, err := m.s.Reclaim()
	if err != nil {
		return err
	}
	return m.pool.Free(flying...)
}

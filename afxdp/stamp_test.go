// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// selects is what a program does with a packet that its Match takes.
func (s *Stamp) selects(packet []byte) bool {
	h := look(packet)
	if !h.ports || h.protocol != protoUDP {
		return false
	}
	at := 14 + 20 + 8 + s.Offset
	if binary.BigEndian.Uint16(packet[12:]) == etherVLAN {
		at += 4
	}
	if h.from.Is6() {
		at += 20
	}
	if len(packet) < at+4 {
		return false
	}
	n := binary.BigEndian.Uint32(packet[at:]) * golden
	return s.Bits == 0 || n>>(32-s.Bits) == 0
}

// Whatever the Match is, a program stamps exactly the packets that it takes and its Stamp selects,
// takes the same packets as without a Stamp, and changes none of their bytes.
func TestStampAsItsProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to load XDP programs")
	}
	written := map[bool]int{}
	for seed := range uint64(80) {
		r := matcher{rand.New(rand.NewPCG(seed, 13))}
		m := r.match(3)
		if seed%2 == 0 {
			m = m.Or(MatchProtocol(protoUDP)) // else few packets of UDP match
		}
		stamp := &Stamp{Offset: r.IntN(12), Bits: r.IntN(3)}
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP, License: "GPL",
			Instructions: m.program(stamp, asm.Instructions{asm.Mov.Imm(asm.R0, xdpDrop), asm.Return()}),
		})
		if err != nil {
			t.Fatalf("%+v: %+v", m, err)
		}
		for range 150 {
			p := r.packet()
			if n := len(p); n > 60 {
				binary.BigEndian.PutUint64(p[n-8:], r.Uint64())
			}
			matches := m.Packet(p)
			want := matches && stamp.selects(p)
			run := &ebpf.RunOptions{Data: p, DataOut: make([]byte, 512)}
			got, err := prog.Run(run)
			if err != nil || (got == xdpDrop) != matches {
				t.Fatalf("seed %d: verdict %d, %v for packet\n%x\nand match %+v", seed, got, err, p, m)
			}
			meta, found := bytes.CutSuffix(run.DataOut, p)
			if has := len(meta) == stampSize; !found || has != want || !has && len(meta) != 0 {
				t.Fatalf("seed %d: %d bytes before the packet, want a stamp: %v; %+v\n%x\nand match %+v", seed, len(meta), want, stamp, p, m)
			}
			written[want]++
		}
		if err := prog.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if written[true] < 100 || written[false] < 1000 {
		t.Errorf("packets with and without a stamp: %v", written)
	}
}

// A stamp is the kernel's time between sending and receiving, and is read once. Packets that are
// not selected have none, even in a frame that had a stamped one before.
func TestStampsOfReceivedPackets(t *testing.T) {
	for _, mode := range []AttachMode{AttachNative, AttachGeneric} {
		ns := newNet(t, testbed.VethConfig{})
		const offset = 8
		b := attach(t, ns, AttachConfig{Interface: "b", Match: MatchUDP(9000), Mode: mode, Stamp: &Stamp{Offset: offset, Bits: 6}})
		u := newUMEM(t, UMEMConfig{Frames: 16})
		to := open(t, ns, newPool(t, u, 0), Config{Interface: "b", XSKMap: b.XSKMap(), RxFrames: 8})
		a := attach(t, ns, AttachConfig{Interface: "a", Match: MatchUDP(1), Mode: mode})
		from := open(t, ns, newPool(t, newUMEM(t, UMEMConfig{}), 0), Config{Interface: "a", XSKMap: a.XSKMap()})
		stamps := 0
		descs := make([]Desc, 1)
		for number := range uint32(256) {
			before, _ := sys.KernelClock()
			d := newPackets(t, from, 1, 1, 14+20+8+16)
			p := from.UMEM().Packet(d[0])
			copy(p, udpPacket(false, false, 9000, nil))
			binary.BigEndian.PutUint32(p[42+offset:], number)
			want := (&Stamp{Offset: offset, Bits: 6}).selects(p)
			for _, f := range transmit(t, from, d) {
				if err := from.Pool().Free(f); err != nil {
					t.Fatal(err)
				}
			}
			for n := 0; n == 0; {
				if _, err := to.Poll(EventRx, eventLimit); err != nil {
					t.Fatal(err)
				}
				var err error
				if n, err = to.Receive(descs); err != nil {
					t.Fatal(err)
				}
			}
			after, _ := sys.KernelClock()
			if got := binary.BigEndian.Uint32(u.Packet(descs[0])[42+offset:]); got != number {
				t.Fatalf("packet %d came as %d", number, got)
			}
			at, ok := u.RxStamp(descs[0])
			if ok != want || ok && (at < before || at > after) {
				t.Fatalf("%v, packet %d: stamp %v, %v, want %v between %v and %v", mode, number, at, ok, want, before, after)
			}
			if _, again := u.RxStamp(descs[0]); again {
				t.Fatalf("the stamp of packet %d was read twice", number)
			}
			if ok {
				stamps++
			}
			if err := to.Release(descs); err != nil {
				t.Fatal(err)
			}
		}
		if stamps < 3 {
			t.Errorf("%v: %d stamps of 256 packets, of which one in 64 has one", mode, stamps)
		}
	}
}

// There is no stamp where there is no room for one, nor in other metadata.
func TestNoStamp(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: 4, HugePages: HugePagesOff})
	m := u.Bytes(1)
	binary.NativeEndian.PutUint64(m, 77)
	binary.NativeEndian.PutUint64(m[8:], stampMagicValue)
	for _, off := range []uint16{0, 15, 17} {
		if at, ok := u.RxStamp(Desc{Frame: 1, Off: off, Len: 60}); ok {
			t.Errorf("offset %d: %v", off, at)
		}
	}
	if at, ok := u.RxStamp(Desc{Frame: 1, Off: 16, Len: 60}); !ok || at != 77*time.Nanosecond {
		t.Errorf("%v, %v", at, ok)
	}
}

func TestStampsAreChecked(t *testing.T) {
	for field, c := range map[string]AttachConfig{
		"Stamp.Offset is -1":   {Stamp: &Stamp{Offset: -1}},
		"Stamp.Offset is 1025": {Stamp: &Stamp{Offset: 1025}},
		"Stamp.Bits is -1":     {Stamp: &Stamp{Bits: -1}},
		"Stamp.Bits is 32":     {Stamp: &Stamp{Bits: 32}},
		"use one of them":      {Stamp: &Stamp{}, Hints: true},
	} {
		c.Interface, c.Match = "lo", MatchUDP(1)
		if _, err := Attach(c); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

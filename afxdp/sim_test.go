// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"math/bits"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// simKernel is the kernel's side of a socket's rings. The rings and the UMEM are on the Go heap,
// where the race detector watches them: it reports an entry or a packet that is accessed without
// the position having been published.
type simKernel struct {
	fill, completion addrRing
	rx, tx           descRing
	umem             *UMEM

	onSend func() unix.Errno // effect of a kick; nil: none
	kicks  int
	onRecv func() unix.Errno // effect of a call for the fill ring; nil: none
}

func (k *simKernel) sendCall() unix.Errno {
	k.kicks++
	if k.onSend == nil {
		return 0
	}
	return k.onSend()
}

func (k *simKernel) receiveCall() unix.Errno {
	if k.onRecv == nil {
		return 0
	}
	return k.onRecv()
}

// countedCalls counts system calls.
type countedCalls struct {
	kernelCalls
	sends, recvs int
}

func (c *countedCalls) sendCall() unix.Errno    { c.sends++; return c.kernelCalls.sendCall() }
func (c *countedCalls) receiveCall() unix.Errno { c.recvs++; return c.kernelCalls.receiveCall() }

// simConfig is the size of a simulation.
type simConfig struct {
	frames, ring int
	multi        bool
	txMeta       bool
}

// newSim returns a socket over rings in plain memory, and the other side.
func newSim(tb testing.TB, cfg simConfig) (*Socket, *simKernel) {
	tb.Helper()
	const frameSize = 2048
	u := &UMEM{
		cfg:     UMEMConfig{Frames: cfg.frames, FrameSize: frameSize, TxMetadata: cfg.txMeta},
		mem:     make([]byte, cfg.frames*frameSize),
		state:   make([]frameState, cfg.frames),
		shift:   uint(bits.TrailingZeros(frameSize)),
		sockets: make(map[uint16]*Socket),
	}
	if cfg.txMeta {
		u.txMeta = TxMetaSize
	}
	pool, err := u.NewPool(0)
	if err != nil {
		tb.Fatal(err)
	}
	s := &Socket{in: half{gate: newGate()}, out: half{gate: newGate()}, umem: u, pool: pool, state: u.state, fd: -1, maxInFlight: uint32(cfg.ring), id: 1}
	s.cfg.MultiBuffer = cfg.multi
	s.setStates()
	s.info.Store(&Info{ZeroCopy: true}) // whose kernel may take nothing at a kick
	k := &simKernel{umem: u}
	s.calls = k

	off := ringOffsets{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	for _, r := range []*addrRing{&s.fill, &s.completion} {
		mem := heap(int(off.Desc) + cfg.ring*int(addrSize))
		if *r, err = newAddrRing(mem, off, uint32(cfg.ring)); err != nil {
			tb.Fatal(err)
		}
	}
	for _, r := range []*descRing{&s.rx, &s.tx} {
		mem := heap(int(off.Desc) + cfg.ring*int(descSize))
		if *r, err = newDescRing(mem, off, uint32(cfg.ring)); err != nil {
			tb.Fatal(err)
		}
	}
	k.fill, k.completion, k.rx, k.tx = s.fill, s.completion, s.rx, s.tx // same memory, own positions
	s.tx.flags.Store(ringNeedWakeup)
	s.in.polls.initSockets(s)
	s.out.polls.initSockets(s)
	return s, k
}

// heap returns n zero bytes, aligned for 64-bit entries.
func heap(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// deliver puts a packet of 60 bytes in the next fill ring frame. The packet
// starts with its number. It returns false if a ring does not allow it.
func (k *simKernel) deliver(number uint64, options uint32) bool {
	if n, _ := k.rx.reserveEntries(1); n == 0 {
		return false
	}
	if n, _ := k.fill.availableEntries(1); n == 0 {
		return false
	}
	addr := k.fill.addrs[k.fill.cons%k.fill.size] + kernelHeadroom
	k.fill.releaseEntries(1)
	binary.NativeEndian.PutUint64(k.umem.mem[addr:], number)
	k.rx.descs[k.rx.prod%k.rx.size] = xdpDesc{Addr: addr, Len: 60, Options: options}
	k.rx.submitEntries(1)
	return true
}

// transmit takes one descriptor from the TX ring.
func (k *simKernel) transmit() (xdpDesc, bool) {
	if n, _ := k.tx.availableEntries(1); n == 0 {
		return xdpDesc{}, false
	}
	d := k.tx.descs[k.tx.cons%k.tx.size]
	k.tx.releaseEntries(1)
	return d, true
}

// complete reports a transmission's end.
func (k *simKernel) complete(addr uint64) bool {
	if n, _ := k.completion.reserveEntries(1); n == 0 {
		return false
	}
	k.completion.addrs[k.completion.prod%k.completion.size] = addr
	k.completion.submitEntries(1)
	return true
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import "sync/atomic"

// ring is the common part of a socket's four rings: one page of shared positions, followed by
// entries. Each ring has one producer and one consumer; one of them is the kernel.
//
//	fill        we produce    frames for packets to receive
//	RX          we consume    received packets
//	TX          we produce    packets to send
//	completion  we consume    frames whose transmission ended
//
// Positions run freely through uint32 and are reduced by the mask only to index an entry, so "full"
// and "empty" differ.
//
// Ordering. The kernel publishes a position with smp_store_release after it wrote (as producer) or
// read (as consumer) the entries, and reads ours with smp_load_acquire (net/xdp/xsk_queue.h;
// "Rings" in https://docs.kernel.org/networking/af_xdp.html). Our side does the same with
// sync/atomic. Hence:
//
//   - as producer: our entry writes happen before producer.Store, which the
//     kernel's acquire sees before it reads the entries; and the kernel's reads
//     of an entry happen before its consumer store, which our consumer.Load
//     sees before we overwrite that entry;
//   - as consumer: the mirror image.
//
// Each side keeps a local copy of both positions and accesses the shared ones once per batch,
// because each access may move a cache line between cores.
//
// The other side's position is not trusted: a distance larger than the ring is ErrRingCorrupt, and
// entries are checked before use.
type ring struct {
	producer *atomic.Uint32
	consumer *atomic.Uint32
	flags    *atomic.Uint32
	size     uint32 // entries, a power of two

	prod uint32 // local copy of producer
	cons uint32 // local copy of consumer
}

// emptyRing returns a ring without entries, which is empty and full.
func emptyRing() ring {
	return ring{producer: new(atomic.Uint32), consumer: new(atomic.Uint32), flags: new(atomic.Uint32)}
}

// ringNeedWakeup is XDP_RING_NEED_WAKEUP: the kernel side sleeps and takes nothing from the ring
// until a system call wakes it.
const ringNeedWakeup = 1

// needWakeup reports whether the kernel must be woken to process the ring.
//
// The flag is read after the position was stored. Both are sequentially consistent here, so the
// store cannot move after the load, and a kernel side that sets the flag and then reads the
// position again cannot miss both.
func (r *ring) needWakeup() bool { return r.flags.Load()&ringNeedWakeup != 0 }

// reserveEntries returns how many entries, at most want, the producer may write from
// position prod on. ok is false if the consumer's position is impossible.
func (r *ring) reserveEntries(want uint32) (n uint32, ok bool) {
	if room := r.size - (r.prod - r.cons); room >= want {
		return want, true
	}
	r.cons = r.consumer.Load()
	used := r.prod - r.cons
	if used > r.size {
		r.cons = r.prod - r.size
		return 0, false
	}
	return min(want, r.size-used), true
}

// submitEntries publishes n entries that were written after reserveEntries.
func (r *ring) submitEntries(n uint32) {
	if n == 0 {
		return
	}
	r.prod += n
	r.producer.Store(r.prod)
}

// pendingEntries returns how many submitted entries the consumer has not taken.
func (r *ring) pendingEntries() (n uint32, ok bool) {
	r.cons = r.consumer.Load()
	used := r.prod - r.cons
	if used > r.size {
		r.cons = r.prod - r.size
		return 0, false
	}
	return used, true
}

// waitingEntries is pending for a goroutine that is not the producer.
func (r *ring) waitingEntries() uint32 { return r.producer.Load() - r.consumer.Load() }

// availableEntries returns how many entries, at most want, the consumer may read from
// position cons on. ok is false if the producer's position is impossible.
func (r *ring) availableEntries(want uint32) (n uint32, ok bool) {
	if n := r.prod - r.cons; n >= want {
		return want, true
	}
	r.prod = r.producer.Load()
	n = r.prod - r.cons
	if n > r.size {
		r.prod = r.cons
		return 0, false
	}
	return min(want, n), true
}

// releaseEntries returns n entries that were read to the producer.
func (r *ring) releaseEntries(n uint32) {
	if n == 0 {
		return
	}
	r.cons += n
	r.consumer.Store(r.cons)
}

// addrRing is a fill or completion ring: its entries are UMEM addresses.
type addrRing struct {
	ring
	addrs []uint64
}

// descRing is an RX or TX ring.
type descRing struct {
	ring
	descs []xdpDesc
}

// xdpDesc is struct xdp_desc.
type xdpDesc struct {
	Addr    uint64 // from the start of the UMEM
	Len     uint32
	Options uint32
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"os"
	"sync/atomic"
)

// Stats are counters since Open.
type Stats struct {
	Counters
	Kernel KernelStats
}

// Counters are counted by the socket itself.
type Counters struct {
	RxReceived  uint64 // descriptors that Receive returned
	TxSubmitted uint64 // descriptors that Send accepted
	TxCompleted uint64 // frames that Completed returned
	TxKicks     uint64 // system calls to send
	TxStalls    uint64 // kicks after which the kernel took nothing more (EAGAIN, ENOBUFS)
	TxDropped   uint64 // packets that the driver refused after taking them (EBUSY)
	RxWakeups   uint64 // system calls to wake the fill ring
	// Overslept is the number of sleeps of Poll that ended by their time, not by the kernel,
	// although packets were there. Some are chance: the packet arrived at that moment. Many, or
	// with old packets, mean lost wake-ups.
	Overslept      uint64
	BadDescs       uint64 // RX entries with no frame of ours, or bytes outside it
	BadCompletions uint64 // completions of frames that were not in flight
}

// KernelStats are counted by the kernel (XDP_STATISTICS).
type KernelStats struct {
	// RxDropped counts packets dropped for other reasons than a full RX ring: no frame was in the
	// fill ring, or the packet is larger than a frame, as those that [AttachGeneric] meets before
	// they are cut into segments.
	RxDropped      uint64
	RxInvalidDescs uint64 // fill ring entries that the kernel refused
	TxInvalidDescs uint64 // TX ring entries that the kernel refused
	RxRingFull     uint64 // packets dropped because the RX ring was full
	FillRingEmpty  uint64 // times the kernel found no frame in the fill ring
	TxRingEmpty    uint64 // times the kernel found nothing in the TX ring
}

// publishEvery is the number of calls that moved packets after which a busy loop publishes its
// counters. An atomic store per call would cost a tenth of a short one.
const publishEvery = 64

// publishedCounters are the Counters for goroutines other than the owner.
type publishedCounters struct {
	values [10]atomic.Uint64
	behind uint32 // calls since they were published; used by the owner only
}

// fields returns the counters in the order in which they are published.
func (c *Counters) fields() [10]*uint64 {
	return [...]*uint64{
		&c.RxReceived, &c.TxSubmitted, &c.TxCompleted, &c.TxKicks, &c.TxStalls,
		&c.TxDropped, &c.RxWakeups, &c.Overslept, &c.BadDescs, &c.BadCompletions,
	}
}

func (s *Stats) addStats(other *Stats) {
	for i, n := range other.fields() {
		*s.fields()[i] += *n
	}
	s.Kernel.RxDropped += other.Kernel.RxDropped
	s.Kernel.RxInvalidDescs += other.Kernel.RxInvalidDescs
	s.Kernel.TxInvalidDescs += other.Kernel.TxInvalidDescs
	s.Kernel.RxRingFull += other.Kernel.RxRingFull
	s.Kernel.FillRingEmpty += other.Kernel.FillRingEmpty
	s.Kernel.TxRingEmpty += other.Kernel.TxRingEmpty
}

// countCall is called after each call that moved packets.
func (h *half) countCall() {
	if h.published.behind++; h.published.behind >= publishEvery {
		h.publishCounters()
	}
}

// publishCounters makes the counters visible to Snapshot.
func (h *half) publishCounters() {
	h.published.behind = 0
	for i, n := range h.count.fields() {
		// Most are unchanged, and a store costs as much as ten loads.
		if v := &h.published.values[i]; v.Load() != *n {
			v.Store(*n)
		}
	}
}

// Stats reads the counters. It makes a system call and belongs, like Receive and Send, to the
// owner's goroutine; others call Snapshot.
func (s *Socket) Stats() (Stats, error) {
	if err := s.enterHalves(both); err != nil {
		return Stats{}, err
	}
	defer s.leaveHalves(both)
	s.in.publishCounters()
	s.out.publishCounters()
	return s.Snapshot()
}

// Snapshot reads the counters from any goroutine, even after Close, without disturbing the owner.
// The kernel's are current, which needs a system call. The socket's own are those of the owner's
// last Stats, last call that found nothing or the last packet in flight, last sleep in Poll or last
// 64th call, whichever is the latest. They may belong to different ones of these moments, and a
// sleep for one half of the socket counts for that half.
func (s *Socket) Snapshot() (Stats, error) {
	var st Stats
	for i, n := range st.fields() {
		*n = s.in.published.values[i].Load() + s.out.published.values[i].Load()
	}
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	now, err := s.kernelStats()
	st.Kernel = KernelStats{
		RxDropped: now.RxDropped, RxInvalidDescs: now.RxInvalidDescs, TxInvalidDescs: now.TxInvalidDescs,
		RxRingFull: now.RxRingFull, FillRingEmpty: now.RxFillRingEmptyDescs, TxRingEmpty: now.TxRingEmptyDescs,
	}
	return st, err
}

// kernelStats adds up the counters of all kernel sockets of this Socket. The caller holds umem.mu.
func (s *Socket) kernelStats() (xdpStatistics, error) {
	if s.fd < 0 {
		return s.past, nil
	}
	st, err := getStatistics(s.fd)
	if err != nil {
		return s.past, os.NewSyscallError("getsockopt XDP_STATISTICS", err)
	}
	st.RxDropped += s.past.RxDropped
	st.RxInvalidDescs += s.past.RxInvalidDescs
	st.TxInvalidDescs += s.past.TxInvalidDescs
	st.RxRingFull += s.past.RxRingFull
	st.RxFillRingEmptyDescs += s.past.RxFillRingEmptyDescs
	st.TxRingEmptyDescs += s.past.TxRingEmptyDescs
	return st, nil
}

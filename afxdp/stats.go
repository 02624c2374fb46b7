//go:build linux

package afxdp

import "os"

// Stats are counters since Open.
type Stats struct {
	Counters
	Kernel KernelStats
}

// Counters are what the socket counted itself.
type Counters struct {
	RxReceived  uint64 // descriptors that Receive returned
	TxSubmitted uint64 // descriptors that Send took
	TxCompleted uint64 // frames that Completed returned
	TxKicks     uint64 // system calls to send
	TxStalls    uint64 // kicks after which the kernel took nothing more (EAGAIN, ENOBUFS)
	TxDropped   uint64 // packets that the driver refused after taking them (EBUSY)
	RxWakeups   uint64 // system calls to wake the fill ring
	// Overslept is how many sleeps of Poll ended by their time, not by the
	// kernel, when packets were there. Some are chance: the packet came at that
	// very moment. Many, or with packets that are old, mean lost wake-ups.
	Overslept      uint64
	BadDescs       uint64 // RX entries that named no frame of ours, or bytes outside it
	BadCompletions uint64 // completions of frames that were not in flight
}

// KernelStats are what the kernel counted (XDP_STATISTICS).
type KernelStats struct {
	RxDropped      uint64 // packets dropped for other reasons than a full ring
	RxInvalidDescs uint64 // fill ring entries that the kernel refused
	TxInvalidDescs uint64 // TX ring entries that the kernel refused
	RxRingFull     uint64 // packets dropped because the RX ring was full
	FillRingEmpty  uint64 // times the kernel found no frame in the fill ring
	TxRingEmpty    uint64 // times the kernel found nothing in the TX ring
}

// Stats reads the counters. It makes a system call.
func (s *Socket) Stats() (Stats, error) {
	if err := s.gate.enter(); err != nil {
		return Stats{}, err
	}
	defer s.gate.leave()
	now, err := s.kernelStats()
	return Stats{Counters: s.count, Kernel: KernelStats{
		RxDropped: now.RxDropped, RxInvalidDescs: now.RxInvalidDescs, TxInvalidDescs: now.TxInvalidDescs,
		RxRingFull: now.RxRingFull, FillRingEmpty: now.RxFillRingEmptyDescs, TxRingEmpty: now.TxRingEmptyDescs,
	}}, err
}

// kernelStats adds up the sockets that this Socket has had.
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

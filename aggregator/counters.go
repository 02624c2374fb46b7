// SPDX-License-Identifier: Apache-2.0

package aggregator

import "github.com/libra-ina/libra/wire"

// Counters count frames that belong to no job.
type Counters struct {
	Passed    uint64 // not addressed to the aggregator, left to the kernel
	Forwarded uint64 // Libra frames between hosts, sent to the port of their destination

	// Dropped without an answer, because the frame cannot be trusted or an answer to it could loop.
	Truncated   uint64 // ends before the headers that it announces
	BadChecksum uint64 // IPv4 or UDP checksum wrong, or no UDP checksum

	// PartialChecksum counts frames whose UDP checksum is the sum of the pseudo header alone, which
	// are also dropped without an answer: their sender left the rest to a network card, and they
	// passed none, as on a veth pair. Such a frame cannot be verified. The remedy is `ethtool -K
	// INTERFACE tx off` at the sender.
	PartialChecksum uint64

	Short      uint64 // UDP payload shorter than the header
	Unexpected uint64 // ACK or ERROR addressed to the aggregator

	// Refused counts ERROR replies by code: wrong version, unknown type, unknown job.
	Refused Refusals

	// Unanswered counts replies that did not fit the receive buffer, and results of rounds of a job
	// that was being removed (XDP). Always 0 in the model.
	Unanswered uint64

	// OutOfBounds counts frames that ended before what an earlier check had found in them (XDP).
	// That never happens: the checks that count here only satisfy the kernel's verifier. Always 0
	// in the model.
	OutOfBounds uint64

	// Frames that the kernel failed to send (XDP). Always 0 in the model.
	UnsentAnswers   uint64 // answers to the source of a frame
	UnsentRedirects uint64 // forwarded frames, also counted in Forwarded, and results of rounds
}

// JobCounters count the frames of a job.
type JobCounters struct {
	Applied    uint64 // frames added into a bank
	Pairs      uint64 // pairs in these frames
	Duplicates uint64 // frames acknowledged again without being added
	Rounds     uint64 // completed rounds of slot groups (Sync, Acked)
	Scales     uint64 // decided scales (Fixed)
	Saturated  uint64 // additions with a result that was limited to the largest number (LUT, Fixed)
	Refused    Refusals

	// Raced counts frames that were dropped because another CPU held the job for too long. The
	// sender retransmits them. Always 0 in the model.
	Raced uint64

	// Throttled counts frames that were dropped because their sender had used up its budget of
	// frames that cost more than ordinary ones (XDP). The sender retransmits them. Always 0 in the
	// model.
	Throttled uint64
}

// SenderCounters count the frames of one sender of a job.
type SenderCounters struct {
	Applied    uint64 // frames added into a bank
	Pairs      uint64 // pairs in these frames
	Duplicates uint64 // frames acknowledged again without being added
	Refused    uint64 // ERROR replies to the admitted sender
}

// Refusals counts ERROR replies, indexed by [wire.Code].
type Refusals [wire.CodeRound + 1]uint64

// Total returns the sum over all codes.
func (r *Refusals) Total() uint64 {
	var n uint64
	for _, c := range r {
		n += c
	}
	return n
}

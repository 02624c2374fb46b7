// SPDX-License-Identifier: Apache-2.0

package link

// Stats counts what a link sent, received and discarded, in frames.
type Stats struct {
	Sent      uint64 // payloads sent, answers included
	SendError uint64 // payloads that the kernel refused to send; the sender retransmits them
	NoRoom    uint64 // answers lost because a transmit queue was full
	Received  uint64 // payloads delivered

	// Received frames that were discarded.
	Foreign     uint64 // not a Libra frame, or not for this address and port
	Truncated   uint64 // shorter than its headers announce, or cut because it was too long
	BadChecksum uint64 // IPv4 or UDP checksum wrong or absent
	Overrun     uint64 // no receive buffer was free (AF_XDP; kernel's XDP_STATISTICS)

	// Injected by WithFaults, both directions.
	Dropped, Duplicated, Reordered uint64

	// LastError is the latest reason why the kernel refused to send, if any, and what is wrong with
	// the interface at present.
	LastError error
}

// SPDX-License-Identifier: Apache-2.0

package agentproto

// Layout is where the parts of the shared memory are, in bytes from its beginning.
type Layout struct {
	Total, SQ, CQ, Buffers, BufferBytes uint64
	Entries                             uint32 // in each ring
}

// LayoutOf places rings and buffer area one after the other.
func LayoutOf(entries uint32, bufferBytes uint64) Layout {
	l := Layout{SQ: HeaderLen, Entries: entries, BufferBytes: pages(bufferBytes)}
	l.CQ = l.SQ + pages(uint64(entries)*EntryLen)
	l.Buffers = l.CQ + pages(uint64(entries)*CompletionLen)
	l.Total = l.Buffers + l.BufferBytes
	return l
}

func pages(n uint64) uint64 { return (n + pageSize - 1) &^ (pageSize - 1) }

// EndedError is the reason why an agent has ended a session.
type EndedError struct {
	Code Code
	Text string
}

func (e *EndedError) Error() string { return "agent: the session has ended: " + e.Text }
func (e *EndedError) Unwrap() error { return e.Code }

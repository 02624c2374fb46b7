// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/binary"
	"math"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// frameLog holds the hot frames that the aggregator has acknowledged and of which the worker does
// not know yet that the server has their gradients: if the aggregator dies, they are lost there. It
// is a ring of bytes, so that keeping a frame costs one copy and no allocation. A frame that is
// sent has room reserved in it, so that there is room when it is acknowledged.
//
// The ring is only as much of the log's memory as the entries need: a ring of all of it would go
// through megabytes that no cache holds, and that the kernel has to provide first.
//
// It belongs to the worker's goroutine.
type frameLog struct {
	memory   []byte
	ring     int // bytes of the memory, from its start, that are the ring now
	oldest   int // position of the oldest entry
	used     int // bytes of entries
	reserved int // bytes for frames that are not answered
	frames   int
	whole    []byte // an entry's payload, if it wraps around
}

// An entry is its owner (the id of the operation of a frame that was not answered, or
// acknowledged), the length of the payload, and the payload.
const (
	logHead      = 8
	acknowledged = math.MaxUint32
)

func newFrameLog(size int) *frameLog {
	return &frameLog{memory: make([]byte, size), ring: smallestRing(size)}
}

func smallestRing(size int) int { return max(size>>6, 1) }

// hasRoom reports whether there is room for another payload of a length.
func (l *frameLog) hasRoom(n int) bool { return l.used+l.reserved+logHead+n <= len(l.memory) }

// reserveFrame reserves room for a payload of a length, which fits.
func (l *frameLog) reserveFrame(n int) { l.reserved += logHead + n }

// releaseFrame gives up the room that is reserved for a payload.
func (l *frameLog) releaseFrame(n int) { l.reserved -= logHead + n }

// addFrame adds a payload for which room is reserved.
func (l *frameLog) addFrame(owner uint32, payload []byte) {
	l.releaseFrame(len(payload))
	for l.used+logHead+len(payload) > l.ring {
		l.growRing()
	}
	var head [logHead]byte
	binary.LittleEndian.PutUint32(head[:], owner)
	binary.LittleEndian.PutUint32(head[4:], uint32(len(payload)))
	l.putBytes(head[:])
	l.putBytes(payload)
	l.frames++
}

func (l *frameLog) putBytes(b []byte) {
	ring := l.memory[:l.ring]
	at := l.oldest + l.used
	if at >= l.ring {
		at -= l.ring
	}
	if n := copy(ring[at:], b); n < len(b) {
		copy(ring, b[n:])
	}
	l.used += len(b)
}

// growRing makes the ring at least twice as large, if the log has the memory. What has wrapped
// around then follows what was before the ring's end.
func (l *frameLog) growRing() {
	before := l.ring
	if l.ring *= 2; len(l.memory)-l.ring < l.ring {
		l.ring = len(l.memory)
	}
	if wrapped := l.oldest + l.used - before; wrapped > 0 {
		copy(l.memory[before:], l.memory[:wrapped])
	}
}

// viewBytes returns n bytes from a distance behind the start of the oldest entry. They are valid
// until the next call, or until the entry is dropped.
func (l *frameLog) viewBytes(from, n int) []byte {
	ring := l.memory[:l.ring]
	at := l.oldest + from
	if at >= l.ring {
		at -= l.ring
	}
	if at+n <= l.ring {
		return ring[at : at+n]
	}
	l.whole = append(append(l.whole[:0], ring[at:]...), ring[:at+n-l.ring]...)
	return l.whole
}

// oldestFrame returns the oldest entry, or false if there is none.
func (l *frameLog) oldestFrame() (owner uint32, payload []byte, ok bool) {
	if l.used == 0 {
		return 0, nil, false
	}
	owner, n := l.oldestHead()
	return owner, l.viewBytes(logHead, n), true
}

func (l *frameLog) oldestHead() (owner uint32, n int) {
	head := l.viewBytes(0, logHead)
	return binary.LittleEndian.Uint32(head), int(binary.LittleEndian.Uint32(head[4:]))
}

// dropOldest drops the oldest entry.
func (l *frameLog) dropOldest() {
	_, n := l.oldestHead()
	l.oldest += logHead + n
	l.used -= logHead + n
	l.frames--
	if l.used == 0 {
		l.oldest, l.ring = 0, smallestRing(len(l.memory))
	}
	if l.oldest < l.ring {
		return
	}
	// All entries are at the start, where a smaller ring may hold them.
	if l.oldest -= l.ring; l.oldest+l.used <= l.ring/8 && l.ring/2 >= smallestRing(len(l.memory)) {
		l.ring /= 2
	}
}

// dropCommitted drops the oldest entries as far as a mark has them. Entries are in the order of
// their answers, so that one which the mark lacks may be before others; these wait for a later
// mark.
func (l *frameLog) dropCommitted(mark *aggregator.Mark) {
	for l.used > 0 {
		_, n := l.oldestHead()
		h, _ := wire.ParseHeader(l.viewBytes(logHead, min(n, wire.HeaderLen))) // our own frame
		if !mark.Has(h.Seq) {
			return
		}
		l.dropOldest()
	}
}

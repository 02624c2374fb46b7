// SPDX-License-Identifier: Apache-2.0

package link

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	tapHeader = 32 // bytes before a frame in the ring
	tapAlign  = 8

	// tapWrap, in place of a length, means that the next record is at the ring's start.
	tapWrap = 1<<32 - 1

	// tapRingMin is enough for a few of the longest frames.
	tapRingMin = 1 << 15
)

// tapRing is a ring of frames of different lengths with one writer, the link's goroutine, and one
// reader. A record is a header and the frame's bytes, contiguous.
//
// Each side publishes its position with an atomic store after it has written or released the bytes
// before it; the other side loads that position before it touches them. So the sides never access
// the same bytes at the same time.
type tapRing struct {
	mem  []byte
	held int // bytes of the record that the reader has; used by the reader only

	head atomic.Uint64 // bytes ever written
	_    [56]byte      // the two sides' positions do not share a cache line
	tail atomic.Uint64 // bytes ever released
}

// newTapRing returns a ring whose size is the next power of two.
func newTapRing(size int) tapRing {
	size = max(size, tapRingMin)
	return tapRing{mem: make([]byte, 1<<bits.Len(uint(size-1)))}
}

// putFrame copies a frame into the ring, unless the ring is full.
func (r *tapRing) putFrame(f *TappedFrame) bool {
	head := r.head.Load()
	at := int(head) & (len(r.mem) - 1)
	need := (tapHeader + len(f.Data) + tapAlign - 1) &^ (tapAlign - 1)
	skip := 0
	if end := len(r.mem) - at; need > end {
		skip = end
	}
	if head+uint64(skip+need)-r.tail.Load() > uint64(len(r.mem)) {
		return false
	}
	if skip > 0 {
		binary.LittleEndian.PutUint32(r.mem[at:], tapWrap)
		at = 0
	}
	rec := r.mem[at : at+need]
	binary.LittleEndian.PutUint32(rec[0:], uint32(len(f.Data)))
	binary.LittleEndian.PutUint32(rec[4:], uint32(f.Len))
	binary.LittleEndian.PutUint64(rec[8:], uint64(f.Time.UnixNano()))
	binary.LittleEndian.PutUint64(rec[16:], f.Lost)
	rec[24] = byte(f.Direction)
	copy(rec[tapHeader:], f.Data)
	r.head.Store(head + uint64(skip+need))
	return true
}

// nextFrame releases the last record and returns the next one.
func (r *tapRing) nextFrame() (f TappedFrame, ok bool) {
	tail := r.tail.Load() + uint64(r.held)
	r.held = 0
	r.tail.Store(tail)
	if tail == r.head.Load() {
		return f, false
	}
	at := int(tail) & (len(r.mem) - 1)
	if binary.LittleEndian.Uint32(r.mem[at:]) == tapWrap {
		r.held = len(r.mem) - at
		at = 0
	}
	rec := r.mem[at:]
	n := int(binary.LittleEndian.Uint32(rec))
	r.held += (tapHeader + n + tapAlign - 1) &^ (tapAlign - 1)
	return TappedFrame{
		Time:      time.Unix(0, int64(binary.LittleEndian.Uint64(rec[8:]))),
		Direction: Direction(rec[24]),
		Data:      rec[tapHeader : tapHeader+n : tapHeader+n],
		Len:       int(binary.LittleEndian.Uint32(rec[4:])),
		Lost:      binary.LittleEndian.Uint64(rec[16:]),
	}, true
}

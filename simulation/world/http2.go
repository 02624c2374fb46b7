// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// A control connection carries the frames of HTTP/2 (RFC 9113) one by one: each is an event, so
// that the effects of one end before the next arrives.
const (
	prefaceLen   = 24 // length of a client's connection preface
	frameHead    = 9  // length of a frame's header: length, type, flags and stream
	frameData    = 0  // types
	frameHeaders = 1
)

// sortFrames sorts the frames written since the last Collect into an order that does not depend on
// which goroutine wrote first: frames of no call, or of a call with a single frame among them, come
// first. HTTP/2 allows that.
func (e *end) sortFrames() {
	fresh := e.out[e.settled:]
	if e.settled == 0 && e.preface > 0 {
		fresh = fresh[min(len(fresh), e.preface):]
	}
	e.settled = len(e.out)
	if len(fresh) == 0 {
		return
	}
	var frames [][]byte
	calls := map[uint32]bool{}
	for rest := fresh; len(rest) > 0; {
		unit := frameLen(rest)
		frames = append(frames, rest[:unit])
		if k := rest[3]; k == frameHeaders || k == frameData {
			calls[streamOf(rest)] = true
		}
		rest = rest[unit:]
	}
	if len(frames) < 2 {
		return
	}
	slices.SortStableFunc(frames, func(a, b []byte) int {
		x, y := !calls[streamOf(a)], !calls[streamOf(b)]
		switch {
		case x != y && x:
			return -1
		case x != y:
			return 1
		case x:
			return cmp.Or(cmp.Compare(a[3], b[3]), cmp.Compare(streamOf(a), streamOf(b)))
		}
		return 0
	})
	copy(fresh, slices.Concat(frames...))
}

// frameLen returns the length of b's first frame, limited to b.
func frameLen(b []byte) int {
	if len(b) < frameHead {
		return len(b)
	}
	return min(len(b), frameHead+int(binary.BigEndian.Uint32(b)>>8))
}

func streamOf(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[5:]) }

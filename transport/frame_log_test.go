// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// The room for frames that are not answered is not given to others.
func TestFrameLogReserves(t *testing.T) {
	l := newFrameLog(100)
	l.reserveFrame(50)
	if l.hasRoom(50) || !l.hasRoom(100-50-2*logHead) {
		t.Errorf("%d bytes of %d are reserved", l.reserved, len(l.memory))
	}
	l.releaseFrame(50)
	if !l.hasRoom(100 - logHead) {
		t.Errorf("%d bytes are reserved for a frame that is answered", l.reserved)
	}
}

// An entry of a log may wrap around, whatever its length.
func TestFrameLogWraps(t *testing.T) {
	l := newFrameLog(1000)
	next := uint32(0)
	mark := aggregator.Mark{}
	for seq := uint32(1); seq < 500; seq++ {
		payload := make([]byte, wire.HeaderLen+int(seq*7%90))
		wire.Header{Type: wire.TypeHot, Seq: seq}.Put(payload)
		payload[len(payload)-1] = byte(seq)
		for !l.hasRoom(len(payload)) {
			_, oldest, ok := l.oldestFrame()
			h, err := wire.ParseHeader(oldest)
			if next++; !ok || err != nil || h.Seq != next || oldest[len(oldest)-1] != byte(next) {
				t.Fatalf("the oldest is %+v (%v, %v), want frame %d", h, ok, err, next)
			}
			mark.Newest, mark.Applied[0] = next, 1
			l.dropCommitted(&mark)
		}
		l.reserveFrame(len(payload))
		l.addFrame(acknowledged, payload)
	}
	mark.Newest = 500 + wire.DefaultWindow
	if l.dropCommitted(&mark); l.used != 0 || l.frames != 0 || l.reserved != 0 {
		t.Errorf("%d bytes, %d frames, %d reserved are left", l.used, l.frames, l.reserved)
	}
}

// A log is a queue, whose ring grows while it has wrapped around, and becomes smaller when few
// entries are left.
func TestFrameLogIsAQueue(t *testing.T) {
	type entry struct {
		owner   uint32
		payload []byte
	}
	for _, size := range []int{1, 63, 64, 100, 1000, 1 << 14, 40_007} {
		random := rand.New(rand.NewPCG(1, uint64(size)))
		l := newFrameLog(size)
		var want []entry
		smallest := 0
		for i := range 20_000 {
			fill := []int{0, size / 100, size / 10, size}[i/1000%4] // entries stay for a while
			for l.used > fill || len(want) > 0 && random.IntN(3) == 0 {
				owner, payload, ok := l.oldestFrame()
				if !ok || owner != want[0].owner || !bytes.Equal(payload, want[0].payload) {
					t.Fatalf("size %d: the oldest is of %d and has %d bytes (%v), want %d and %d", size, owner, len(payload), ok, want[0].owner, len(want[0].payload))
				}
				l.dropOldest()
				want = slices.Delete(want, 0, 1)
			}
			e := entry{random.Uint32(), make([]byte, random.IntN(1+size/30))}
			for j := range e.payload {
				e.payload[j] = byte(random.Uint32())
			}
			if l.hasRoom(len(e.payload)) {
				l.reserveFrame(len(e.payload))
				l.addFrame(e.owner, e.payload)
				want = append(want, e)
			}
			if l.frames != len(want) || l.used > l.ring || l.ring > size {
				t.Fatalf("size %d: %d entries of %d bytes in a ring of %d, want %d", size, l.frames, l.used, l.ring, len(want))
			}
			if i == 5_500 {
				smallest = l.ring // after many entries there were few
			}
		}
		if size >= 1000 && smallest > size/4 {
			t.Errorf("size %d: a ring for %d bytes has %d", size, size/100, smallest)
		}
	}
}

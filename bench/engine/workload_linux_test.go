// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

func TestPushesFillFramesOfTheTestedSizes(t *testing.T) {
	hot, load, err := pushWorkload()
	if err != nil {
		t.Fatal(err)
	}
	times := make([]int, hotKeys)
	for i, p := range load {
		if !slices.IsSorted(p.keys) || len(slices.Compact(slices.Clone(p.keys))) != pushKeys || len(p.grads) != pushKeys {
			t.Fatalf("push %d has not %d distinct keys in order", i, pushKeys)
		}
		for _, key := range p.keys {
			r, ok := hot.Rank(key)
			if !ok {
				t.Fatalf("a key of push %d is not hot", i)
			}
			times[r]++
		}
	}
	if times[0] != pushBatches || times[hotKeys-1] > pushBatches/2 {
		t.Errorf("of %d pushes, the first rank is in %d and the last in %d", pushBatches, times[0], times[hotKeys-1])
	}
	for size, want := range map[int]int{minHot: pushKeys / wire.Lanes, maxHot: pushKeys / wire.Lanes / wire.DefaultStripes} {
		stripes := pushStripes[size]
		p, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Dense, Stripes: stripes})
		if err != nil {
			t.Fatal(err)
		}
		w := testWriter(t, want, size)
		if err := w.writePushes(p, load[0]); err != nil {
			t.Fatal(err)
		}
		if len(w.frames) != 0 || pushFrames(stripes) != want {
			t.Errorf("a push leaves %d of %d frames of %d bytes; %d are expected to be filled", len(w.frames), want, size, pushFrames(stripes))
		}
	}
}

// testWriter returns a writer of frames of a size.
func testWriter(t *testing.T, frames, size int) *chunkWriter {
	t.Helper()
	e, err := wire.NewEnvelope(
		wire.Endpoint{IP: netip.MustParseAddr("10.0.0.1"), Port: wire.DefaultPort}, wire.Endpoint{IP: netip.MustParseAddr("10.0.0.2"), Port: wire.DefaultPort})
	if err != nil {
		t.Fatal(err)
	}
	w := &chunkWriter{envelope: e}
	for range frames {
		w.frames = append(w.frames, make([]byte, size))
	}
	return w
}

func TestRenumberedFrameHasValidChecksum(t *testing.T) {
	w := testWriter(t, 1, minHot)
	frame := w.frames[0]
	payload := w.nextChunk()
	copy(payload[wire.HeaderLen:], "gradients")
	w.sealChunk(payload)
	for _, seq := range []uint32{1, 2, 0xffff, 0x10000, 0xffffffff, 0, 0x12345678} {
		renumber(frame, seq)
		p, err := wire.ParseFrame(frame, wire.DefaultPort)
		if err != nil {
			t.Fatalf("frame %#x: %v", seq, err)
		}
		want := wire.FlagDense | wire.FlagQuiet
		if seq%16 == 0 {
			want = wire.FlagDense | wire.FlagCover
		}
		if h, err := wire.ParseHeader(p.Payload); err != nil || h.Seq != seq || h.Type != wire.TypeHot || h.Flags != want {
			t.Errorf("frame %#x has header %+v, %v", seq, h, err)
		}
	}
}

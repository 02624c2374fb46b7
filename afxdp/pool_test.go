// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"errors"
	"net"
	"slices"
	"testing"
)

func TestPool(t *testing.T) {
	u := newUMEM(t, UMEMConfig{Frames: 8, HugePages: HugePagesOff})
	first, second := newPool(t, u, 3), newPool(t, u, 0)
	if first.UMEM() != u || first.Available() != 3 || second.Available() != 5 {
		t.Fatalf("pools of %d and %d", first.Available(), second.Available())
	}
	for want := range Frame(3) {
		if f, ok := first.Alloc(); f != want || !ok || u.state[f] != stateYours {
			t.Errorf("frame %d, %v, want %d", f, ok, want)
		}
	}
	if f, ok := first.Alloc(); f != 0 || ok {
		t.Errorf("frame %d, %v of an empty pool", f, ok)
	}
	batch := make([]Frame, 4)
	if n := second.AllocBatch(batch); n != 4 || !slices.Equal(sortFrames(batch), []Frame{3, 4, 5, 6}) {
		t.Errorf("%d frames, %v", n, batch)
	}
	for _, f := range batch {
		if u.state[f] != stateYours {
			t.Errorf("frame %d is %s", f, stateName(u.state[f]))
		}
	}
	if n := second.AllocBatch(batch); n != 1 || batch[0] != 7 || second.Available() != 0 {
		t.Errorf("%d frames, %v", n, batch[:n])
	}
	err := second.Free(7, 2, 8, 3)
	var fe *FrameError
	if !errors.As(err, &fe) || *fe != (FrameError{"free", 8, "no such frame"}) || second.Available() != 2 {
		t.Errorf("%v, %d are free", err, second.Available())
	}
	if err := second.Free(7); !errors.As(err, &fe) || *fe != (FrameError{"free", 7, "free"}) {
		t.Error(err)
	}
	if f, ok := second.Alloc(); f != 2 || !ok {
		t.Errorf("frame %d, %v, want that which came last", f, ok)
	}
	if got, want := u.Census(), (Census{Free: 1, Yours: 7}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A pool of a closed UMEM would hand out frames whose memory is unmapped.
func TestNoPoolOfClosedUMEM(t *testing.T) {
	u, err := NewUMEM(UMEMConfig{Frames: 8, HugePages: HugePagesOff})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := u.NewPool(0)
	if wantErr(t, err, net.ErrClosed); p != nil {
		t.Error("a pool besides the error")
	}
}

// The places of a frame's bytes, packets and metadata.
func TestViewsOfFrames(t *testing.T) {
	for _, size := range []int{2048, 4096} {
		u := newUMEM(t, UMEMConfig{Frames: 4, FrameSize: size, Headroom: 6, HugePages: HugePagesOff})
		if u.Frames() != 4 || u.FrameSize() != size || u.RxOffset() != 262 || u.RxRoom() != size-262 || len(u.mem) != 4*size {
			t.Errorf("%d frames of %d bytes, packets at %d with room for %d", u.Frames(), u.FrameSize(), u.RxOffset(), u.RxRoom())
		}
		for i := range u.mem {
			u.mem[i] = byte(i / 64)
		}
		at := func(name string, b []byte, start, length, capacity int) {
			t.Helper()
			if len(b) != length || cap(b) != capacity || addressOf(b) != addressOf(u.mem)+uintptr(start) {
				t.Errorf("%s: %d bytes of %d at %d, want %d of %d at %d", name, len(b), cap(b), addressOf(b)-addressOf(u.mem), length, capacity, start)
			}
		}
		d := Desc{Frame: 2, Off: 300, Len: 60}
		at("frame", u.Bytes(2), 2*size, size, size)
		at("packet", u.Packet(d), 2*size+300, 60, size-300)
		at("TX metadata", u.TxMeta(d), 2*size+300-TxMetaSize, TxMetaSize, TxMetaSize)
		at("RX metadata", u.RxMeta(d, 10), 2*size+290, 10, 10)
	}
}

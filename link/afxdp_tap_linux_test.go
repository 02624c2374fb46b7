// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// TestTapAFXDP sends frames from one AF_XDP link to another and back. The frames that one end shows
// as sent equal, bit for bit, those in the other end's UMEM: first transmissions, repetitions and
// answers; and a frame that the receiver discards is also shown.
func TestTapAFXDP(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 2})
	var links [2]Link
	var taps [2]*Listener
	for i := range links {
		h := bed.Host(i)
		if err := h.Do(func() (err error) {
			links[i], err = OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort)})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { links[i].Close() })
		taps[i] = listen(t, links[i], 1<<20)
	}
	path, err := links[0].Path(t.Context(), links[1].Local())
	if err != nil {
		t.Fatal(err)
	}
	// exchange sends one frame there and its answer back.
	var n byte
	exchange := func(b Buf, length int, retx bool) {
		t.Helper()
		n++
		clear(links[0].Payload(b)[:length])
		links[0].Payload(b)[length-1] = n
		if sent, err := links[0].Send([]Frame{{Buf: b, Len: length, To: path, Retx: retx}}); sent != 1 || err != nil {
			t.Fatalf("sent %d, %v", sent, err)
		}
		pkts := receiveAll(t, links[1], 1)
		pkts[0].Reply = wire.HeaderLen
		if err := links[1].Reply(pkts); err != nil {
			t.Fatal(err)
		}
		receiveAll(t, links[0], 1)
	}
	b, ok := links[0].Alloc()
	if !ok {
		t.Fatal("no buffer")
	}
	for _, length := range []int{wire.HeaderLen, 101, links[0].Limits().MaxPayload} {
		exchange(b, length, false)
		exchange(b, length, true)
	}
	// To another address, the frame is for the receiver's kernel.
	other := links[1].Local()
	other.IP = other.IP.Next().Next()
	stranger, err := links[0].Path(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	if sent, err := links[0].Send([]Frame{{Buf: b, Len: 50, To: stranger}}); sent != 1 || err != nil {
		t.Fatalf("sent %d, %v", sent, err)
	}
	// A frame that was changed on its way is shown, although the receiver discards it.
	e, err := wire.NewEnvelope(links[0].Local(), links[1].Local())
	if err != nil {
		t.Fatal(err)
	}
	changed := make([]byte, e.Len()+50)
	e.Seal(changed)
	changed[e.Len()]++
	if err := bed.Host(0).Do(func() error { sendRaw(t, bed.Host(0), changed); return nil }); err != nil {
		t.Fatal(err)
	}
	exchange(b, 20, false)

	ends := [2][]TappedFrame{readAll(taps[0]), readAll(taps[1])}
	if len(ends[0]) != 15 || len(ends[1]) != 15 {
		t.Fatalf("%d and %d frames, want 15", len(ends[0]), len(ends[1]))
	}
	if !bytes.Equal(ends[1][12].Data, changed) || ends[1][12].Direction != Inbound {
		t.Errorf("the changed frame: %x", ends[1][12].Data)
	}
	ends[1] = slices.Delete(ends[1], 12, 13)
	if p, err := wire.ParseFrame(ends[0][12].Data, wire.DefaultPort); err != nil || p.Dst.IP != other.IP {
		t.Errorf("the frame to another address: %+v, %v", p, err)
	}
	ends[0] = slices.Delete(ends[0], 12, 13)
	for i, f := range ends[0] {
		g := ends[1][i]
		if !bytes.Equal(f.Data, g.Data) || f.Direction+g.Direction != Inbound+Outbound {
			t.Errorf("frame %d: direction %d at one end, %d at the other\n%x\n%x", i, f.Direction, g.Direction, f.Data, g.Data)
		}
		p, err := wire.ParseFrame(f.Data, wire.DefaultPort)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if retx := wire.Flags(p.Payload[1])&wire.FlagRetx != 0; i < 12 && retx != (i%4 >= 2) {
			t.Errorf("frame %d: RETX %v", i, retx)
		}
	}
}

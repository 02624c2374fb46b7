// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// BenchmarkUDP measures a frame of full size through a UDP socket and back, as an
// answer of 12 bytes.
func BenchmarkUDP(b *testing.B) {
	var links [2]Link
	for i := range links {
		l, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		links[i] = l
	}
	benchmarkRoundTrips(b, links)
}

// benchmarkRoundTrips measures frames from one link to another and back.
func benchmarkRoundTrips(b *testing.B, links [2]Link) {
	path, err := links[0].Path(b.Context(), links[1].Local())
	if err != nil {
		b.Fatal(err)
	}
	const batch = 64
	var frames []Frame
	for range batch {
		buf, _ := links[0].Alloc()
		wire.Header{Type: wire.TypeCold}.Put(links[0].Payload(buf))
		frames = append(frames, Frame{Buf: buf, Len: 1400, To: path})
	}
	pkts := make([]Packet, batch)
	receive := func(l Link) int {
		for {
			n, err := l.Receive(pkts)
			if err != nil {
				b.Fatal(err)
			}
			if n > 0 {
				return n
			}
			if err := l.Wait(-1); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if n, err := links[0].Send(frames); n != batch || err != nil {
			b.Fatal(n, err)
		}
		for there := 0; there < batch; {
			n := receive(links[1])
			there += n
			for i := range n {
				pkts[i].Reply = wire.HeaderLen
			}
			if err := links[1].Reply(pkts[:n]); err != nil {
				b.Fatal(err)
			}
		}
		for back := 0; back < batch; {
			back += receive(links[0])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/frame")
}

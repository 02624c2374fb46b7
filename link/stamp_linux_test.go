// SPDX-License-Identifier: Apache-2.0

package link

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

// testStamps sends frames of all numbers: those that are drawn say when they arrived, between their
// transmission and their receipt, and others do not.
func testStamps(t *testing.T, from, to Link) {
	t.Helper()
	const sample = 64
	if !StampArrivals(to, sample) {
		t.Fatal("the link does not stamp")
	}
	path, err := from.Path(t.Context(), to.Local())
	if err != nil {
		t.Fatal(err)
	}
	draw, stamped := telemetry.NewDraw(sample), 0
	for number := range uint32(200) {
		buf, ok := from.Alloc()
		if !ok {
			t.Fatal("no buffer")
		}
		wire.Header{Type: wire.TypeCold, Seq: number}.Put(from.Payload(buf))
		before, _ := sys.KernelClock()
		if n, err := from.Send([]Frame{{Buf: buf, Len: wire.HeaderLen, To: path}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		from.Free(buf)
		p := receiveOne(deadline(t), t, to)
		after, _ := sys.KernelClock()
		// The wall clock, by which UDP sockets stamp, may be adjusted meanwhile.
		const slack = time.Millisecond
		in := p.Arrived >= before-slack && p.Arrived <= after+slack
		if want := draw.Draws(number); want != (p.Arrived != 0) || want && !in || wire.SeqOf(p.Payload) != number {
			t.Fatalf("frame %d: arrived at %v, between %v and %v; drawn: %v", number, p.Arrived, before, after, want)
		}
		if p.Arrived != 0 {
			stamped++
		}
	}
	if stamped < 2 {
		t.Errorf("%d of 200 frames are stamped", stamped)
	}
}

func TestUDPStampsDrawnFrames(t *testing.T) {
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		testStamps(t, openTestUDP(t, host), openTestUDP(t, host))
	}
	if StampArrivals(unstamped(t), 64) {
		t.Error("a link without stamps says that it stamps")
	}
}

// unstamped returns a link on a socket that cannot stamp.
func unstamped(t *testing.T) Link {
	t.Helper()
	l, err := openUDP(netip.MustParseAddrPort("127.0.0.1:0"), openNetSocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// An AF_XDP link stamps with the sample that it was opened with, and with no other.
func TestAFXDPStampsDrawnFrames(t *testing.T) {
	bed := bedtest.New(t, testbed.Config{Hosts: 2})
	links := [2]Link{}
	for i := range links {
		h := bed.Host(i)
		if err := h.Do(func() (err error) {
			links[i], err = OpenAFXDP(AFXDPConfig{Interface: h.Interface, Local: netip.AddrPortFrom(h.IP, wire.DefaultPort), Sample: 64 * i})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { links[i].Close() })
	}
	if StampArrivals(links[0], 64) || StampArrivals(links[1], 32) {
		t.Error("a link stamps with a sample that it was not opened with")
	}
	if err := bed.Host(0).Do(func() error { testStamps(t, links[0], links[1]); return nil }); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkUDPStamps sends and receives a batch of frames in one thread, without and with stamps.
func BenchmarkUDPStamps(b *testing.B) {
	for name, sample := range map[string]int{"off": 0, "on": telemetry.DefaultSample} {
		b.Run(name, func(b *testing.B) {
			var links [2]Link
			for i := range links {
				l, err := OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				links[i] = l
			}
			if sample != 0 && !StampArrivals(links[1], sample) {
				b.Fatal("the link does not stamp")
			}
			path, err := links[0].Path(b.Context(), links[1].Local())
			if err != nil {
				b.Fatal(err)
			}
			frames := make([]Frame, batchSize)
			for i := range frames {
				buf, _ := links[0].Alloc()
				wire.Header{Type: wire.TypeCold, Seq: uint32(i)}.Put(links[0].Payload(buf))
				frames[i] = Frame{Buf: buf, Len: 100, To: path}
			}
			pkts := make([]Packet, batchSize)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			begun, err := sys.TaskTime(unix.Gettid())
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if n, err := links[0].Send(frames); n != batchSize || err != nil {
					b.Fatal(n, err)
				}
				for got := 0; got < batchSize; {
					n, err := links[1].Receive(pkts)
					if err != nil {
						b.Fatal(err)
					}
					got += n
				}
			}
			ended, err := sys.TaskTime(unix.Gettid())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(ended-begun)/float64(b.N*batchSize), "cpu-ns/frame")
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"testing"

	"github.com/libra-ina/libra/wire"
)

// encodeHot fills ten dense stripes, like a packer.
func encodeHot(payload []byte, grads []float32) {
	header(wire.TypeHot, wire.FlagDense).Put(payload)
	for i := range wire.MaxStripes {
		s := wire.StripeAt(payload, i)
		s.SetMask(wire.LaneMask)
		for j := range wire.Lanes {
			k := i*wire.Lanes + j
			s.SetValue(j, grads[k])
			s.SetSlot(j, uint16(k))
		}
	}
}

// hotFrame returns an envelope and a sealed frame of n stripes.
func hotFrame(tb testing.TB, n int) (*wire.Envelope, []byte) {
	tb.Helper()
	e, err := wire.NewEnvelope(worker, switchHost)
	if err != nil {
		tb.Fatal(err)
	}
	return e, seal(worker, switchHost, hot(header(wire.TypeHot, wire.FlagDense), full(n, true)...))
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	e, frame := hotFrame(t, wire.MaxStripes)
	payload := e.Payload(frame, wire.HotLen(wire.MaxStripes))
	grads := make([]float32, wire.MaxStripes*wire.Lanes)
	buf := make([]byte, 4096)
	row := make([]float32, 16)
	damaged := append([]byte(nil), frame...)
	damaged[100]++
	if n := testing.AllocsPerRun(100, func() {
		encodeHot(payload, grads)
		e.Seal(frame)
		p, err := wire.ParseFrame(frame, wire.DefaultPort)
		if err != nil {
			t.Fatal(err)
		}
		h, err := wire.ParseHeader(p.Payload)
		if err != nil {
			t.Fatal(err)
		}
		copy(buf, frame)
		wire.PutAck(buf[wire.EnvelopeLen:], h)
		ack := wire.Reply(buf[:wire.EnvelopeLen], wire.HeaderLen)
		if _, err := wire.ParseAck(ack[wire.EnvelopeLen:], wire.Header{}); err != nil {
			t.Fatal(err)
		}
		refusal := wire.PutError(buf, h, wire.Refusal{Code: wire.CodeMode})
		if _, err := wire.ParseRefusal(refusal); err != nil {
			t.Fatal(err)
		}
		cold := buf[:wire.ColdLen(2, 16)]
		w := wire.PutRows(cold, wire.TypeCold, 2, 16)
		w.SetKey(1, 7)
		w.SetRow(1, row)
		r, err := wire.ParseRows(cold, wire.TypeCold)
		if err != nil {
			t.Fatal(err)
		}
		r.Row(1, row)
		if _, err := wire.ParseFrame(damaged, wire.DefaultPort); err == nil {
			t.Fatal("a damaged frame is accepted")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkEncodeHot(b *testing.B) {
	payload := make([]byte, wire.HotLen(wire.DefaultStripes))
	grads := make([]float32, wire.DefaultStripes*wire.Lanes)
	b.ReportAllocs()
	for b.Loop() {
		encodeHot(payload, grads)
	}
}

func BenchmarkSeal(b *testing.B) {
	for name, n := range map[string]int{"190B": 1, "1414B": wire.DefaultStripes} {
		b.Run(name, func(b *testing.B) {
			e, frame := hotFrame(b, n)
			b.ReportAllocs()
			for b.Loop() {
				e.Seal(frame)
			}
		})
	}
}

func BenchmarkParseFrame(b *testing.B) {
	ack := seal(switchHost, worker, wire.PutAck(make([]byte, wire.HeaderLen), header(wire.TypeHot, 0)))
	_, small := hotFrame(b, 1)
	_, large := hotFrame(b, wire.DefaultStripes)
	for name, frame := range map[string][]byte{"ACK": ack, "190B": small, "1414B": large} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := wire.ParseFrame(frame, wire.DefaultPort)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := wire.ParseHeader(p.Payload); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReply turns a received frame into its acknowledgement.
func BenchmarkReply(b *testing.B) {
	_, frame := hotFrame(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		wire.PutAck(frame[wire.EnvelopeLen:], header(wire.TypeHot, 0))
		wire.Reply(frame, wire.HeaderLen)
	}
}

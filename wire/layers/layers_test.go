// SPDX-License-Identifier: Apache-2.0

package layers

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/libra-ina/libra/wire"
	"github.com/libra-ina/libra/wire/golden"
)

func load(tb testing.TB) []golden.Case {
	tb.Helper()
	cases, err := golden.Load("../testdata")
	if err != nil {
		tb.Fatal(err)
	}
	return cases
}

// TestGoldenFrames decodes the golden frames from Ethernet on and compares
// the layer with the index, and then with the bytes that it writes.
func TestGoldenFrames(t *testing.T) {
	for _, c := range load(t) {
		t.Run(c.Name, func(t *testing.T) {
			p := gopacket.NewPacket(c.Bytes, layers.LayerTypeEthernet, gopacket.Default)
			l, ok := p.Layer(LayerTypeLibra).(*Libra)
			switch {
			case c.Payload == "ok" && !ok:
				t.Fatalf("no Libra layer: %v", p.ErrorLayer())
			case c.Payload != "ok" && c.Frame == "ok" && (ok || p.ErrorLayer() == nil):
				t.Fatalf("layer %+v, error %v; want an error: payload %q", l, p.ErrorLayer(), c.Payload)
			case c.Payload != "ok":
				return // gopacket does not verify checksums
			}
			if p.ApplicationLayer() != l || len(l.Payload()) != 0 {
				t.Error("the layer is not the packet's application layer, or has a payload")
			}
			compare(t, c, l)
			if c.Name == "unknown-type" {
				return
			}
			udp := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
			buf := gopacket.NewSerializeBuffer()
			if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{}, l); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(udp.Payload, buf.Bytes()); diff != "" {
				t.Errorf("(-decoded +written):\n%s", diff)
			}
		})
	}
}

func compare(t *testing.T, c golden.Case, l *Libra) {
	t.Helper()
	h := l.Header
	got := golden.Header{Type: h.Type.String(), Flags: h.FlagNames(), Job: h.Job, Sender: h.Sender, Epoch: h.Epoch, Seq: h.Seq}
	if diff := cmp.Diff(*c.Header, got); diff != "" {
		t.Errorf("header (-index +layer):\n%s", diff)
	}
	if len(l.Stripes) != len(c.Stripes) {
		t.Errorf("%d stripes, want %d", len(l.Stripes), len(c.Stripes))
	}
	values := 0
	if r := c.Rows; r != nil && r.Codes == "" {
		values = len(r.Rows) * r.Dim
	}
	if r := c.Rows; r != nil && (l.Dim != r.Dim || len(l.Keys) != len(r.Keys) || len(l.Values) != values || hex.EncodeToString(l.Codes) != r.Codes) {
		t.Errorf("dimension %d, %d keys, %d values, codes %x; want %+v", l.Dim, len(l.Keys), len(l.Values), l.Codes, r)
	}
	if s := c.Step; s != nil && (l.Step != wire.StepEnd{Step: s.Step, HotSent: s.HotSent, HotAnswered: s.HotAnswered, First: s.First, Room: s.Room}) {
		t.Errorf("step %+v, want %+v", l.Step, s)
	}
	if s := c.Sums; s != nil && (l.Sums != wire.SumsHead{Step: s.Step, Rows: s.Rows, First: s.First, Least: l.Keys[0], Width: s.Width}) {
		t.Errorf("sums %+v, want %+v", l.Sums, s)
	}
	if b := c.Block; b != nil {
		want := wire.Block{Operation: b.Operation, First: b.First, Count: b.Count, Step: b.Step, Bound: b.Bound, Scale: b.Scale}
		length := 4 * int(b.Count)
		if b.Codes != "" {
			length = len(b.Codes) / 2
		}
		if l.Block != want || len(l.Blocks) != length {
			t.Errorf("block %+v in %d bytes, want %+v", l.Block, len(l.Blocks), b)
		}
	}
	if s := c.Scale; s != nil && (l.Scale != wire.ScaleReport{Iteration: s.Iteration, Exponent: s.Exponent}) {
		t.Errorf("scale %+v, want %+v", l.Scale, s)
	}
	if r := c.Taken; r != nil && (l.Taken != wire.TakenReport{First: r.First, Round: r.Round}) {
		t.Errorf("taken %+v, want %+v", l.Taken, r)
	}
	if c.Cover != "" && fmt.Sprintf("%016x", l.Cover) != c.Cover {
		t.Errorf("cover %016x, want %s", l.Cover, c.Cover)
	}
	if r := c.Refusal; r != nil && (l.Refusal != wire.Refusal{Code: wire.Code(r.Code), Index: r.Index, Value: r.Value}) {
		t.Errorf("refusal %+v, want %+v", l.Refusal, r)
	}
}

// TestDecodingLayerParser decodes with gopacket's allocation-free parser.
func TestDecodingLayerParser(t *testing.T) {
	var (
		eth   layers.Ethernet
		ip    layers.IPv4
		udp   layers.UDP
		libra Libra
		found []gopacket.LayerType
	)
	parser := gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &eth, &ip, &udp, &libra)
	for _, c := range load(t) {
		if c.Name != "cold-rows" && c.Name != "hot-dense-10" {
			continue
		}
		if err := parser.DecodeLayers(c.Bytes, &found); err != nil {
			t.Fatal(err)
		}
		compare(t, c, &libra)
	}
}

func TestSerializeRejectsContradictions(t *testing.T) {
	cold := wire.Header{Type: wire.TypeCold}
	for name, l := range map[string]*Libra{
		"no dimension":    {Header: cold, Keys: []uint64{1}},
		"large dimension": {Header: cold, Keys: []uint64{1}, Dim: 1 << 16},
		"no rows":         {Header: cold, Dim: 1},
		"too many rows":   {Header: wire.Header{Type: wire.TypePull}, Dim: 1, Keys: make([]uint64, 1<<16)},
		"missing values":  {Header: cold, Dim: 2, Keys: []uint64{1, 2}, Values: make([]float32, 3)},
		"half a row":      {Header: wire.Header{Type: wire.TypeRows}, Dim: 2, Values: make([]float32, 3)},
		"unknown type":    {Header: wire.Header{Type: 9}},
	} {
		if err := l.SerializeTo(gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{}); err == nil {
			t.Errorf("%s: %+v is written", name, l)
		}
	}
	other := &Libra{Version: 2, Header: wire.Header{Type: wire.TypeAck}}
	buf := gopacket.NewSerializeBuffer()
	if err := other.SerializeTo(buf, gopacket.SerializeOptions{}); err != nil || buf.Bytes()[0] != 0x25 {
		t.Errorf("version 2: % x, %v", buf.Bytes(), err)
	}
}

// FuzzDecode checks that decoding does not panic, and that a decoded frame is encoded unchanged.
func FuzzDecode(f *testing.F) {
	for _, c := range load(f) {
		if p, err := wire.ParseFrame(c.Bytes, 0); err == nil {
			f.Add(p.Payload)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		// Without recovery: a panic of the decoder must not be hidden.
		p := gopacket.NewPacket(data, LayerTypeLibra, gopacket.DecodeOptions{SkipDecodeRecovery: true})
		l, ok := p.Layer(LayerTypeLibra).(*Libra)
		if !ok {
			return
		}
		buf := gopacket.NewSerializeBuffer()
		if err := l.SerializeTo(buf, gopacket.SerializeOptions{}); err != nil {
			return // an unknown type
		}
		want := data
		if l.hasScale() { // whose last three bytes have no meaning
			want = append(bytes.Clone(data[:wire.ScaleLen-3]), 0, 0, 0)
		}
		if l.Header.Type == wire.TypeBlock { // nor do the last two of its head
			want = bytes.Clone(data)
			clear(want[wire.BlockHead-2 : wire.BlockHead])
		}
		if !bytes.Equal(buf.Bytes(), want) {
			t.Fatalf("% x is written as % x", data, buf.Bytes())
		}
	})
}

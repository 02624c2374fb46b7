// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/wire"
)

// The programs on single frames: what is reflected is what the opposite end would have sent.
func TestOppositePrograms(t *testing.T) {
	tested := wire.Endpoint{MAC: [6]byte{2, 0xfe, 0, 0, 0, 1}, IP: netip.MustParseAddr("10.0.0.1"), Port: testPort}
	opposed := wire.Endpoint{MAC: [6]byte{2, 0xfd, 0, 0, 0, 2}, IP: netip.MustParseAddr("10.0.0.254"), Port: testPort}
	var b bed
	defer func() {
		if err := b.programs.closePrograms(); err != nil {
			t.Error(err)
		}
	}()
	bedtest.Check(t, b.programs.loadPrograms(tested, opposed))
	frame := func(from, to wire.Endpoint) []byte {
		f, err := buildFrame(from, to, minHot)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	sent, back, other := frame(tested, opposed), frame(opposed, tested), tested
	other.Port++
	foreign, tcp, arp := frame(opposed, other), bytes.Clone(sent), bytes.Clone(sent)
	tcp[protocolAt], arp[13] = 6, 6
	counted := uint64(0)
	for _, c := range []struct {
		name    string
		prog    *ebpf.Program
		in, out []byte
		verdict uint32
		counted uint64
	}{
		{"dropped", b.programs.countAndDrop, sent, sent, harness.XDPDrop, 1},
		{"another port, not dropped", b.programs.countAndDrop, foreign, foreign, harness.XDPPass, 0},
		{"TCP, not dropped", b.programs.countAndDrop, tcp, tcp, harness.XDPPass, 0},
		{"ARP, not dropped", b.programs.countAndDrop, arp, arp, harness.XDPPass, 0},
		{"short, not dropped", b.programs.countAndDrop, sent[:wire.EnvelopeLen-1], sent[:wire.EnvelopeLen-1], harness.XDPPass, 0},
		{"reflected", b.programs.reflect, sent, back, harness.XDPTx, 1},
		{"turned round, reflected", b.programs.reflect, back, back, harness.XDPTx, 1},
		{"another port, not reflected", b.programs.reflect, foreign, foreign, harness.XDPPass, 0},
		{"generated", b.programs.generate, back, back, harness.XDPTx, 0},
		{"passed", b.programs.pass, sent, sent, harness.XDPPass, 0},
	} {
		verdict, out, err := c.prog.Test(c.in)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if verdict != c.verdict || !bytes.Equal(out, c.out) {
			t.Errorf("%s: verdict %d, want %d; % x, want % x", c.name, verdict, c.verdict, out[:38], c.out[:38])
		}
		counted += c.counted
		if n, err := b.countArrived(); err != nil || n != counted {
			t.Errorf("%s: %d frames are counted, %v, want %d", c.name, n, err, counted)
		}
	}
}

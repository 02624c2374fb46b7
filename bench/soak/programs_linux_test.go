// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// clockSlack is how far, in nanoseconds, our reading of the kernel's clock may
// be from a program's; see bootAt.
const clockSlack = 100_000

// The programs on single packets. A map without sockets makes a redirection
// pass.
func TestPrograms(t *testing.T) {
	reflector, err := loadReflector()
	bedtest.Check(t, err)
	defer reflector.Close()
	stamping, sockets, err := loadStamping(1)
	if err != nil {
		t.Fatal(err)
	}
	defer stamping.Close()
	defer sockets.Close()

	for number := range uint64(len(sizes)) {
		b := make([]byte, size(number))
		(&packet{number: number, sent: 1}).writeFrame(b)
		foreign := append([]byte(nil), b...)
		foreign[12] ^= 0xff
		for _, c := range []struct {
			name    string
			prog    *ebpf.Program
			in      []byte
			verdict uint32
			stamped bool
		}{
			{"reflected", reflector, b, harness.XDPTx, false},
			{"foreign", reflector, foreign, harness.XDPPass, false},
			{"short", reflector, b[:headerSize+4], harness.XDPPass, false},
			{"stamped", stamping, b, harness.XDPPass, true},
			{"foreign, not stamped", stamping, foreign, harness.XDPPass, false},
		} {
			before := now()
			verdict, out, err := c.prog.Test(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if verdict != c.verdict {
				t.Errorf("%s: verdict %d, want %d", c.name, verdict, c.verdict)
			}
			if !c.stamped {
				if string(out) != string(c.in) {
					t.Errorf("%s: the packet was changed", c.name)
				}
				continue
			}
			p, err := read(out)
			if after := now(); err != nil || p.arrived < before-clockSlack || p.arrived > after+clockSlack || p.number != number {
				t.Errorf("%s: %+v, want an arrival from %d to %d: %v", c.name, p, before, after, err)
			}
		}
	}
}

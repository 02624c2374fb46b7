// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// A STEP frame that is lost and repeated shows that the path loses frames. The sums, which carry
// its number and follow the answer to the copy that arrived, do not change that.
func TestSumsAreNoSecondAnswer(t *testing.T) {
	for _, sums := range []bool{false, true} {
		p := newPausable(t, time.Hour)
		turn := func() {
			t.Helper()
			if _, err := p.turn(); err != nil {
				t.Fatal(err)
			}
		}
		const rtt = retransmit.Time(200 * time.Microsecond)
		for range 64 {
			p.push(1)
			p.clock += rtt
			p.answer()
			turn()
		}
		ended := false
		p.EndStep(&Step{Number: 1, Done: func(err error) { ended = err == nil }})
		turn()
		lost := make([]link.Packet, 1)
		if n, err := p.server.Receive(lost); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		h, err := wire.ParseHeader(lost[0].Payload)
		if err != nil || h.Type != wire.TypeStep {
			t.Fatal(h, err)
		}
		p.clock = p.clock.Add(p.patience())
		turn() // the STEP is repeated
		p.clock += rtt
		if n := p.answer(); n != 1 {
			t.Fatalf("%d frames", n)
		}
		turn()
		if sums {
			h.Type = wire.TypeSums
			payload := make([]byte, wire.SumsLen(1, testDim, 1))
			h.Put(payload)
			wire.PutStepSums(payload, wire.SumsHead{Step: 1, Rows: 1, Width: 1}, []uint64{7}, testDim, make([]float32, testDim))
			p.server.deliver(payload, p.link.Local())
			turn()
			if !ended {
				t.Fatal("the step does not end")
			}
		} else {
			p.EndStep(nil)
		}
		p.push(1)
		if early := 3 * time.Duration(rtt); p.patience() > early {
			t.Errorf("sums %v: the next lost frame waits for %v", sums, p.patience())
		}
	}
}

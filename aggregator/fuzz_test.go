// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
)

// FuzzProcess checks that no frame makes the model panic, that only a frame that is acknowledged,
// or would be, changes sums, that one whose number is remembered as refused gets its ERROR again,
// and that every answer is a valid frame.
func FuzzProcess(f *testing.F) {
	g := conformance.NewGenerator(4)
	for range 300 {
		f.Add(append([]byte(nil), g.Frame()...), true)
	}
	f.Fuzz(func(t *testing.T, frame []byte, repair bool) {
		m := newSmallWorld(t)
		if repair {
			frame = append([]byte(nil), frame...)
			conformance.Repair(frame)
		}
		before := m.State()
		original := string(frame)
		reply := make([]byte, aggregator.MaxReply)
		v, n := m.Process(frame, reply)
		if string(frame) != original {
			t.Fatal("the frame was changed")
		}
		if answered := v.Action == aggregator.Reply || v.Action == aggregator.Broadcast; answered != (n > 0) {
			t.Fatalf("verdict %v with a reply of %d bytes", v, n)
		}
		switch {
		case isAck(t, reply[:n]) || m.State().Equal(before):
		case n == 0 && acknowledgesAgain(t, m, frame):
		case isRefusedForGood(t, m, before, frame, reply[:n]):
		default:
			t.Fatal("a frame that was not acknowledged changed the state")
		}
	})
}

// newSmallWorld returns a model with the small jobs of the conformance world, whose
// first senders have contributed, so that one more frame may complete a round.
func newSmallWorld(t *testing.T) *aggregator.Model {
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	g := conformance.NewGenerator(5)
	reply := make([]byte, aggregator.MaxReply)
	for i, job := range conformance.Jobs {
		if job.Slots > 1000 {
			continue
		}
		if err := g.Start(m, i); err != nil {
			t.Fatal(err)
		}
		for sender := range conformance.Senders - 1 {
			m.Process(g.Valid(i, sender), reply)
		}
	}
	return m
}

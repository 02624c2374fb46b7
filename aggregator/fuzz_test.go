package aggregator_test

import (
	"reflect"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// FuzzProcess checks that no frame makes the model panic, that only an
// acknowledged frame changes state, and that whatever it answers is a valid
// frame.
func FuzzProcess(f *testing.F) {
	g := conformance.NewGenerator(4)
	for range 200 {
		f.Add(append([]byte(nil), g.Frame()...), true)
	}
	small := conformance.Jobs[3]
	f.Fuzz(func(t *testing.T, frame []byte, repair bool) {
		r := newRig(t, small)
		// A sum at the end of the range, and a frame that was applied.
		r.send(r.hot(1, wire.FlagDense, pair{0, 0, 8}))
		if repair {
			frame = append([]byte(nil), frame...)
			conformance.Repair(frame)
		}
		before := r.State()
		original := string(frame)
		reply := make([]byte, aggregator.MaxReply)
		v, n := r.Process(frame, reply)
		if string(frame) != original {
			t.Fatal("the frame was changed")
		}
		if answered := v.Action == aggregator.Reply || v.Action == aggregator.Broadcast; answered != (n > 0) {
			t.Fatalf("verdict %v with a reply of %d bytes", v, n)
		}
		acked := false
		if n > 0 {
			p, err := wire.ParseFrame(reply[:n], 0)
			if err != nil {
				t.Fatalf("reply %x: %v", reply[:n], err)
			}
			h, err := wire.ParseHeader(p.Payload)
			if err != nil {
				t.Fatalf("reply %x: %v", reply[:n], err)
			}
			acked = h.Type == wire.TypeAck
		}
		if !acked && !reflect.DeepEqual(r.State(), before) {
			t.Fatal("a frame that was not acknowledged changed the state")
		}
	})
}

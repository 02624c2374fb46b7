// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/internal/num/scaled"
	"github.com/libra-ina/libra/lut"
	"github.com/libra-ina/libra/wire"
)

// reference is an arithmetic, written down again without the model: how a slot
// changes by a pair, and what goes over the wire.
type reference struct {
	add  func(slot int64, bits uint32) int64
	wire func(slot int64) uint32
}

func newReference(t *testing.T, a aggregator.Arithmetic) reference {
	switch a {
	case aggregator.LUT:
		tables, err := lut.New(lut.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return reference{
			add: func(slot int64, bits uint32) int64 {
				sum := math.Float32frombits(tables.Add(uint32(slot), bits))
				return int64(math.Float32bits(max(min(sum, math.MaxFloat32), -math.MaxFloat32)))
			},
			wire: func(slot int64) uint32 { return uint32(slot) },
		}
	case aggregator.Fixed:
		return reference{
			add:  func(slot int64, bits uint32) int64 { return int64(scaled.Add(int32(slot), int32(bits))) },
			wire: func(slot int64) uint32 { return uint32(slot) },
		}
	}
	format := fixedpoint.Format{Exp: fixedpoint.DefaultExp}
	return reference{
		add: func(slot int64, bits uint32) int64 {
			n, err := format.FromBits(bits)
			if err != nil {
				t.Fatal(err)
			}
			return slot + n
		},
		wire: func(slot int64) uint32 { return math.Float32bits(format.ToFloat32(slot)) },
	}
}

// drawNumber draws a pair's bits: none that is refused, and in fixed arithmetic
// none that saturates in a test, unless wide is set.
func drawNumber(t *rapid.T, a aggregator.Arithmetic, wide bool) uint32 {
	switch {
	case a == aggregator.Fixed && wide:
		return rapid.Uint32().Draw(t, "number")
	case a == aggregator.Fixed:
		return uint32(rapid.Int32Range(-1<<20, 1<<20).Draw(t, "number"))
	case a == aggregator.LUT && wide:
		return math.Float32bits(rapid.Float32Range(-math.MaxFloat32, math.MaxFloat32).Draw(t, "number"))
	}
	return math.Float32bits(rapid.Float32Range(-100, 100).Draw(t, "number"))
}

const someSlots = 5

// drawPayloads draws HOT payloads of the first sender, numbered from 1 on.
func drawPayloads(t *rapid.T, r *rig, wide bool) [][]byte {
	payloads := make([][]byte, rapid.IntRange(1, 30).Draw(t, "frames"))
	for i := range payloads {
		var pairs []bitsPair
		for lane := range rapid.IntRange(0, wire.Lanes).Draw(t, "pairs") {
			pairs = append(pairs, bitsPair{lane, rapid.IntRange(0, someSlots-1).Draw(t, "rank"), drawNumber(t, r.job.Arithmetic, wide)})
		}
		h := wire.Header{
			Type: wire.TypeHot, Flags: wire.FlagDense, Job: r.job.ID, Sender: conformance.Sender(0).ID, Seq: uint32(i + 1),
		}
		payloads[i] = stripes(h, pairs)
	}
	return payloads
}

// slots harvests the job.
func (r *rig) slots(t interface{ Fatal(...any) }) []int64 {
	b, err := r.Swap(r.job.ID)
	if err != nil {
		t.Fatal(err)
	}
	return b.Slots
}

// Exact sums, and fixed ones that do not saturate, do not depend on the order and
// the number of times in which the network delivers frames.
func TestSumsDoNotDependOnOrder(t *testing.T) {
	for _, a := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed} {
		t.Run(a.String(), func(t *testing.T) {
			ref := newReference(t, a)
			rapid.Check(t, func(t *rapid.T) {
				r := newRig(t, aggregator.JobConfig{Arithmetic: a, Exp: aggregator.DefaultExp(a), Slots: someSlots})
				payloads := drawPayloads(t, r, false)
				order := rapid.Permutation(payloads).Draw(t, "order")
				again := rapid.SliceOf(rapid.SampledFrom(payloads)).Draw(t, "again")
				for _, p := range slices.Concat(order, again) {
					r.send(p)
				}
				if got, want := r.slots(t), addAll(ref, payloads); !slices.Equal(got, want) {
					t.Fatalf("sums are %d, want %d", got, want)
				}
			})
		})
	}
}

// In every arithmetic, a slot holds the additions one after the other in the
// order in which frames arrive for the first time.
func TestSumsFollowTheOrderOfArrival(t *testing.T) {
	for a := aggregator.Exact; a <= aggregator.Fixed; a++ {
		t.Run(a.String(), func(t *testing.T) {
			ref := newReference(t, a)
			rapid.Check(t, func(t *rapid.T) {
				r := newRig(t, aggregator.JobConfig{Arithmetic: a, Exp: aggregator.DefaultExp(a), Slots: someSlots})
				payloads := drawPayloads(t, r, true)
				order := rapid.Permutation(payloads).Draw(t, "order")
				for _, p := range order {
					r.send(p)
					r.send(rapid.SampledFrom(payloads[:1]).Draw(t, "again"))
				}
				first := slices.IndexFunc(order, func(p []byte) bool { return &p[0] == &payloads[0][0] })
				if first > 1 { // number 1 arrived after the first frame, as "again"
					p := order[first]
					order = slices.Insert(slices.Delete(slices.Clone(order), first, first+1), 1, p)
				}
				if got, want := r.slots(t), addAll(ref, order); !slices.Equal(got, want) {
					t.Fatalf("sums are %d, want %d", got, want)
				}
			})
		})
	}
}

// addAll returns the slots after all dense payloads.
func addAll(ref reference, payloads [][]byte) []int64 {
	slots := make([]int64, someSlots)
	for _, p := range payloads {
		s := wire.StripeAt(p, 0)
		for lane := range wire.Lanes {
			if s.Mask()>>lane&1 != 0 {
				slots[s.Slot(lane)] = ref.add(slots[s.Slot(lane)], s.Bits(lane))
			}
		}
	}
	return slots
}

// Whatever is not acknowledged has changed nothing, but for a quiet frame and TAKEN: those are
// acknowledged when they come again, and the quiet one asks.
func TestOnlyAcknowledgedFramesChangeTheState(t *testing.T) {
	m := newSmallWorld(t)
	g := conformance.NewGenerator(7)
	reply := make([]byte, aggregator.MaxReply)
	before := m.State()
	refused := 0
	for range 2000 {
		frame := g.Frame()
		_, n := m.Process(frame, reply)
		if isAck(t, reply[:n]) || n == 0 && acknowledgesAgain(t, m, frame) {
			before = m.State()
			continue
		}
		refused++
		if isRefusedForGood(t, m, before, frame, slices.Clone(reply[:n])) {
			before = m.State()
			continue
		}
		if !m.State().Equal(before) {
			t.Fatalf("the state was changed by frame %x, answered with %x", frame, reply[:n])
		}
	}
	if refused < 150 {
		t.Errorf("only %d frames were not acknowledged", refused)
	}
}

// isRefusedForGood reports whether a frame has changed nothing but the number of its sender,
// because of a sum or a round, and repeats it: the answer must be the same, and change nothing.
func isRefusedForGood(t *testing.T, m *aggregator.Model, before aggregator.State, frame, answer []byte) bool {
	t.Helper()
	p, err := wire.ParseFrame(answer, 0)
	if err != nil || len(p.Payload) != wire.ErrorLen {
		return false
	}
	r, err := wire.ParseRefusal(p.Payload)
	if err != nil || r.Code != wire.CodeOverflow && r.Code != wire.CodeRound || !m.State().EqualSums(before) {
		return false
	}
	answer = slices.Clone(answer)
	now, again := m.State(), make([]byte, aggregator.MaxReply)
	if _, n := m.Process(frame, again); !slices.Equal(again[:n], answer) || !m.State().Equal(now) {
		t.Errorf("a refused frame, repeated, gets % x, not % x", again[:n], answer)
	}
	return true
}

// acknowledgesAgain repeats an intact quiet frame, which asks for an answer then, or TAKEN. It
// reports whether that is an ACK, of a frame that was applied before.
func acknowledgesAgain(t *testing.T, m *aggregator.Model, frame []byte) bool {
	t.Helper()
	again := slices.Clone(frame)
	p, err := wire.ParseFrame(again, wire.DefaultPort)
	if err != nil {
		return false
	}
	h, err := wire.ParseHeader(p.Payload)
	if err != nil || h.Flags&wire.FlagQuiet == 0 && h.Type != wire.TypeTaken {
		return false
	}
	before := m.State()
	e, err := wire.NewEnvelope(p.Src, p.Dst)
	if err != nil {
		t.Fatal(err)
	}
	wire.MarkRetx(p.Payload)
	again = append(make([]byte, e.Len()), p.Payload...)
	e.Seal(again)
	reply := make([]byte, aggregator.MaxReply)
	_, n := m.Process(again, reply)
	return isAck(t, reply[:n]) && m.State().Equal(before)
}

// isAck reports whether an answer, if there is one, is an ACK.
func isAck(t *testing.T, answer []byte) bool {
	t.Helper()
	if len(answer) == 0 {
		return false
	}
	p, err := wire.ParseFrame(answer, 0)
	if err != nil {
		t.Fatalf("answer %x: %v", answer, err)
	}
	h, err := wire.ParseHeader(p.Payload)
	if err != nil {
		t.Fatalf("answer %x: %v", answer, err)
	}
	return h.Type == wire.TypeAck
}

// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

const window = wire.DefaultWindow

// markRules are how a mark is taken and read. The zero value stands for the right ones.
type markRules struct {
	has       func(m *aggregator.Mark, seq uint32) bool
	oneFilter bool // it is read from the filter that frames use
	applied   bool // refused numbers do not count as the newest
}

// flow is one sender and its filters at an aggregator, with a network that holds all frames ever
// sent. As in the XDP program, the first frame after a swap copies the current filter to the other
// one and goes on with that, and a mark is read at any time before the next swap.
type flow struct {
	rules markRules
	rng   *rand.Rand

	first, base, next uint32
	stuck             uint32 // a number that is not decided for the time being
	refusing          int    // frames that are to be refused in a row
	frames            []frameState

	filters [2]retransmit.Filter
	current int
	turned  int // swaps until the current filter became so
	swaps   int
}

type frameState struct {
	decided, refused, answered bool
	swaps                      int // before it was applied
}

func newFlow(rules markRules, rng *rand.Rand, first uint32) *flow {
	if rules.has == nil {
		rules.has = (*aggregator.Mark).Has
	}
	f := &flow{rules: rules, rng: rng, first: first, base: first, next: first}
	if first != wire.FirstSeq { // it has sent many before
		for i := range uint32(2 * window) {
			f.filters[0].Mark(first - 2*window + i)
		}
	}
	return f
}

func (f *flow) frame(seq uint32) *frameState { return &f.frames[seq-f.first] }

// run takes steps at random. It returns an error if a mark says something wrong of a frame that the
// sender may have a use for.
func (f *flow) run(steps int) error {
	for range steps {
		switch n := f.rng.IntN(100); {
		case n < 40:
			f.send()
		case n < 70:
			if err := f.decide(f.base + f.rng.Uint32N(window)); err != nil {
				return err
			}
		case n < 96:
			f.answer(f.base + f.rng.Uint32N(window))
		case n < 98:
			f.swaps++
			fallthrough
		case n < 99:
			if err := f.read(); err != nil {
				return err
			}
		case f.rng.IntN(2) == 0:
			f.stuck = f.next
		default:
			f.stuck = f.first - 1
			if f.rng.IntN(4) == 0 {
				f.refusing = 3 * window
			}
		}
	}
	return nil
}

// send sends as many frames as the window lets.
func (f *flow) send() {
	for range f.rng.IntN(16) {
		if f.next-f.base == window {
			return
		}
		f.frames = append(f.frames, frameState{})
		f.next++
	}
}

// decide has the network deliver a copy of a frame and of those after it.
func (f *flow) decide(seq uint32) error {
	for ; f.rng.IntN(8) > 0 && seq-f.base < f.next-f.base; seq++ {
		s := f.frame(seq)
		if fresh := f.filters[f.current].Fresh(seq); fresh == s.decided {
			return fmt.Errorf("frame %d: fresh is %v, decided is %v", seq, fresh, s.decided)
		}
		if s.decided || seq == f.stuck {
			continue
		}
		if !f.rules.oneFilter && f.turned != f.swaps {
			f.filters[1-f.current] = f.filters[f.current]
			f.current, f.turned = 1-f.current, f.swaps
		}
		s.decided, s.swaps = true, f.swaps
		if s.refused = f.refusing > 0 || f.rng.IntN(50) == 0; s.refused {
			f.refusing = max(0, f.refusing-1)
			f.filters[f.current].Refuse(seq, wire.Refusal{Code: wire.CodeOverflow})
			continue
		}
		f.filters[f.current].Mark(seq)
	}
	return nil
}

// answer has the answers to a frame and to those after it arrive.
func (f *flow) answer(seq uint32) {
	for ; f.rng.IntN(16) > 0 && seq-f.base < f.next-f.base; seq++ {
		f.frame(seq).answered = f.frame(seq).decided
	}
	for f.base != f.next && f.frame(f.base).answered {
		f.base++
	}
}

// read compares the mark of the last swap with what the banks hold.
func (f *flow) read() error {
	filter := &f.filters[f.current]
	if !f.rules.oneFilter && f.turned == f.swaps {
		filter = &f.filters[1-f.current]
	}
	if f.swaps == 0 {
		return nil
	}
	m := aggregator.NewMark(aggregator.SenderConfig{}, func(i int) (uint32, bool) {
		seq, applied := filter.Entry(i)
		if f.rules.applied && !applied {
			return 0, true
		}
		return seq, applied
	})
	for i, s := range f.frames {
		seq := f.first + uint32(i)
		if s.refused && s.answered {
			continue // the sender has no use for it
		}
		want := s.decided && !s.refused && s.swaps < f.swaps
		if got := f.rules.has(&m, seq); got != want {
			return fmt.Errorf("frame %d of %d to %d: the mark up to %d says %v, want %v", seq, f.first, f.next-1, m.Newest,
				got, want)
		}
	}
	return nil
}

// Between two swaps, at any time, a mark names just the frames in the banks, of all that its sender
// may have to send again.
func TestMarkNamesTheFramesInTheBanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.SampledFrom([]uint32{wire.FirstSeq, 1<<32 - 700, 1<<31 - 700}).Draw(t, "first")
		f := newFlow(markRules{}, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0)), first)
		if err := f.run(5000); err != nil {
			t.Fatal(err)
		}
	})
}

// The test above can fail, and fails for marks that say less.
func TestPoorMarksAreFound(t *testing.T) {
	for name, rules := range map[string]markRules{
		"a bit less than the window": {has: func(m *aggregator.Mark, seq uint32) bool {
			return m.Has(seq) || m.Newest-seq == window-1
		}},
		"no bitmap": {has: func(m *aggregator.Mark, seq uint32) bool { return int32(m.Newest-seq) >= 0 }},
		"no word for what is older than the window": {has: func(m *aggregator.Mark, seq uint32) bool {
			return m.Has(seq) && m.Newest-seq < window
		}},
		"one filter":                {oneFilter: true},
		"the newest applied number": {applied: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				if err := newFlow(rules, rand.New(rand.NewPCG(seed, 1)), wire.FirstSeq).run(5000); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("not found")
		})
	}
}

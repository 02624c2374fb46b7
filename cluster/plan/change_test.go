// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	"github.com/libra-ina/libra/packer/share"
)

// threeShares is a plan for a hot set of eight rows in parts of two, of which the last is cold for
// worker 8.
func threeShares() *Shares {
	return &Shares{PartRows: 2, Switches: []string{"core", "left", "right"}, Parts: [][]uint32{{0, 2}, {1}, {3}},
		to: map[uint16][]int{7: {0, 1, 0, 2}, 8: {0, 1, 0, share.Cold}}}
}

// places lists the switches to which a worker sends the parts, and fails the test if one goes to a
// share that has not it.
func (s *Shares) places(t *testing.T, worker uint16) (all []string) {
	t.Helper()
	for part, i := range s.to[worker] {
		at := "cold"
		if i != share.Cold {
			if at = s.Switches[i]; !slices.Contains(s.Parts[i], uint32(part)) {
				t.Errorf("worker %d sends part %d to share %d, which has %v", worker, part, i, s.Parts[i])
			}
		}
		all = append(all, at)
	}
	return all
}

// Shares that a plan has whole stay, and the rest of a switch is one more; each worker sends each
// part where the plan says.
func TestKeptShares(t *testing.T) {
	before := threeShares()
	to := &Shares{PartRows: 2, Switches: []string{"left", "core"}, Parts: [][]uint32{{0, 1, 3}, {2}},
		to: map[uint16][]int{7: {0, 0, 1, 0}, 8: {0, 0, 1, share.Cold}}}
	now, kept := to.Keeping(before)
	if !slices.Equal(kept, []int{1}) || !slices.Equal(now.Switches, []string{"left", "left", "core"}) {
		t.Fatalf("shares %v stay, at %v", kept, now.Switches)
	}
	if !slices.Equal(now.Parts[0], []uint32{1}) || !slices.Equal(now.Parts[1], []uint32{0, 3}) || !slices.Equal(now.Parts[2], []uint32{2}) {
		t.Errorf("parts %v", now.Parts)
	}
	for worker, want := range map[uint16][]string{7: {"left", "left", "core", "left"}, 8: {"left", "left", "core", "cold"}} {
		if got := now.places(t, worker); !slices.Equal(got, want) {
			t.Errorf("worker %d sends to %v, want %v", worker, got, want)
		}
	}
	again, kept := to.Keeping(now)
	if len(kept) != 3 || len(again.Switches) != 3 {
		t.Errorf("of the same plan shares %v stay, at %v", kept, again.Switches)
	}
	if _, kept := (&Shares{PartRows: 3, Switches: []string{"core"}, Parts: [][]uint32{{0, 2}}}).Keeping(before); len(kept) != 0 {
		t.Errorf("of other parts, shares %v stay", kept)
	}
}

// The parts of a switch that is drained go where others have them, where there is room and a
// number, or are cold; nothing else changes.
func TestDrainedSwitch(t *testing.T) {
	c, hot := planned(t), hotSet(t, 8, 1)
	names := []string{"core", "left", "right"}
	before := &Shares{PartRows: 2, Switches: names, Parts: [][]uint32{{0, 2, 3}, {1, 3}, {3}},
		to: map[uint16][]int{7: {0, 1, 0, 1}, 8: {0, 1, 0, share.Cold}}}
	for i := range c.Switches {
		c.Switches[i].Slots = 8
	}
	c.Switch.Slots = 8
	anywhere := func(string) bool { return true }
	for _, test := range []struct {
		what     string
		mayOpen  func(string) bool
		want     []string
		cold     int
		switches int
	}{
		{"there is room at the third", anywhere, []string{names[0], names[2], names[0], names[0]}, 0, 3},
		{"no number is free", func(string) bool { return false }, []string{names[0], "cold", names[0], names[0]}, 1, 2},
		{"a number is free at the first", func(at string) bool { return at == names[0] },
			[]string{names[0], names[0], names[0], names[0]}, 0, 3},
	} {
		now, cold := before.Draining(c, hot, names[1], test.mayOpen)
		if got := now.places(t, 7); slices.Contains(now.Switches, names[1]) || cold != test.cold || len(now.Switches) != test.switches ||
			!slices.Equal(got[:3], test.want[:3]) || got[3] == "cold" {
			t.Errorf("%s: worker 7 sends to %v, want %v; %d parts are cold, of shares at %v", test.what, got, test.want, cold, now.Switches)
		}
		if got := now.places(t, 8); got[3] != "cold" {
			t.Errorf("%s: worker 8 sends to %v", test.what, got)
		}
		if _, kept := now.Keeping(before); !slices.Equal(kept, []int{0, 2}) {
			t.Errorf("%s: shares %v stay", test.what, kept)
		}
	}
}

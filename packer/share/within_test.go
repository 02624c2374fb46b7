// SPDX-License-Identifier: Apache-2.0

package share

import "testing"

// The runs of a share in another one lead from each of its local ranks to the same rank of the hot
// set.
func TestWithin(t *testing.T) {
	const rows, dim, partRows = 19, 3, 2 // the last of ten parts has one row
	plan := func(hotSet byte, partRows int, parts ...[]uint32) *Division {
		t.Helper()
		to := make([]int, (rows+partRows-1)/partRows)
		for i := range to {
			to[i] = Cold
		}
		d, err := New(rows, dim, [32]byte{hotSet}, Plan{PartRows: partRows, Shares: parts, To: to})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	parents := plan(1, partRows, []uint32{0, 1, 3, 4, 5, 7, 9}, []uint32{2, 6, 8})
	children := plan(1, partRows, []uint32{1, 3, 4, 7, 9}, []uint32{0}, []uint32{0, 2}, []uint32{0, 1, 3, 4, 5, 7, 9}, []uint32{2, 6, 8})
	for _, c := range []struct{ child, parent, runs int }{{0, 0, 2}, {1, 0, 1}, {2, 0, 0}, {2, 1, 0}, {3, 0, 1}, {4, 1, 1}, {0, 1, 0}} {
		runs, ok := children.Within(c.child, parents, c.parent)
		if ok != (c.runs > 0) || len(runs) != c.runs {
			t.Errorf("%+v: %v, %v", c, runs, ok)
			continue
		}
		local := uint32(0)
		for _, r := range runs {
			for i := range r.Slots {
				want, _ := children.Rank(c.child, local)
				if got, ok := parents.Rank(c.parent, r.First+i); !ok || got != want {
					t.Errorf("%+v: local rank %d is %d in the parent, rank %d of the hot set, want %d", c, local, r.First+i, got, want)
				}
				local++
			}
		}
		if ok && int(local) != children.Slots(c.child) {
			t.Errorf("%+v: %d slots of %d", c, local, children.Slots(c.child))
		}
	}
	for _, other := range []*Division{plan(2, partRows, []uint32{0}), plan(1, 3, []uint32{0})} {
		if runs, ok := children.Within(1, other, 0); ok {
			t.Errorf("in a share of something else: %v", runs)
		}
	}
}

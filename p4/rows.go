// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"cmp"
	"slices"
)

// span is a range of a bank's rows in the registers.
type span struct{ first, n int }

// rowPool allocates rows to jobs, first fit.
type rowPool struct {
	size int
	used []span // in order
}

// takeRows returns the first of n free rows, or false if there is no room.
func (p *rowPool) takeRows(n int) (first int, ok bool) {
	i := 0
	for ; i < len(p.used); i++ {
		if p.used[i].first-first >= n {
			break
		}
		first = p.used[i].first + p.used[i].n
	}
	if first+n > p.size {
		return 0, false
	}
	p.used = slices.Insert(p.used, i, span{first, n})
	return first, true
}

// giveRows releases the rows that start at first.
func (p *rowPool) giveRows(first int) {
	i, ok := slices.BinarySearchFunc(p.used, first, func(s span, first int) int { return cmp.Compare(s.first, first) })
	if ok {
		p.used = slices.Delete(p.used, i, i+1)
	}
}

func (p *rowPool) rowsLeft() int {
	n := p.size
	for _, s := range p.used {
		n -= s.n
	}
	return n
}

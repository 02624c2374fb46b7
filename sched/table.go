// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"fmt"
	"math"
)

// table has, for every set of switches, what a part costs that they hold. Nothing else decides it:
// each worker sends to the nearest of them.
type table struct {
	*Problem
	push    []float64 // links from the workers, for a byte that each pushes
	harvest []float64 // bytes of harvests times links, for a unit of size; infinite where a parent is missing
	up      []Set     // each switch with its ancestors, which must hold what it holds
	down    []Set     // each switch with its descendants, which lose what it loses
}

func newTable(p *Problem) *table {
	n := len(p.Switches)
	t := &table{
		Problem: p, push: make([]float64, 1<<n), harvest: make([]float64, 1<<n), up: make([]Set, n), down: make([]Set, n),
	}
	for s := range n {
		for at := s; at != Server; at = p.Switches[at].Parent {
			t.up[s] |= 1 << at
			t.down[at] |= 1 << s
		}
	}
	t.addPushes()
	for set := 1; set < 1<<n; set++ {
		s := Set(set).first()
		t.harvest[set] = t.harvest[set&(set-1)] + float64(p.Harvest*float64(p.Switches[s].Links))
	}
	for set := range t.harvest {
		for s := range Set(set).All() {
			if t.up[s]&^Set(set) != 0 {
				t.harvest[set] = math.Inf(1)
			}
		}
	}
	return t
}

// addPushes adds the links of all workers. Those with the same distances count together.
func (t *table) addPushes() {
	number := map[string]float64{}
	var kinds []Worker
	for _, w := range t.Workers {
		key := fmt.Sprint(w)
		if number[key] == 0 {
			kinds = append(kinds, w)
		}
		number[key]++
	}
	nearest := make([]float64, len(t.push))
	for _, w := range kinds {
		n := number[fmt.Sprint(w)]
		nearest[0] = t.Direct * float64(w.ToServer)
		t.push[0] += float64(n * nearest[0])
		for set := 1; set < len(nearest); set++ {
			nearest[set] = min(nearest[set&(set-1)], float64(w.Links[Set(set).first()]))
			t.push[set] += float64(n * nearest[set])
		}
	}
}

// cost is what a part costs that a set of switches holds.
func (t *table) cost(part int, set Set) float64 {
	p := &t.Parts[part]
	return float64(p.Push*t.push[set]) + float64(float64(p.Size)*t.harvest[set])
}

// total is what all parts cost.
func (t *table) total(sets []Set) (sum float64) {
	for g, set := range sets {
		sum += t.cost(g, set)
	}
	return sum
}

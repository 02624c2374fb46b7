// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"

	"github.com/libra-ina/libra/sched"
)

// Transfers is what one scheme sends in the paper's Figure 2, in fragments.
type Transfers struct {
	Scheme string `json:"scheme"`
	Server int    `json:"server"` // fragments that the server gets
	// Transfers counts each fragment once for each link, without those from workers to their switches.
	Transfers int `json:"transfers"`
	// All counts those, too.
	All        int `json:"all"`
	PaperHas   int `json:"paper_server"`
	PaperMoved int `json:"paper_transfers"`
}

// figure2 has two workers at each of two switches, a third switch with the server, and memory for
// one of three fragments at each switch. Workers 1 and 3 are ahead of 2 and 4.
func figure2() ([]Transfers, error) {
	var g sched.Graph
	s1, s2, s3 := g.AddSwitch(), g.AddSwitch(), g.AddSwitch()
	p := &placement{network: sched.Network{Graph: &g, Server: g.AddHost(), Switches: []sched.Node{s1, s2, s3}}}
	n := &p.network
	g.Join(s1, s2)
	g.Join(s1, s3)
	g.Join(s2, s3)
	g.Join(n.Server, s3)
	next := []sched.Node{s3, s3, n.Server, n.Server} // of the nodes in the order in which they were added
	for _, at := range []sched.Node{s1, s1, s2, s2} {
		w := g.AddHost()
		g.Join(w, at)
		next = append(next, at)
		n.Workers = append(n.Workers, w)
	}
	const fragments = 3
	first := len(n.Workers) * fragments
	sim := newSharing(p, next, len(n.Workers), 1, fragments, false)
	for _, pair := range [][]int{{0, 2}, {1, 3}} {
		for f := range fragments {
			for _, w := range pair {
				sim.send(w, f)
			}
		}
	}
	problem, err := n.Problem()
	if err != nil {
		return nil, err
	}
	for s := range problem.Switches {
		problem.Switches[s].Memory = 1
	}
	problem.Parts = slices.Repeat([]sched.Part{{Push: 1, Size: 1}}, fragments)
	solution, err := sched.Solve(problem)
	if err != nil {
		return nil, err
	}
	rounded, err := sched.Paper(problem, 1)
	if err != nil {
		return nil, err
	}
	all := int(sim.outcome.traffic)
	rows := []Transfers{{"ATP", int(sim.outcome.server), all - first, all, 7, 17}}
	for _, s := range []struct {
		name string
		plan *sched.Plan
	}{{GOAT, rounded.Plan}, {Planned, solution.Plan}} {
		all := int(problem.Cost(s.plan))
		rows = append(rows, Transfers{s.name, int(atServer(problem, s.plan)), all - first, all, 3, 13})
	}
	return rows, nil
}

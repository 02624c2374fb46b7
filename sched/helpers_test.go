// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// figure2 is the network of the paper's Figure 2: two workers at each of two switches, which are
// joined with each other and with a third, where the server is.
func figure2(t testing.TB) (*Network, *Problem) {
	t.Helper()
	var g Graph
	s1, s2, s3 := g.AddSwitch(), g.AddSwitch(), g.AddSwitch()
	n := &Network{Graph: &g, Server: g.AddHost(), Switches: []Node{s1, s2, s3}}
	g.Join(s1, s2)
	g.Join(s1, s3)
	g.Join(s2, s3)
	g.Join(n.Server, s3)
	for _, at := range []Node{s1, s1, s2, s2} {
		w := g.AddHost()
		g.Join(w, at)
		n.Workers = append(n.Workers, w)
	}
	p := mustProblem(t, n)
	for s := range p.Switches {
		p.Switches[s].Memory = 1
	}
	p.Parts = []Part{{1, 1}, {1, 1}, {1, 1}}
	return n, p
}

func mustProblem(t testing.TB, n *Network) *Problem {
	t.Helper()
	p, err := n.Problem()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustSolve(t testing.TB, p *Problem) *Solution {
	t.Helper()
	s, err := Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fatTree has 8 pods of 4 switches at the edge, 4 above them and 16 at the core, a fifth of which
// aggregate, and 192 hosts.
func fatTree(t testing.TB, seed uint64, workers int) *Problem {
	t.Helper()
	var g Graph
	var edge, all []Node
	var core [16]Node
	for i := range core {
		core[i] = g.AddSwitch()
	}
	all = append(all, core[:]...)
	for range 8 {
		var above, below [4]Node
		for i := range 4 {
			above[i] = g.AddSwitch()
			for j := range 4 {
				g.Join(above[i], core[4*i+j])
			}
		}
		for i := range 4 {
			below[i] = g.AddSwitch()
			for j := range 4 {
				g.Join(below[i], above[j])
			}
		}
		edge = append(edge, below[:]...)
		all = append(append(all, above[:]...), below[:]...)
	}
	var hosts []Node
	for i := range 192 {
		hosts = append(hosts, g.AddHost())
		g.Join(hosts[i], edge[i%32])
	}
	r := rand.New(rand.NewPCG(seed, 1))
	n := &Network{Graph: &g}
	for _, i := range r.Perm(len(all))[:16] {
		n.Switches = append(n.Switches, all[i])
	}
	for i, h := range r.Perm(len(hosts))[:workers+1] {
		if i == 0 {
			n.Server = hosts[h]
		} else {
			n.Workers = append(n.Workers, hosts[h])
		}
	}
	return mustProblem(t, n)
}

// fill gives a problem parts of one size, whose pushes follow Zipf's law, and switches memory.
func fill(p *Problem, parts, size, memory int, exponent float64) *Problem {
	sum := 0.0
	for g := range parts {
		sum += math.Pow(float64(g+1), -exponent)
	}
	for g := range parts {
		p.Parts = append(p.Parts, Part{float64(parts*size) * math.Pow(float64(g+1), -exponent) / sum, size})
	}
	for s := range p.Switches {
		p.Switches[s].Memory = memory
	}
	return p
}

// drawNetwork draws a connected network, a tree or not, with parents or without.
func drawNetwork(t *rapid.T, switches, workers int) *Network {
	var g Graph
	n := &Network{Graph: &g}
	total := rapid.IntRange(1, switches+2).Draw(t, "nodes that are switches")
	var nodes []Node
	for i := range total {
		nodes = append(nodes, g.AddSwitch())
		if i > 0 {
			g.Join(nodes[i], nodes[rapid.IntRange(0, i-1).Draw(t, "above")])
		}
	}
	for range rapid.IntRange(0, 3).Draw(t, "more links") {
		a, b := rapid.SampledFrom(nodes).Draw(t, "a"), rapid.SampledFrom(nodes).Draw(t, "b")
		if a != b {
			g.Join(a, b)
		}
	}
	n.Switches = nodes[:min(total, rapid.IntRange(0, switches).Draw(t, "switches that aggregate"))]
	host := func() Node {
		h := g.AddHost()
		g.Join(h, rapid.SampledFrom(nodes).Draw(t, "at"))
		return h
	}
	n.Server = host()
	for range rapid.IntRange(1, workers).Draw(t, "workers") {
		n.Workers = append(n.Workers, host())
	}
	if rapid.Bool().Draw(t, "parents") {
		for s := range n.Switches {
			n.Parents = append(n.Parents, rapid.IntRange(Server, s-1).Draw(t, "parent"))
		}
	}
	return n
}

// drawProblem draws a network and a problem on it.
func drawProblem(t *rapid.T, switches, workers, parts int) (*Network, *Problem) {
	n := drawNetwork(t, switches, workers)
	p, err := n.Problem()
	if err != nil {
		t.Fatal(err)
	}
	p.Direct = rapid.SampledFrom([]float64{1, 0.75, 1.5}).Draw(t, "direct")
	p.Harvest = rapid.SampledFrom([]float64{0, 0.5, 1, 4}).Draw(t, "harvest")
	for range rapid.IntRange(0, parts).Draw(t, "parts") {
		p.Parts = append(p.Parts, Part{float64(rapid.IntRange(0, 20).Draw(t, "push")), rapid.IntRange(1, 4).Draw(t, "size")})
	}
	for s := range p.Switches {
		p.Switches[s].Memory = rapid.IntRange(0, 9).Draw(t, "memory")
	}
	return n, p
}

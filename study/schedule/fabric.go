// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/libra-ina/libra/sched"
)

// fabric is a topology of §IV-C.
type fabric struct {
	name         string
	sweepWorkers int // workers of Figure 13: the number that the text gives for the fabric elsewhere
	graph        sched.Graph
	hosts        []sched.Node
	switches     []sched.Node
}

// Sizes of the fabrics.
const (
	leaves, spines, leafSpineHosts = 10, 10, 50
	pods, fatTreeHosts             = 8, 192
)

// leafSpine has 10 leaf and 10 spine switches, and 50 servers.
func leafSpine() *fabric {
	f := &fabric{name: "leaf–spine", sweepWorkers: 35}
	for range leaves + spines {
		f.switches = append(f.switches, f.graph.AddSwitch())
	}
	edge := f.switches[:leaves]
	for _, leaf := range edge {
		for _, spine := range f.switches[leaves:] {
			f.graph.Join(leaf, spine)
		}
	}
	f.addHosts(leafSpineHosts, edge)
	return f
}

// fatTree has 32 edge, 32 aggregation and 16 core switches, as one of 8-port switches, and 192
// servers: six at an edge switch, where 8-port switches have room for four.
func fatTree() *fabric {
	f := &fabric{name: "fat-tree", sweepWorkers: 40}
	const half = pods / 2
	var core, edge []sched.Node
	for range half * half {
		core = append(core, f.graph.AddSwitch())
	}
	f.switches = append(f.switches, core...)
	for range pods {
		var above []sched.Node
		for i := range half {
			above = append(above, f.graph.AddSwitch())
			for _, c := range core[i*half : (i+1)*half] {
				f.graph.Join(above[i], c)
			}
		}
		f.switches = append(f.switches, above...)
		for range half {
			below := f.graph.AddSwitch()
			for _, a := range above {
				f.graph.Join(below, a)
			}
			edge, f.switches = append(edge, below), append(f.switches, below)
		}
	}
	f.addHosts(fatTreeHosts, edge)
	return f
}

func (f *fabric) addHosts(n int, edge []sched.Node) {
	for i := range n {
		h := f.graph.AddHost()
		f.graph.Join(h, edge[i%len(edge)])
		f.hosts = append(f.hosts, h)
	}
}

// placement is a random choice of programmable switches, server and workers, with trees of shortest
// paths to the server.
type placement struct {
	network          sched.Network
	any              []sched.Node // each node's next hop: any shortest path
	overProgrammable []sched.Node // a shortest path over the most programmable switches
}

// place draws a placement. The first workers of a larger one are those of a smaller one.
func (f *fabric) place(seed uint64, i, workers int) *placement {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	p := &placement{network: sched.Network{Graph: &f.graph}}
	for _, s := range r.Perm(len(f.switches))[:len(f.switches)/programmable] {
		p.network.Switches = append(p.network.Switches, f.switches[s])
	}
	hosts := r.Perm(len(f.hosts))[:workers+1]
	p.network.Server = f.hosts[hosts[0]]
	for _, h := range hosts[1:] {
		p.network.Workers = append(p.network.Workers, f.hosts[h])
	}
	p.drawTrees(r)
	return p
}

// drawTrees draws one next hop for each node, so that what a switch has aggregated takes the same
// way as what it has not. Nodes come by their distance, because what is best depends on the next
// hop.
func (p *placement) drawTrees(r *rand.Rand) {
	g := p.network.Graph
	distances := g.Distances(p.network.Server)
	order := make([]sched.Node, g.Nodes())
	for i := range order {
		order[i] = sched.Node(i)
	}
	slices.SortStableFunc(order, func(a, b sched.Node) int { return cmp.Compare(distances[a], distances[b]) })
	p.any, p.overProgrammable = make([]sched.Node, len(order)), make([]sched.Node, len(order))
	passed := make([]int, len(order)) // programmable switches on the way, with the node itself
	for _, at := range order {
		if slices.Contains(p.network.Switches, at) {
			passed[at] = 1
		}
		hops := g.NextHops(at, distances)
		if len(hops) == 0 {
			continue // the server
		}
		p.any[at] = hops[r.IntN(len(hops))]
		most := 0
		for _, h := range hops {
			most = max(most, passed[h])
		}
		hops = slices.DeleteFunc(hops, func(h sched.Node) bool { return passed[h] < most })
		p.overProgrammable[at] = hops[r.IntN(len(hops))]
		passed[at] += most
	}
}

// rates draws the workers' rates, as shares of the links': normal around 1, drawn again outside (0,
// 1]. A worker draws from a stream of its own, so that it has the same luck at all deviations.
func rates(seed uint64, i, workers int, deviation float64) []float64 {
	all := make([]float64, workers)
	for w := range all {
		r := rand.New(rand.NewPCG(seed, uint64(i)<<32|uint64(w+1)))
		for all[w] = 2; !(all[w] > 0 && all[w] <= 1); {
			all[w] = 1 + deviation*r.NormFloat64()
		}
	}
	return all
}

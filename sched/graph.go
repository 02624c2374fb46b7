// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"errors"
	"fmt"
	"slices"
)

// ErrProblem is wrapped by errors about a network or a problem that has no plan.
var ErrProblem = errors.New("sched: bad problem")

// Node is a node of a [Graph].
type Node int

// Graph has hosts, switches and links of equal cost. Hosts do not forward. The zero value is empty.
type Graph struct {
	links [][]Node
	host  []bool
}

// AddHost adds a host.
func (g *Graph) AddHost() Node { return g.add(true) }

// AddSwitch adds a switch.
func (g *Graph) AddSwitch() Node { return g.add(false) }

func (g *Graph) add(host bool) Node {
	g.links = append(g.links, nil)
	g.host = append(g.host, host)
	return Node(len(g.links) - 1)
}

// Join adds a link.
func (g *Graph) Join(a, b Node) {
	g.links[a] = append(g.links[a], b)
	g.links[b] = append(g.links[b], a)
}

// Nodes returns the number of nodes, which are 0, 1 and so on.
func (g *Graph) Nodes() int { return len(g.links) }

// Unreachable is the distance of a node to which no path leads.
const Unreachable = -1

// Distances returns the number of links of a shortest path to a node from each node.
func (g *Graph) Distances(to Node) []int {
	distance := slices.Repeat([]int{Unreachable}, len(g.links))
	distance[to] = 0
	queue := []Node{to}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if g.host[at] && at != to {
			continue
		}
		for _, next := range g.links[at] {
			if distance[next] == Unreachable {
				distance[next] = distance[at] + 1
				queue = append(queue, next)
			}
		}
	}
	return distance
}

// NextHops returns the neighbours of a node that are on a shortest path to where the distances
// lead, in the order in which they were joined.
func (g *Graph) NextHops(from Node, distances []int) (hops []Node) {
	for _, next := range g.links[from] {
		if distances[next] == distances[from]-1 && (!g.host[next] || distances[next] == 0) {
			hops = append(hops, next)
		}
	}
	return hops
}

// Network is the graph of a job with the roles of its nodes.
type Network struct {
	Graph    *Graph
	Server   Node
	Switches []Node // those that aggregate
	// Parents has, for each of Switches, the index of the one that takes its harvests, or Server.
	// Nil: the server takes all.
	Parents []int
	Workers []Node
}

// parent returns where a switch sends its harvests: an index, or [Server], and the node.
func (n *Network) parent(s int) (index int, at Node) {
	if n.Parents == nil || n.Parents[s] == Server {
		return Server, n.Server
	}
	return n.Parents[s], n.Switches[n.Parents[s]]
}

// Problem counts the links between the nodes. It leaves out memory and parts, which the caller
// adds, and sets [Problem.Direct] and [Problem.Harvest] to the paper's 1.
func (n *Network) Problem() (*Problem, error) {
	p := &Problem{
		Switches: make([]Switch, len(n.Switches)), Workers: make([]Worker, len(n.Workers)),
		Direct: 1, Harvest: 1,
	}
	toServer := n.Graph.Distances(n.Server)
	for w, at := range n.Workers {
		if toServer[at] == Unreachable {
			return nil, fmt.Errorf("%w: no path from worker %d to the server", ErrProblem, w)
		}
		p.Workers[w] = Worker{ToServer: toServer[at], Links: make([]int, len(n.Switches))}
	}
	for s, at := range n.Switches {
		distances := n.Graph.Distances(at)
		for w, from := range n.Workers {
			p.Workers[w].Links[s] = distances[from]
		}
		parent, node := n.parent(s)
		p.Switches[s] = Switch{Parent: parent, Links: distances[node]}
		if distances[n.Server] == Unreachable || distances[node] == Unreachable {
			return nil, fmt.Errorf("%w: no path from switch %d to the server", ErrProblem, s)
		}
	}
	return p, nil
}

// Traffic is what passes a link, in both directions together.
type Traffic struct {
	A, B    Node // A is less than B
	Push    float64
	Harvest float64
}

// Traffic returns the bytes that a plan sends over each link that it uses, in order of A and B.
// Where several paths are shortest, it takes the first.
func (n *Network) Traffic(p *Problem, plan *Plan) []Traffic {
	links := map[[2]Node]*Traffic{}
	walk := func(from Node, distances []int, push, harvest float64) {
		for at := from; distances[at] > 0; {
			next := n.Graph.NextHops(at, distances)[0]
			key := [2]Node{min(at, next), max(at, next)}
			if links[key] == nil {
				links[key] = &Traffic{A: key[0], B: key[1]}
			}
			links[key].Push += push
			links[key].Harvest += harvest
			at = next
		}
	}
	toServer := n.Graph.Distances(n.Server)
	toSwitch := make([][]int, len(n.Switches))
	for s, at := range n.Switches {
		toSwitch[s] = n.Graph.Distances(at)
	}
	for g, part := range p.Parts {
		for w, to := range plan.To[g] {
			if to == Server {
				walk(n.Workers[w], toServer, float64(part.Push*p.Direct), 0)
			} else {
				walk(n.Workers[w], toSwitch[to], part.Push, 0)
			}
		}
		for s := range plan.Sets[g].All() {
			distances := toServer
			if parent, _ := n.parent(s); parent != Server {
				distances = toSwitch[parent]
			}
			walk(n.Switches[s], distances, 0, float64(p.Harvest*float64(part.Size)))
		}
	}
	all := make([]Traffic, 0, len(links))
	for _, t := range links {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(x, y Traffic) int {
		if x.A != y.A {
			return int(x.A - y.A)
		}
		return int(x.B - y.B)
	})
	return all
}

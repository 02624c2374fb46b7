// SPDX-License-Identifier: Apache-2.0

// Package plan makes plans of which switch sums which part of a job's hot set for whom, from its
// cluster file and its hot set, by package sched. See docs/scheduling.md.
//
// It is part of the libra command, not a stable interface: it changes with any release.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/sched"
	"github.com/libra-ina/libra/wire"
)

// Objectives.
const (
	Links = "links" // bytes times links: Eq. (1) of the GOAT paper
	Paper = "paper" // Eq. (4), by the paper's KRGS
	Room  = "room"  // as many pairs at switches as there is room for, and then Links
)

// MaxParts is the largest number of parts of a hot set.
const MaxParts = share.MaxParts

// Options are what a plan depends on besides the files.
type Options struct {
	// Objective is Links, Paper or Room.
	Objective string
	// Parts is the number of parts, at most MaxParts. They are ranges of equally many rows.
	Parts int
	// Batch is the number of rows of the hot set's sample that a push stands for; 0 means the file's
	// model.batch × job.accumulate.
	Batch int
	// Pushes is the number of pushes of each worker from one harvest to the next.
	Pushes int
	// Seed decides the rounding of Paper.
	Seed uint64
	// Without is the name of a switch that gets no parts; "" means none.
	Without string
}

// Defaults returns options for a job with job.sync, which harvests after one push of each worker.
func Defaults() Options { return Options{Objective: Links, Parts: MaxParts, Pushes: 1, Seed: 1} }

// coldIsDear is by how much dearer cold rows are with the objective Room. It is more than what the
// hottest part could save at another switch, for what the coldest one loses without any, and so
// little that a sum of both still tells plans apart.
const coldIsDear = 1e6

// slotBytes is what a harvest has for each slot at most: its sum, and a bit of a mask.
const slotBytes = 8 + 1.0/8

// maker is a plan in the making.
type maker struct {
	*cluster.Config
	hot     *packer.HotSet
	options Options

	network  sched.Network
	problem  *sched.Problem
	switches []int // indices in the file of the switches that aggregate
	names    map[sched.Node]string
	rows     int // in a part; the last may have fewer
	batch    int
	shares   []float64 // of the updates, for each part
}

// Make makes a plan. Errors name the field of the cluster file, or the option.
func Make(c *cluster.Config, hot *packer.HotSet, o Options) (*Report, error) {
	m := &maker{Config: c, hot: hot, options: o, names: map[sched.Node]string{}}
	m.batch = cmp.Or(o.Batch, c.Model.Batch*max(1, c.Job.Accumulate))
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := m.addNetwork(); err != nil {
		return nil, err
	}
	m.addParts()
	if err := m.checkSizes(); err != nil {
		return nil, err
	}
	solution, err := sched.Solve(m.problem)
	if err != nil {
		return nil, err
	}
	plan := solution.Plan
	switch o.Objective {
	case Room:
		full := *m.problem
		full.Direct *= coldIsDear
		filled, err := sched.Solve(&full)
		if err != nil {
			return nil, err
		}
		plan = filled.Plan
	case Paper:
		rounded, err := sched.Paper(m.problem, o.Seed)
		if err != nil {
			return nil, err
		}
		plan = rounded.Plan
	}
	return m.report(plan, solution.Bound), nil
}

func (m *maker) check() error {
	if len(m.Switches) == 0 {
		return errors.New("switches: the cluster file lists none: list all switches with their links, and give each host the one that it is at (see docs/scheduling.md)")
	}
	if m.hot.Len() == 0 {
		return fmt.Errorf("job.hot_set: %s has no rows, so there is nothing to plan: build it with more", m.Job.HotSet)
	}
	if m.hot.Meta().Rows == 0 || m.hot.Count(0) == 0 {
		return fmt.Errorf("job.hot_set: %s does not say how often its rows are updated: make it with 'libra hotset build' or 'libra hotset learn'", m.Job.HotSet)
	}
	if name := m.options.Without; name != "" {
		if i := m.SwitchNamed(name); i < 0 || m.Switches[i].Plain {
			return fmt.Errorf("--without %s: it is none of the switches that aggregate", name)
		}
		others := func(s cluster.FabricSwitch) bool { return !s.Plain && s.Name != name }
		if !slices.ContainsFunc(m.Switches, others) {
			return fmt.Errorf("--without %s: no other switch aggregates", name)
		}
	}
	for i, s := range m.Switches {
		if name := m.options.Without; name != "" && s.Parent == name {
			return fmt.Errorf("--without %s: it is the parent of %s (switches[%d].parent): leave that out", name, s.Name, i)
		}
		if m.options.Objective == Paper && s.Parent != "" {
			return fmt.Errorf("switches[%d].parent: %q, but the paper's algorithm knows no parents: leave it out, or choose the objective %s", i, s.Parent, Links)
		}
	}
	return nil
}

// addNetwork takes the network from the cluster file.
func (m *maker) addNetwork() error {
	g := &sched.Graph{}
	var nodes []sched.Node
	index := make([]int, len(m.Switches)) // among those that aggregate
	for i, s := range m.Switches {
		nodes = append(nodes, g.AddSwitch())
		m.names[nodes[i]] = s.Name
		if !s.Plain && s.Name != m.options.Without {
			index[i] = len(m.switches)
			m.switches = append(m.switches, i)
			m.network.Switches = append(m.network.Switches, nodes[i])
		}
	}
	for _, cable := range m.Cables() {
		g.Join(nodes[cable[0]], nodes[cable[1]])
	}
	host := func(h cluster.Host, name string) sched.Node {
		n := g.AddHost()
		g.Join(n, nodes[m.SwitchNamed(h.At)])
		m.names[n] = name
		return n
	}
	m.network.Graph = g
	m.network.Server = host(m.AllServers()[0].Host, ServerName)
	for _, w := range m.Workers {
		m.network.Workers = append(m.network.Workers, host(w.Host, fmt.Sprintf("worker %d", w.ID)))
	}
	for _, i := range m.switches {
		parent := sched.Server
		if name := m.Switches[i].Parent; name != "" {
			parent = index[m.SwitchNamed(name)]
		}
		m.network.Parents = append(m.network.Parents, parent)
	}
	var err error
	if m.problem, err = m.network.Problem(); err != nil {
		return err
	}
	for s, i := range m.switches {
		m.problem.Switches[s].Memory = m.SlotsOf(m.Switches[i])
	}
	return nil
}

// addParts divides the hot set, and weighs the parts by its counts.
func (m *maker) addParts() {
	dim := m.hot.Dim()
	pair := float64(wire.EnvelopeLen+wire.HotLen(m.Switch.Stripes)) / float64(wire.Lanes*m.Switch.Stripes)
	room := max(1, wire.ColdAtCap(m.MTU()-wire.DefaultMTU+wire.DefaultPayload, dim))
	row := float64(wire.EnvelopeLen+wire.ColdAtLen(room, dim)) / float64(room)
	m.problem.Direct = row / (pair * float64(dim))
	m.problem.Harvest = slotBytes

	m.rows = share.PartRows(m.hot.Len(), m.options.Parts)
	total := m.hot.Meta().Updates
	for first := 0; first < m.hot.Len(); first += m.rows {
		end := min(first+m.rows, m.hot.Len())
		pushed, updates := 0.0, uint64(0)
		for r := first; r < end; r++ {
			pushed += m.pushed(m.hot.Count(uint32(r)))
			updates += m.hot.Count(uint32(r))
		}
		m.problem.Parts = append(m.problem.Parts, sched.Part{
			Push: pushed * float64(m.options.Pushes*dim) * pair, Size: (end - first) * dim,
		})
		m.shares = append(m.shares, float64(updates)/float64(max(total, 1)))
	}
}

// pushed is the share of pushes that have a row which was counted so often: a push has a row once,
// however many of its mini-batch's rows update it.
func (m *maker) pushed(count uint64) float64 {
	rate := min(1, float64(count)/float64(m.hot.Meta().Rows))
	return -math.Expm1(float64(m.batch) * math.Log1p(-rate))
}

// checkSizes refuses parts that do not fit into a switch, or a share of one.
func (m *maker) checkSizes() error {
	dim := m.hot.Dim()
	size := m.problem.Parts[0].Size
	fits := func(slots int) string {
		rows := slots / dim
		if rows == 0 || (m.hot.Len()+rows-1)/rows > MaxParts {
			return ""
		}
		return fmt.Sprintf("ask for %d parts or more (--parts)", (m.hot.Len()+rows-1)/rows)
	}
	if size > packer.PageSlots {
		return fmt.Errorf("--parts %d: a part has %d slots, and a job at a switch at most %d: %s", m.options.Parts, size,
			packer.PageSlots, cmp.Or(fits(packer.PageSlots), "use fewer hot rows (libra hotset build --hot-rows)"))
	}
	for s, i := range m.switches {
		if room := m.problem.Switches[s].Memory; size > room {
			remedy := cmp.Or(fits(room), "give it more slots, or let it be plain")
			return fmt.Errorf("switches[%d].slots: a part has %d slots, and switch %s has %d: %s", i, size, m.Switches[i].Name,
				room, remedy)
		}
	}
	return nil
}

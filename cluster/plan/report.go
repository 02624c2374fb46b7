// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/sched"
)

// ServerName is the name of the server that sums the rest, as which no switch of a report appears.
const ServerName = "the server"

// Report is a plan. It marshals to one JSON object. Bytes are of a harvest of all slots and the
// pushes before it, and estimates.
type Report struct {
	Objective string   `json:"objective"`
	HotSet    string   `json:"hot_set"`       // its fingerprint, in hexadecimal
	Batch     int      `json:"batch"`         // rows of the hot set's sample that a push stands for
	Pushes    int      `json:"pushes"`        // of each worker before a harvest
	Rows      int      `json:"rows_per_part"` // the last part may have fewer
	Switches  []Switch `json:"switches"`
	Parts     []Part   `json:"parts"`
	Links     []Link   `json:"links"`
	Cost      Cost     `json:"cost"`
}

// Cost is the bytes times links that each way takes.
type Cost struct {
	Plan  float64 `json:"plan_bytes"`
	Bound float64 `json:"bound_bytes"` // what every plan costs at least
	Above float64 `json:"above_bound"` // the plan, as a share of the bound
	// OneSwitch is with all parts at the switch of a job without a plan, as far as there is room.
	OneSwitch float64 `json:"one_switch_bytes"`
	NoSwitch  float64 `json:"no_switch_bytes"` // with all rows cold
}

// Switch is a switch that aggregates.
type Switch struct {
	Name      string  `json:"name"`
	Address   string  `json:"address"`
	Parent    string  `json:"parent,omitempty"`
	Parts     int     `json:"parts"`
	Slots     int     `json:"slots"` // that the plan uses
	Room      int     `json:"room"`  // slots that it may use
	Occupancy float64 `json:"occupancy"`
	Pushed    float64 `json:"pushed_bytes"`    // that workers send to it
	Harvested float64 `json:"harvested_bytes"` // that it sends on, at most
}

// Part is a range of the hot set's ranks.
type Part struct {
	Part     int      `json:"part"`
	First    int      `json:"first_rank"`
	Rows     int      `json:"rows"`
	Slots    int      `json:"slots"`
	Share    float64  `json:"share"`    // of the updates in the hot set's sample
	Switches []string `json:"switches"` // that hold it; empty: the part is cold
	Senders  []Sender `json:"senders"`
}

// Sender says where some workers send a part.
type Sender struct {
	Switch  string   `json:"switch,omitempty"` // absent: cold, to the server
	Workers []uint16 `json:"workers"`
}

// Link is a link with what passes it, in both directions together.
type Link struct {
	A       string  `json:"a"`
	B       string  `json:"b"`
	Push    float64 `json:"push_bytes"`
	Harvest float64 `json:"harvest_bytes"` // at most
}

func (m *maker) nameOf(s int) string { return m.Switches[m.switches[s]].Name }

func (m *maker) report(plan *sched.Plan, bound float64) *Report {
	cost, fingerprint := m.problem.Cost(plan), m.hot.Fingerprint()
	r := &Report{
		Objective: m.options.Objective, HotSet: hex.EncodeToString(fingerprint[:]), Batch: m.batch,
		Pushes: m.options.Pushes, Rows: m.rows,
		Cost: Cost{
			Plan: cost, Bound: bound, Above: experiment.Quotient(cost-bound, bound), OneSwitch: m.oneSwitch(),
			NoSwitch: m.problem.Cost(m.problem.Nowhere()),
		},
	}
	used := m.problem.Used(plan)
	for s, i := range m.switches {
		from := m.Switches[i]
		room := m.problem.Switches[s].Memory
		r.Switches = append(r.Switches, Switch{
			Name: from.Name, Address: from.Address.String(), Parent: from.Parent, Slots: used[s], Room: room,
			Occupancy: experiment.Quotient(float64(used[s]), float64(room)),
			Harvested: m.problem.Harvest * float64(used[s]),
		})
	}
	for g, part := range m.problem.Parts {
		p := Part{Part: g, First: g * m.rows, Rows: part.Size / m.hot.Dim(), Slots: part.Size, Share: m.shares[g]}
		for s := range plan.Sets[g].All() {
			p.Switches = append(p.Switches, m.nameOf(s))
			r.Switches[s].Parts++
		}
		for w, to := range plan.To[g] {
			name := ""
			if to != sched.Server {
				name = m.nameOf(to)
				r.Switches[to].Pushed += part.Push
			}
			at := slices.IndexFunc(p.Senders, func(s Sender) bool { return s.Switch == name })
			if at < 0 {
				at = len(p.Senders)
				p.Senders = append(p.Senders, Sender{Switch: name})
			}
			p.Senders[at].Workers = append(p.Senders[at].Workers, m.Workers[w].ID)
		}
		r.Parts = append(r.Parts, p)
	}
	for _, t := range m.network.Traffic(m.problem, plan) {
		r.Links = append(r.Links, Link{m.names[t.A], m.names[t.B], t.Push, t.Harvest})
	}
	return r
}

// oneSwitch is what it costs to have the hottest parts at the job's switch, for all workers, and
// the server take its harvests, as jobs without a plan do.
func (m *maker) oneSwitch() float64 {
	own := slices.IndexFunc(m.switches, func(i int) bool { return m.Switches[i].Address == m.Switch.Address })
	if own < 0 { // it gets no parts
		return m.problem.Cost(m.problem.Nowhere())
	}
	network := m.network
	network.Parents = nil
	p, err := network.Problem()
	if err != nil {
		panic(err) // the same network with parents has one
	}
	p.Parts, p.Direct, p.Harvest = m.problem.Parts, m.problem.Direct, m.problem.Harvest
	plan := p.Nowhere()
	room := min(m.problem.Switches[own].Memory, packer.PageSlots)
	for g, part := range p.Parts {
		if room -= part.Size; room < 0 {
			break
		}
		plan.Sets[g] = 1 << own
		plan.To[g] = slices.Repeat([]int{own}, len(p.Workers))
	}
	return p.Cost(plan)
}

func bytes(n float64) string { return humanize.Bytes(uint64(n)) }

// Print writes the plan for people. Neighbouring parts with the same switches and senders share a
// line.
func (r *Report) Print(out *report.Printer) {
	header := []string{"switch", "address", "parent", "parts", "slots", "of", "occupancy", "pushed to it", "its harvest"}
	out.Table("Switches", header,
		experiment.Pick(r.Switches, func(s Switch) []any {
			return []any{s.Name, s.Address, s.Parent, s.Parts, humanize.Comma(int64(s.Slots)), humanize.Comma(int64(s.Room)),
				fmt.Sprintf("%.1f %%", 100*s.Occupancy), bytes(s.Pushed), bytes(s.Harvested)}
		}))
	var rows [][]any
	for i := 0; i < len(r.Parts); {
		first, last := r.Parts[i], r.Parts[i]
		share := 0.0
		for ; i < len(r.Parts) && r.Parts[i].alike(first); i++ {
			last = r.Parts[i]
			share += last.Share
		}
		rows = append(rows, []any{span(first.Part, last.Part), span(first.First, last.First+last.Rows-1),
			fmt.Sprintf("%.2f %%", 100*share), strings.Join(first.Switches, ", "), first.senders()})
	}
	out.Table("Parts", []string{"parts", "ranks", "updates", "switches", "workers"}, rows)
	out.Table("Links", []string{"from", "to", "pushes", "harvests"}, experiment.Pick(r.Links, func(l Link) []any {
		return []any{l.A, l.B, bytes(l.Push), bytes(l.Harvest)}
	}))
	out.Table("Bytes times links", []string{"way", "bytes"}, [][]any{
		{"this plan", bytes(r.Cost.Plan)},
		{fmt.Sprintf("lower bound of all plans (this one is %.2f %% above)", 100*r.Cost.Above), bytes(r.Cost.Bound)},
		{"all at the job's switch, as far as there is room", bytes(r.Cost.OneSwitch)},
		{"no switch, all rows cold", bytes(r.Cost.NoSwitch)},
	})
	out.Note("Estimates for one harvest of all slots after %d %s of each worker. Cold rows go to the server. A job follows "+
		"the plan that job.plan names.", r.Pushes, map[bool]string{true: "push", false: "pushes"}[r.Pushes == 1])
}

func span(first, last int) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d–%d", first, last)
}

// alike reports whether parts have the same switches and senders.
func (p Part) alike(q Part) bool {
	return p.senders() == q.senders() && slices.Equal(p.Switches, q.Switches)
}

// senders says where the workers send a part.
func (p Part) senders() string {
	var all []string
	for _, s := range p.Senders {
		name := s.Switch
		if name == "" {
			name = "cold"
		}
		ids := strings.Trim(strings.ReplaceAll(fmt.Sprint(s.Workers), " ", ","), "[]")
		all = append(all, name+": "+ids)
	}
	return strings.Join(all, "; ")
}

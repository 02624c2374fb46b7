// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// Shares are the shares of a job by a plan: one at each switch that has parts; or several, if some
// were there before: see [Shares.Keeping].
type Shares struct {
	Switches []string   // the names of their switches
	PartRows int        // row ranks in a part
	Parts    [][]uint32 // of each share
	to       map[uint16][]int
	parents  map[string]string // of switches
}

// Keeping returns the same plan in other shares. Those of before that the plan has whole stay: they
// are the first ones, and kept has their indices before. What the plan has at a switch besides is
// one more share there.
func (s *Shares) Keeping(before *Shares) (now *Shares, kept []int) {
	now = &Shares{PartRows: s.PartRows, to: map[uint16][]int{}, parents: s.parents}
	type place struct {
		at   string
		part uint32
	}
	has, index := map[place]bool{}, map[place]int{}
	for i, at := range s.Switches {
		for _, part := range s.Parts[i] {
			has[place{at, part}] = true
		}
	}
	add := func(at string, parts []uint32) {
		for _, part := range parts {
			index[place{at, part}] = len(now.Switches)
		}
		now.Switches, now.Parts = append(now.Switches, at), append(now.Parts, parts)
	}
	for i, at := range before.Switches {
		whole := before.PartRows == s.PartRows
		for _, part := range before.Parts[i] {
			whole = whole && has[place{at, part}]
		}
		if whole {
			kept = append(kept, i)
			add(at, before.Parts[i])
		}
	}
	for i, at := range s.Switches {
		rest := slices.DeleteFunc(slices.Clone(s.Parts[i]), func(part uint32) bool {
			_, is := index[place{at, part}]
			return is
		})
		if len(rest) > 0 {
			add(at, rest)
		}
	}
	for worker, to := range s.to {
		for part, i := range to {
			if i != share.Cold {
				i = index[place{s.Switches[i], uint32(part)}]
			}
			now.to[worker] = append(now.to[worker], i)
		}
	}
	return now, kept
}

// Draining returns the same plan without the shares at a switch, whose parts go, in the order of
// their ranks, where another switch has them, to where there is room for them, or to the server:
// cold says how many. New shares are at switches that mayOpen names.
func (s *Shares) Draining(c *cluster.Config, hot *packer.HotSet, name string,
	mayOpen func(at string) bool) (now *Shares, cold int) {
	now = &Shares{PartRows: s.PartRows, to: map[uint16][]int{}, parents: s.without(name)}
	size := func(part uint32) int { return min(s.PartRows, hot.Len()-int(part)*s.PartRows) * hot.Dim() }
	index := make([]int, len(s.Switches)) // of the shares that stay
	holder := map[uint32]int{}            // of each part
	used := map[string]int{}
	for i, at := range s.Switches {
		index[i] = share.Cold
		if at == name {
			continue
		}
		index[i] = len(now.Switches)
		now.Switches, now.Parts = append(now.Switches, at), append(now.Parts, s.Parts[i])
		for _, part := range s.Parts[i] {
			holder[part] = index[i]
			used[at] += size(part)
		}
	}
	opened := map[string]int{}
	for part := range uint32((hot.Len() + s.PartRows - 1) / s.PartRows) {
		if _, held := holder[part]; held || !s.has(name, part) {
			continue
		}
		to, most := "", size(part)-1
		for _, other := range c.Switches {
			room := c.SlotsOf(other) - used[other.Name]
			if !other.Plain && other.Name != name && room > most && mayOpen(other.Name) {
				to, most = other.Name, room
			}
		}
		if to == "" {
			cold++
			holder[part] = share.Cold
			continue
		}
		i, is := opened[to]
		if !is {
			i = len(now.Switches)
			opened[to] = i
			now.Switches, now.Parts = append(now.Switches, to), append(now.Parts, nil)
		}
		now.Parts[i] = append(now.Parts[i], part)
		used[to] += size(part)
		holder[part] = i
	}
	for worker, to := range s.to {
		for part, i := range to {
			switch {
			case i == share.Cold:
			case s.Switches[i] == name:
				i = holder[uint32(part)]
			default:
				i = index[i]
			}
			now.to[worker] = append(now.to[worker], i)
		}
	}
	return now, cold
}

// has reports whether a share at a switch has a part.
func (s *Shares) has(at string, part uint32) bool {
	for i, name := range s.Switches {
		if name == at && slices.Contains(s.Parts[i], part) {
			return true
		}
	}
	return false
}

// For returns what one of the cluster's workers does with the parts.
func (s *Shares) For(worker uint16) share.Plan {
	return share.Plan{PartRows: s.PartRows, Shares: s.Parts, To: s.to[worker]}
}

// AutoPushes is the number of pushes from one harvest to the next for which plans are made by
// themselves.
const AutoPushes = 100

// OfJob returns the shares by the plan of a job with job.plan: one that is made now, with the
// objective [Room] and for [AutoPushes], or that of its file. Errors name the field of the cluster
// file, or that of the plan's.
func OfJob(c *cluster.Config, hot *packer.HotSet) (*Shares, error) {
	if c.Job.Plan == cluster.PlanAuto {
		o := Defaults()
		o.Objective, o.Pushes = Room, AutoPushes
		r, err := Make(c, hot, o)
		if err != nil {
			return nil, err
		}
		s, err := r.Shares(c, hot)
		if err != nil {
			return nil, fmt.Errorf("job.plan: %w", err)
		}
		return s, nil
	}
	data, err := os.ReadFile(c.Job.Plan)
	if err != nil {
		return nil, fmt.Errorf("job.plan: %w", err)
	}
	r := &Report{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("job.plan: %s is not what 'libra plan --json' prints: %w", c.Job.Plan, err)
	}
	s, err := r.Shares(c, hot)
	if err != nil {
		return nil, fmt.Errorf("job.plan: %s: %w", c.Job.Plan, err)
	}
	return s, nil
}

// Shares returns the shares of a plan, if it fits a cluster file and a hot set.
func (r *Report) Shares(c *cluster.Config, hot *packer.HotSet) (*Shares, error) {
	const again = "make the plan again with 'libra plan --json'"
	if f := hot.Fingerprint(); r.HotSet != hex.EncodeToString(f[:]) {
		return nil, fmt.Errorf("hot_set: the plan is for another hot set than %s: %s", c.Job.HotSet, again)
	}
	s := &Shares{PartRows: r.Rows, to: map[uint16][]int{}}
	index, used := map[string]int{}, map[string]int{}
	for g, part := range r.Parts {
		for _, name := range part.Switches {
			i := c.SwitchNamed(name)
			switch {
			case i < 0 || c.Switches[i].Plain:
				return nil, fmt.Errorf("parts[%d].switches: %q is none of the switches that aggregate: %s", g, name, again)
			case index[name] > 0 && slices.Contains(s.Parts[index[name]-1], uint32(g)):
				return nil, fmt.Errorf("parts[%d].switches: %q is listed twice: %s", g, name, again)
			case index[name] == 0:
				s.Switches, s.Parts = append(s.Switches, name), append(s.Parts, nil)
				index[name] = len(s.Switches)
			}
			at := index[name] - 1
			s.Parts[at] = append(s.Parts[at], uint32(g))
			used[name] += min(r.Rows, hot.Len()-g*r.Rows) * hot.Dim()
			if room := c.SlotsOf(c.Switches[i]); used[name] > room {
				return nil, fmt.Errorf("parts[%d].switches: with it, %q would have %d slots, and it has room for %d (switches[%d].slots): %s",
					g, name, used[name], room, i, again)
			}
		}
		if err := s.addSenders(c, g, part, index); err != nil {
			return nil, fmt.Errorf("%w: %s", err, again)
		}
	}
	if err := s.takeParents(c, r); err != nil {
		return nil, fmt.Errorf("%w: %s", err, again)
	}
	if len(s.Switches) == 0 {
		return nil, errors.New("no part is worth its slots at any switch: its rows are updated too rarely from one harvest to the next: give the file of a plan for more pushes (libra plan --pushes), or a hot set of rows that are updated more often")
	}
	for _, w := range c.Workers {
		if _, err := share.New(hot.Len(), hot.Dim(), hot.Fingerprint(), s.For(w.ID)); err != nil {
			return nil, fmt.Errorf("worker %d: %w: %s", w.ID, err, again)
		}
	}
	return s, nil
}

// addSenders notes where each worker sends a part, whose switches have an index from 1 on.
func (s *Shares) addSenders(c *cluster.Config, part int, p Part, index map[string]int) error {
	for _, from := range p.Senders {
		to := share.Cold
		if from.Switch != "" {
			if !slices.Contains(p.Switches, from.Switch) {
				return fmt.Errorf("parts[%d].senders: workers %v send it to %q, which does not have it", part, from.Workers,
					from.Switch)
			}
			to = index[from.Switch] - 1
		}
		for _, w := range from.Workers {
			if len(s.to[w]) != part {
				return fmt.Errorf("parts[%d].senders: worker %d is listed twice", part, w)
			}
			s.to[w] = append(s.to[w], to)
		}
	}
	for _, w := range c.Workers {
		if len(s.to[w.ID]) != part+1 {
			return fmt.Errorf("parts[%d].senders: it does not say where worker %d sends the part", part, w.ID)
		}
	}
	for w := range s.to {
		if !slices.ContainsFunc(c.Workers, func(own cluster.Worker) bool { return own.ID == w }) {
			return fmt.Errorf("parts[%d].senders: no worker has the number %d", part, w)
		}
	}
	return nil
}

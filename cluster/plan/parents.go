// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
)

// Parent returns the name of the switch that takes the harvests of shares at a switch, "" if the
// server does.
func (s *Shares) Parent(at string) string { return s.parents[at] }

// takeParents takes the parents of a plan's switches. What is not in the cluster file may come from
// another one.
func (s *Shares) takeParents(c *cluster.Config, r *Report) error {
	s.parents = map[string]string{}
	for i, at := range r.Switches {
		if slices.ContainsFunc(r.Switches[:i], func(other Switch) bool { return other.Name == at.Name }) {
			return fmt.Errorf("switches[%d].name: %q is listed twice", i, at.Name)
		}
		if at.Parent == "" {
			continue
		}
		parent := c.SwitchNamed(at.Parent)
		switch {
		case parent < 0 || c.Switches[parent].Plain:
			return fmt.Errorf("switches[%d].parent: %q is none of the switches that aggregate", i, at.Parent)
		case c.Job.Arithmetic == aggregator.LUT.String():
			return fmt.Errorf("switches[%d].parent: %q, but a parent adds sums of exact or fixed arithmetic, not of lut: leave it out",
				i, at.Parent)
		}
		s.parents[at.Name] = at.Parent
		circle := []string{at.Name}
		for next := at.Parent; next != ""; next = s.parents[next] {
			if circle = append(circle, next); next == at.Name {
				return fmt.Errorf("switches[%d].parent: harvests would go in a circle (%s): leave parent out at one of these switches",
					i, strings.Join(circle, " to "))
			}
		}
	}
	for g, part := range r.Parts {
		for _, name := range part.Switches {
			if parent := s.parents[name]; parent != "" && !slices.Contains(part.Switches, parent) {
				return fmt.Errorf("parts[%d].switches: %q has the part, and its parent %q does not, which is to take its harvests: let the parent have it, or leave parent out at %[2]q",
					g, name, parent)
			}
		}
	}
	return nil
}

// without returns the parents if one switch has no shares any more.
func (s *Shares) without(name string) map[string]string {
	left := maps.Clone(s.parents)
	maps.DeleteFunc(left, func(at, parent string) bool { return at == name || parent == name })
	return left
}

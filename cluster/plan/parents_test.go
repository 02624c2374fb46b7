// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
)

// A plan names the parents of its switches, and is refused if one of them cannot take the harvests.
func TestParentsOfAPlan(t *testing.T) {
	hot := hotSet(t, 2000, 1)
	c := read(t, "right], slots: 1000", "right], slots: 1000, parent: left")
	o := Defaults()
	o.Objective, o.Pushes = Room, AutoPushes
	r := mustMake(t, c, hot, o)
	s, err := r.Shares(c, hot)
	if err != nil {
		t.Fatal(err)
	}
	parents := map[string]string{}
	for _, at := range r.Switches {
		if at.Parent != "" {
			parents[at.Name] = at.Parent
		}
	}
	if len(parents) == 0 || !maps.Equal(s.parents, parents) {
		t.Fatalf("parents %v, in the plan %v", s.parents, parents)
	}
	var child int
	for child = range r.Switches {
		if r.Switches[child].Parent != "" {
			break
		}
	}
	name, parent := r.Switches[child].Name, r.Switches[child].Parent
	if again, _ := s.Keeping(s); again.Parent(name) != parent {
		t.Errorf("after a change the parent of %s is %q, want %q", name, again.Parent(name), parent)
	}
	drained, _ := s.Draining(c, hot, parent, func(string) bool { return true })
	if left := drained.Parent(name); left != "" {
		t.Errorf("after a drain the parent of %s is %q", name, left)
	}
	for want, change := range map[string]func(*Report){
		`.parent: "nowhere" is none of the switches that aggregate`: func(r *Report) { r.Switches[child].Parent = "nowhere" },
		`.name: "core" is listed twice`:                             func(r *Report) { r.Switches = append(r.Switches, Switch{Name: "core"}) },
		".parent: harvests would go in a circle (": func(r *Report) {
			for i := range r.Switches {
				if r.Switches[i].Name == parent {
					r.Switches[i].Parent = name
				}
			}
		},
		" has the part, and its parent ": func(r *Report) {
			for g, p := range r.Parts {
				r.Parts[g].Switches, r.Parts[g].Senders = []string{name}, nil
				for _, from := range p.Senders {
					from.Switch = name
					r.Parts[g].Senders = append(r.Parts[g].Senders, from)
				}
				if g > 0 {
					r.Parts[g].Switches = nil
					for i := range r.Parts[g].Senders {
						r.Parts[g].Senders[i].Switch = ""
					}
				}
			}
		},
	} {
		bad := mustMake(t, c, hot, o)
		change(bad)
		if _, err := bad.Shares(c, hot); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	c.Job.Arithmetic = aggregator.LUT.String()
	if _, err := r.Shares(c, hot); err == nil || !strings.Contains(err.Error(), "not of lut: leave it out") {
		t.Errorf("lut: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/sched"
)

// SlotsOf returns the slots of a switch that plans may use.
func (c *Config) SlotsOf(s FabricSwitch) int {
	if c.isOwn(s) {
		return cmp.Or(s.Slots, c.Switch.Slots, control.DefaultSlots)
	}
	return cmp.Or(s.Slots, control.DefaultSlots)
}

// isOwn reports whether a switch is the machine of Switch.
func (c *Config) isOwn(s FabricSwitch) bool { return s.Address == c.Switch.Address }

// MoreSwitches lists the indices of those switches, except the machine of Switch, that have
// daemons.
func (c *Config) MoreSwitches() (all []int) {
	for i, s := range c.Switches {
		if s.Control.IsValid() && !s.Plain && !c.isOwn(s) {
			all = append(all, i)
		}
	}
	return all
}

// At returns one of the switches that aggregate as Switch describes it.
func (c *Config) At(s FabricSwitch) Switch {
	if c.isOwn(s) {
		return c.Switch
	}
	one := c.Switch
	one.Address, one.Control, one.Interfaces, one.XDPMode = s.Address, s.Control, s.Interfaces, s.XDPMode
	one.Slots, one.ThreadedNAPI = s.Slots, s.ThreadedNAPI
	return one
}

// ForSwitch returns the configuration for the daemon of one of the switches: Switch is that one.
func (c *Config) ForSwitch(name string) (*Config, error) {
	i := c.SwitchNamed(name)
	switch {
	case i < 0:
		return nil, fmt.Errorf("no switch %q in the cluster configuration; those there: %s", name, c.switchNames())
	case c.Switches[i].Plain:
		return nil, fmt.Errorf("switches[%d]: %q is plain, so it has no daemon: leave plain out, and give it an address", i, name)
	case !c.isOwn(c.Switches[i]) && !c.Switches[i].Control.IsValid():
		return nil, fmt.Errorf("switches[%d].control: %q has none, which its daemon needs: give an IP:port", i, name)
	}
	own := *c
	own.Switch = c.At(c.Switches[i])
	return &own, nil
}

// SwitchNamed returns the index of the switch with a name, -1 if there is none.
func (c *Config) SwitchNamed(name string) int {
	return slices.IndexFunc(c.Switches, func(s FabricSwitch) bool { return s.Name == name })
}

// eachHost calls f with each host and its field.
func (c *Config) eachHost(f func(field string, h Host)) {
	c.eachServer(func(field string, s *Server) { f(field, s.Host) })
	for i, w := range c.Workers {
		f(fmt.Sprintf("workers[%d]", i), w.Host)
	}
}

// checkFabric checks the switches of the hosts' network. Addresses are checked with all others.
func (c *Config) checkFabric(v *mistakes) {
	if len(c.Switches) == 0 {
		c.eachHost(func(field string, h Host) {
			if h.At != "" {
				v.addMistake("%s.at: %q, but the file lists no switches: leave it out, or list them under switches", field, h.At)
			}
		})
		return
	}
	names := map[string]bool{}
	aggregating, own := 0, false
	for i, s := range c.Switches {
		field := fmt.Sprintf("switches[%d]", i)
		v.addName(field+".name", s.Name, names)
		if s.Plain {
			checkPlain(field, s, v)
			continue
		}
		aggregating++
		own = own || c.isOwn(s)
		if s.Slots < 0 && (c.isOwn(s) || !s.Control.IsValid()) { // or it is told with what else a daemon needs
			v.addMistake("%s.slots: %d is negative", field, s.Slots)
		}
		if a, b := s.Slots, c.Switch.Slots; c.isOwn(s) && a > 0 && b > 0 && a != b {
			v.addMistake("%s.slots: %d, but switch.slots of the same machine is %d: give the same, or one of them only", field, a, b)
		}
		c.checkDaemon(field, s, v)
		c.checkParent(field, s, v)
	}
	if aggregating > sched.MaxSwitches {
		v.addMistake("switches: %d aggregate; the limit is %d: let those that hold least be plain", aggregating,
			sched.MaxSwitches)
	}
	if c.Switch.Address.IsValid() && !own {
		v.addMistake("switch.address: %v is none of the switches that aggregate: list that machine under switches, too",
			c.Switch.Address)
	}
	c.eachHost(func(field string, h Host) {
		switch {
		case h.At == "":
			v.addMistake("%s.at: required with switches: give the name of the one to which the host is cabled", field)
		case c.SwitchNamed(h.At) < 0:
			v.addMistake("%s.at: %q is none of the switches %s", field, h.At, c.switchNames())
		}
	})
	c.checkLinks(v)
}

// checkPlain refuses what only switches that aggregate have.
func checkPlain(field string, s FabricSwitch, v *mistakes) {
	const remedy = ", but a plain switch only forwards: leave it out, or leave plain out"
	if s.Address.IsValid() {
		v.addMistake("%s.address: %v"+remedy, field, s.Address)
	}
	if s.Slots != 0 {
		v.addMistake("%s.slots: %d"+remedy, field, s.Slots)
	}
	if s.Parent != "" {
		v.addMistake("%s.parent: %q"+remedy, field, s.Parent)
	}
	for _, name := range s.ofDaemon() {
		v.addMistake("%s.%s: given"+remedy, field, name)
	}
}

// ofDaemon lists the fields that are given and only a daemon needs.
func (s FabricSwitch) ofDaemon() (fields []string) {
	for _, one := range []struct {
		name  string
		given bool
	}{{"control", s.Control.IsValid()}, {"interfaces", len(s.Interfaces) > 0}, {"xdp_mode", s.XDPMode != ""},
		{"threaded_napi", s.ThreadedNAPI}} {
		if one.given {
			fields = append(fields, one.name)
		}
	}
	return fields
}

// checkDaemon checks what the daemon of a switch needs. Control is checked with all others.
func (c *Config) checkDaemon(field string, s FabricSwitch, v *mistakes) {
	if s.Control.IsValid() && !c.isOwn(s) {
		c.checkPorts(field, c.At(s), v)
		return
	}
	for _, name := range s.ofDaemon() {
		if c.isOwn(s) {
			v.addMistake("%s.%s: given, but this is the machine of switch: give switch.%[2]s instead", field, name)
		} else {
			v.addMistake("%s.%s: given without control: give the TCP address of the daemon, too, or leave it out", field, name)
		}
	}
}

func (c *Config) switchNames() string {
	var names []string
	for _, s := range c.Switches {
		names = append(names, s.Name)
	}
	return strings.Join(names, ", ")
}

// checkParent refuses parents that cannot take harvests. A circle is told at the first switch in
// it.
func (c *Config) checkParent(field string, s FabricSwitch, v *mistakes) {
	if s.Parent == "" {
		return
	}
	if c.Job.Arithmetic == aggregator.LUT.String() {
		v.addMistake("%s.parent: %q, but a parent adds sums of exact or fixed arithmetic, not of lut: leave it out, or choose one of these (job.arithmetic)", field, s.Parent)
	}
	parent := c.SwitchNamed(s.Parent)
	switch {
	case parent < 0:
		v.addMistake("%s.parent: %q is none of the switches %s", field, s.Parent, c.switchNames())
		return
	case c.Switches[parent].Plain:
		v.addMistake("%s.parent: %q is plain, so it adds nothing: name a switch that aggregates, or leave parent out", field, s.Parent)
		return
	}
	first := c.SwitchNamed(s.Name)
	circle := []string{s.Name}
	for at := parent; len(circle) <= len(c.Switches); at = c.SwitchNamed(c.Switches[at].Parent) {
		circle = append(circle, c.Switches[at].Name)
		if at == first {
			v.addMistake("%s.parent: harvests would go in a circle (%s): leave parent out at one of these switches, which then sends them to the server", field, strings.Join(circle, " to "))
			return
		}
		if at < first && c.inCircle(at) || c.Switches[at].Parent == "" || c.SwitchNamed(c.Switches[at].Parent) < 0 {
			return
		}
	}
}

// inCircle reports whether the harvests of a switch come back to it.
func (c *Config) inCircle(first int) bool {
	at := first
	for range c.Switches {
		if at = c.SwitchNamed(c.Switches[at].Parent); at < 0 || at == first {
			return at == first
		}
	}
	return false
}

// Cables lists the links between switches, each once, as pairs of indices.
func (c *Config) Cables() (all [][2]int) {
	for i, s := range c.Switches {
		for _, name := range s.Links {
			if j := c.SwitchNamed(name); j >= 0 && !slices.Contains(all, [2]int{j, i}) {
				all = append(all, [2]int{i, j})
			}
		}
	}
	return all
}

// checkLinks refuses cables that lead nowhere, loops, and switches that no path joins with the
// server.
func (c *Config) checkLinks(v *mistakes) {
	good := true
	for i, s := range c.Switches {
		field := fmt.Sprintf("switches[%d].links", i)
		for j, name := range s.Links {
			switch {
			case c.SwitchNamed(name) < 0:
				v.addMistake("%s: %q is none of the switches %s", field, name, c.switchNames())
			case name == s.Name:
				v.addMistake("%s: %q is this switch itself: remove it", field, name)
			case slices.Contains(s.Links[:j], name):
				v.addMistake("%s: %q is listed twice: two cables between the same switches are a loop, so remove one", field, name)
			default:
				continue
			}
			good = false
		}
	}
	if !good {
		return
	}
	joined := make([][]int, len(c.Switches)) // what has been joined so far
	for _, cable := range c.Cables() {
		a, b := cable[0], cable[1]
		if path := pathBetween(joined, a, b); path != nil {
			var loop []string
			for _, at := range path {
				loop = append(loop, c.Switches[at].Name)
			}
			v.addMistake("switches[%d].links: the link to %q closes a loop (%s): frames would go round in one Ethernet segment, so remove one of its links", a, c.Switches[b].Name, strings.Join(loop, ", "))
			continue
		}
		joined[a], joined[b] = append(joined[a], b), append(joined[b], a)
	}
	if c.Serverless() {
		return
	}
	server := c.AllServers()[0].At
	from := c.SwitchNamed(server)
	if from < 0 {
		return
	}
	for i, s := range c.Switches {
		if pathBetween(joined, from, i) == nil {
			v.addMistake("switches[%d].links: no path leads from %q to %q, where the server is: list the switch to which a cable leads", i, s.Name, server)
		}
	}
}

// pathBetween finds the path between two nodes of a forest, nil if there is none.
func pathBetween(joined [][]int, from, to int) []int {
	var walk func(at, before int) []int
	walk = func(at, before int) []int {
		if at == to {
			return []int{at}
		}
		for _, next := range joined[at] {
			if next != before {
				if rest := walk(next, at); rest != nil {
					return append([]int{at}, rest...)
				}
			}
		}
		return nil
	}
	return walk(from, -1)
}

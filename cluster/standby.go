// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/control"
)

// Aggregators lists the switch, and then its standbys in their order.
func (c *Config) Aggregators() []Switch {
	all := []Switch{c.Switch}
	for _, s := range c.Standbys {
		one := c.Switch
		one.Address, one.Control, one.Interfaces, one.XDPMode = s.Address, s.Control, s.Interfaces, s.XDPMode
		one.Slots, one.ThreadedNAPI = s.Slots, s.ThreadedNAPI
		all = append(all, one)
	}
	return all
}

// ForStandby returns the configuration for the daemon of a standby, by its index: Switch is that
// one.
func (c *Config) ForStandby(index int) (*Config, error) {
	if index < 0 || index >= len(c.Standbys) {
		return nil, fmt.Errorf("no standby %d in the cluster configuration, which has %d: their indices begin with 0", index,
			len(c.Standbys))
	}
	own := *c
	own.Switch = c.Aggregators()[1+index]
	return &own, nil
}

// SwitchField returns the field of Switch in the file, of which [Config.ForStandby] and
// [Config.ForSwitch] may have made another one.
func (c *Config) SwitchField() string {
	for i, s := range c.Standbys {
		if s.Address == c.Switch.Address {
			return fmt.Sprintf("standbys[%d]", i)
		}
	}
	for i, s := range c.Switches {
		if c.isOwn(s) && s.Control.IsValid() {
			return fmt.Sprintf("switches[%d]", i)
		}
	}
	return "switch"
}

// checkStandbys checks standbys, except their addresses.
func (c *Config) checkStandbys(v *mistakes) {
	switch silence := c.Switch.Silence; {
	case c.Switch.Plane == PlaneP4 && silence != 0:
		v.addMistake("switch.silence: a P4 switch does not tell whose frames its sums have, so jobs end with it: leave it out, or choose plane xdp")
	case c.Switch.Plane != PlaneP4 && silence < control.MinSilence:
		v.addMistake("switch.silence: %v is shorter than %v, three heartbeats", silence, control.MinSilence)
	}
	if c.Switch.Evacuate && len(c.Standbys) == 0 {
		v.addMistake("switch.evacuate: there is no other aggregator: list standbys, or leave it out")
	}
	switch {
	case len(c.Standbys) == 0:
	case c.Serverless():
		v.addMistake("standbys: a job without a parameter server cannot go on at another aggregator: leave them out, or give server")
	case c.Switch.Plane == PlaneP4:
		v.addMistake("standbys: a P4 switch does not tell whose frames its sums have, so jobs end with it: leave them out, or choose plane xdp")
	default:
		for i := range c.Standbys {
			c.checkPorts(fmt.Sprintf("standbys[%d]", i), c.Aggregators()[1+i], v)
		}
	}
}

// checkPorts checks what each aggregator has for itself.
func (c *Config) checkPorts(of string, s Switch, v *mistakes) {
	switch m, interfaces := s.XDPMode, s.Interfaces; {
	case c.Backend == BackendAFXDP && s.Plane == PlaneXDP:
		if len(interfaces) == 0 {
			v.addMistake("%s.interfaces: at least one interface is required with the afxdp backend", of)
		}
		for i, name := range interfaces {
			checkInterface(fmt.Sprintf("%s.interfaces[%d]", of, i), name, v)
			if slices.Contains(interfaces[:i], name) {
				v.addMistake("%s.interfaces[%d]: %q is given twice", of, i, name)
			}
		}
		if m != "auto" && m != "native" && m != "generic" {
			v.addMistake("%s.xdp_mode: %q is none of auto, native, generic", of, m)
		}
	case c.Backend == BackendUDP:
		if len(interfaces) != 0 {
			v.addMistake("%s.interfaces: %v"+ofAFXDP, of, interfaces)
		}
		if m != "" {
			v.addMistake("%s.xdp_mode: %q"+ofAFXDP, of, m)
		}
	}
	if s.Slots < 0 {
		v.addMistake("%s.slots: %d is negative", of, s.Slots)
	}
	if s.ThreadedNAPI && c.Backend == BackendUDP {
		v.addMistake("%s.threaded_napi: true"+ofAFXDP, of)
	}
}

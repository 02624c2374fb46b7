// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/telemetry"
)

// Telemetry describes what processes measure all the time.
type Telemetry struct {
	// Port, if not 0, is the TCP port at which each process shows what it has measured and counted.
	Port uint16 `yaml:"port,omitempty"`
	// Sample is the number of frames of which one is measured; nil means telemetry.DefaultSample, 0
	// none.
	Sample *int `yaml:"sample,omitempty"`
}

// OneIn returns the number of frames of which one is measured, 0 for none.
func (t Telemetry) OneIn() int {
	if t.Sample == nil {
		return telemetry.DefaultSample
	}
	return *t.Sample
}

// At returns where a process on an address shows its telemetry; not valid if it shows none.
func (t Telemetry) At(process netip.Addr) netip.AddrPort {
	if t.Port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(process.Unmap(), t.Port)
}

// Process is a process of the cluster that shows its telemetry.
type Process struct {
	Name  string // in messages
	Field string // of the cluster file, with the address
	At    netip.AddrPort
	// Records reports whether it keeps records of frames: aggregators keep none.
	Records bool
}

// Processes lists the processes of the cluster, with where they show their telemetry: the switch,
// its standbys, the other switches and the servers at the addresses of their control services,
// workers at those of their frames.
func (c *Config) Processes() []Process {
	all := []Process{{"switch", "switch.control", c.Telemetry.At(c.Switch.Control.Addr()), false}}
	for i, standby := range c.Standbys {
		field := fmt.Sprintf("standbys[%d].control", i)
		all = append(all, Process{fmt.Sprint("standby ", i), field, c.Telemetry.At(standby.Control.Addr()), false})
	}
	for _, i := range c.MoreSwitches() {
		field, s := fmt.Sprintf("switches[%d].control", i), c.Switches[i]
		all = append(all, Process{"switch " + s.Name, field, c.Telemetry.At(s.Control.Addr()), false})
	}
	servers := 0
	c.eachServer(func(field string, s *Server) {
		name := "ps"
		if len(c.Servers) > 1 {
			name = fmt.Sprint("ps ", servers)
		}
		servers++
		all = append(all, Process{name, field + ".control", c.Telemetry.At(s.Control.Addr()), true})
	})
	for i, w := range c.Workers {
		field := fmt.Sprintf("workers[%d].address", i)
		all = append(all, Process{fmt.Sprint("worker ", w.ID), field, c.Telemetry.At(w.Address), true})
	}
	return all
}

func (c *Config) checkTelemetry(v *mistakes) {
	if err := telemetry.CheckSample(c.Telemetry.OneIn()); err != nil {
		v.addMistake("telemetry.sample: %w", err)
	}
	port := c.Telemetry.Port
	if port == 0 {
		return
	}
	control := func(field string, a netip.AddrPort) {
		if a.Port() == port {
			v.addMistake("telemetry.port: %d is also the port of %s.control: give one of them a different port", port, field)
		}
	}
	control("switch", c.Switch.Control)
	for i, standby := range c.Standbys {
		control(fmt.Sprintf("standbys[%d]", i), standby.Control)
	}
	for _, i := range c.MoreSwitches() {
		control(fmt.Sprintf("switches[%d]", i), c.Switches[i].Control)
	}
	c.eachServer(func(field string, s *Server) { control(field, s.Control) })
	used := map[netip.AddrPort]string{}
	for _, p := range c.Processes() {
		if !p.At.Addr().IsValid() { // which is a mistake elsewhere
			continue
		}
		if other := used[p.At]; other != "" {
			v.addMistake("telemetry.port: %s and %s have the address %v in common, where only one of them can listen: give each process an address of its own, on one machine as well (127.0.0.1, 127.0.0.2, ...)",
				other, p.Field, p.At.Addr())
		}
		used[p.At] = p.Field
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/p4"
	"github.com/libra-ina/libra/p4/program"
	"github.com/libra-ina/libra/wire"
)

// openP4Plane loads the program into a P4 switch.
func openP4Plane(c *cluster.Config, log *slog.Logger) (plane, error) {
	s := c.Switch.P4
	if s.Runtime == "" || len(s.Ports) == 0 {
		return plane{}, errors.New("plane p4 needs the P4Runtime address of the switch (--p4-runtime, or switch.p4.runtime) and its ports that have hosts behind them (--p4-ports, or switch.p4.ports)")
	}
	o := p4.Options{
		Target: s.Runtime, Device: s.Device, Election: s.Election, Replace: s.Replace,
		Address: c.Switch.Address, Port: c.Port, Ports: s.Ports, Progress: tenths(log),
	}
	what := "p4, the built-in program"
	if s.Info != "" {
		var err error
		if o.Program, err = program.Read(s.Info, s.Config); err != nil {
			return plane{}, err
		}
		what = "p4, the program in " + s.Config
	}
	a, err := p4.Open(o)
	if err != nil {
		return plane{}, err
	}
	for host, port := range s.Hosts {
		mac, err := net.ParseMAC(host)
		if err == nil {
			err = a.AddRoute([6]byte(mac), port)
		}
		if err != nil {
			return plane{}, errors.Join(fmt.Errorf("switch.p4.hosts: %w", err), a.Close())
		}
	}
	return plane{
		Plane: a, failed: a.Failed(), what: fmt.Sprintf("%s, at %s", what, s.Runtime),
		slots: a.Slots(), senders: a.Senders(),
		jobMemory: p4JobMemory,
	}, nil
}

// tenths logs each tenth of the table entries that a switch receives.
func tenths(log *slog.Logger) func(done, total int) {
	tenth := 0
	return func(done, total int) {
		if now := 10 * done / total; now != tenth {
			tenth = now
			log.Info("loading the tables of lut arithmetic into the switch", "entries", done, "of", total)
		}
	}
}

// p4JobMemory returns the bytes of two banks of a job: whole rows of lanes.
func p4JobMemory(slots int) uint64 {
	return 2 * 8 * wire.Lanes * uint64((slots+wire.Lanes-1)/wire.Lanes)
}

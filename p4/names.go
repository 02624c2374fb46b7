// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"

	config "github.com/p4lang/p4runtime/go/p4/config/v1"

	"github.com/libra-ina/libra/wire"
)

// names maps the parts of the program that the control plane uses to the numbers that the compiler
// assigned.
type names struct {
	tables   map[string]table
	actions  map[string]action
	counters map[string]counter
	out, in  packet // to and from the switch
}

type table struct {
	id   uint32
	size int64
	keys []field
}

type action struct {
	id     uint32
	params []field
}

type counter struct {
	id   uint32
	size int64
}

// packet describes the metadata of packets between control plane and switch.
type packet struct{ fields []field }

type field struct {
	id    uint32
	name  string
	bits  int32
	match config.MatchField_MatchType // of a key
}

// The names that the control plane uses. A program without one of them is a different one.
const (
	tableDestinations = "destinations"
	tableJobs         = "jobs"
	tableSenders      = "senders"
	tableHosts        = "hosts"
	tableHomes        = "homes"
	tableParticipants = "participants"

	actionLocal    = "local"
	actionBetween  = "between_hosts"
	actionServe    = "serve"
	actionAdmit    = "admit"
	actionSend     = "send"
	actionHome     = "home"
	actionTakePart = "take_part"

	counterEvents        = "events"
	counterJobEvents     = "job_events"
	counterApplied       = "applied"
	counterSaturated     = "saturated"
	counterSenderEvents  = "sender_events"
	counterSenderApplied = "sender_applied"
	counterCompleted     = "completed"
)

// resolve finds the parts of the program in its P4Info.
func resolve(info *config.P4Info) (*names, error) {
	n := &names{
		tables: make(map[string]table), actions: make(map[string]action), counters: make(map[string]counter),
	}
	for _, t := range info.Tables {
		r := table{id: t.Preamble.Id, size: t.Size}
		for _, k := range t.MatchFields {
			r.keys = append(r.keys, field{k.Id, k.Name, k.Bitwidth, k.GetMatchType()})
		}
		n.tables[t.Preamble.Alias] = r
	}
	for _, a := range info.Actions {
		r := action{id: a.Preamble.Id}
		for _, p := range a.Params {
			r.params = append(r.params, field{id: p.Id, name: p.Name, bits: p.Bitwidth})
		}
		n.actions[a.Preamble.Alias] = r
	}
	for _, c := range info.Counters {
		n.counters[c.Preamble.Alias] = counter{c.Preamble.Id, c.Size}
	}
	for _, m := range info.ControllerPacketMetadata {
		var p packet
		for _, f := range m.Metadata {
			p.fields = append(p.fields, field{id: f.Id, name: f.Name, bits: f.Bitwidth})
		}
		switch m.Preamble.Name {
		case "packet_out":
			n.out = p
		case "packet_in":
			n.in = p
		}
	}
	if err := n.checkProgram(); err != nil {
		return nil, err
	}
	return n, n.checkRegisters(info)
}

// checkRegisters returns an error that names a register of an unexpected size: sums added to
// missing rows would be lost.
func (n *names) checkRegisters(info *config.P4Info) error {
	sizes := make(map[string]int64)
	for _, r := range info.Registers {
		sizes[r.Preamble.Alias] = int64(r.Size)
	}
	want := map[string]int64{"seen": numbersOfSender * n.tables[tableSenders].size}
	for lane := range wire.Lanes {
		want[fmt.Sprintf("slots%d", lane)] = 2 * rowsOfBank
	}
	for name, size := range want {
		if sizes[name] != size {
			return fmt.Errorf("p4: this is not Libra's program: its register %s has %d entries, not %d: compile it with the sizes of program/sizes.p4",
				name, sizes[name], size)
		}
	}
	return nil
}

// checkProgram returns an error that names a missing part of the program.
func (n *names) checkProgram() error {
	tables := map[string]int{tableDestinations: 3, tableJobs: 1, tableSenders: 5, tableHosts: 1, tableHomes: 2,
		tableParticipants: 2}
	actions := map[string]int{actionLocal: 0, actionBetween: 0, actionServe: 9, actionAdmit: 3, actionSend: 1,
		actionHome: 0, actionTakePart: 2}
	for _, all := range lutTables {
		for _, t := range all {
			tables[t.table], actions[t.action] = 1, 1
		}
	}
	for name, keys := range tables {
		if t, ok := n.tables[name]; !ok || len(t.keys) != keys {
			return fmt.Errorf("p4: this is not Libra's program: it has no table %s with %d keys", name, keys)
		}
	}
	for name, params := range actions {
		if a, ok := n.actions[name]; !ok || len(a.params) != params {
			return fmt.Errorf("p4: this is not Libra's program: it has no action %s with %d parameters", name, params)
		}
	}
	for _, name := range []string{
		counterEvents, counterJobEvents, counterApplied, counterSaturated, counterSenderEvents, counterSenderApplied,
		counterCompleted,
	} {
		if _, ok := n.counters[name]; !ok {
			return fmt.Errorf("p4: this is not Libra's program: it has no counter %s", name)
		}
	}
	if len(n.out.fields) != 2 || len(n.in.fields) != 2 {
		return fmt.Errorf("p4: this is not Libra's program: its control packets contain %d and %d fields, not 2",
			len(n.out.fields), len(n.in.fields))
	}
	return nil
}

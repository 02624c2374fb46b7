// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"strings"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/p4/program"
)

// The sizes that the control plane relies on, and docs/p4.md lists.
func TestSizes(t *testing.T) {
	p, err := program.Default()
	if err != nil {
		t.Fatal(err)
	}
	n, err := resolve(p.Info)
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int64{tableJobs: aggregator.MaxJobs, tableSenders: 256, tableHosts: 1024, tableHomes: 1024, tableParticipants: 256} {
		if got := n.tables[name].size; got != size {
			t.Errorf("table %s has room for %d entries, want %d", name, got, size)
		}
	}
	for name, size := range map[string]int64{
		counterEvents: 32, counterJobEvents: aggregator.MaxJobs * jobStride, counterApplied: aggregator.MaxJobs * 2 * bankStride,
		counterSaturated: aggregator.MaxJobs * pairStride, counterSenderEvents: 256 * senderStride, counterSenderApplied: 256 * pairStride, counterCompleted: aggregator.MaxJobs * 2,
	} {
		if got := n.counters[name].size; got != size {
			t.Errorf("counter %s has %d cells, want %d", name, got, size)
		}
	}
	var cells int64
	for _, c := range n.counters {
		cells += c.size
	}
	if cells != 42_016 {
		t.Errorf("the counters have %d cells", cells)
	}
	slots := 0
	for _, r := range p.Info.Registers {
		want := int32(2 * rowsOfBank)
		switch r.Preamble.Alias {
		case "seen":
			want = 256 * 1024
		case "rounds":
			want = rowsOfBank
		case "scales":
			want = aggregator.MaxJobs
		default:
			slots++
		}
		if r.Size != want {
			t.Errorf("register %s has %d cells, want %d", r.Preamble.Alias, r.Size, want)
		}
	}
	if slots != 22 {
		t.Errorf("%d registers of slots, want one for each of 22 lanes", slots)
	}
}

// The control plane in Go and the TNA program use the same names.
func TestTNASharesTheControlPlanesTables(t *testing.T) {
	p, err := program.Default()
	if err != nil {
		t.Fatal(err)
	}
	n, err := resolve(p.Info)
	if err != nil {
		t.Fatal(err)
	}
	all, err := program.TNAObjects()
	if err != nil {
		t.Fatal(err)
	}
	shared := 0
	for _, o := range all {
		table, ok := n.tables[o.Name[strings.LastIndex(o.Name, ".")+1:]]
		if !ok || !strings.HasSuffix(o.Kind, "table") {
			continue
		}
		shared++
		if len(table.keys) != len(o.Keys) {
			t.Errorf("%s has %d keys, in v1model %d", o.Name, len(o.Keys), len(table.keys))
			continue
		}
		for i, k := range o.Keys {
			if got := table.keys[i]; got.name != k.Name || int(got.bits) != k.Width {
				t.Errorf("%s: key %s of %d bits, in v1model %s of %d", o.Name, k.Name, k.Width, got.name, got.bits)
			}
		}
		for _, a := range o.Actions {
			got, ok := n.actions[a.Name]
			if !ok || len(got.params) != len(a.Data) {
				t.Errorf("%s: action %s has %d parameters, in v1model %d", o.Name, a.Name, len(a.Data), len(got.params))
				continue
			}
			for i, d := range a.Data {
				if got.params[i].name != d.Name || int(got.params[i].bits) != d.Width {
					t.Errorf("%s: %s of %d bits, in v1model %s of %d", a.Name, d.Name, d.Width, got.params[i].name, got.params[i].bits)
				}
			}
		}
	}
	if shared != 5 {
		t.Errorf("%d tables are shared, want destinations, jobs, senders, hosts, homes", shared)
	}
}

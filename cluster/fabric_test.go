// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/libra-ina/libra/control"
)

// fabric is a file with three switches that aggregate, a plain one between them, and their hosts.
const fabric = `
backend: udp
job: {id: 3, hot_set: hot.libra}
switch: {address: 127.0.0.2, control: 127.0.0.2:7700, slots: 5000}
switches:
  - {name: core, address: 127.0.0.2, links: [middle, right]}
  - {name: middle, plain: true, links: [left]}
  - {name: left, address: 127.0.0.12, control: "127.0.0.12:7700", slots: 1000, parent: core}
  - {name: right, address: 127.0.0.13, links: [core]}
server: {address: 127.0.0.3, control: 127.0.0.3:7701, at: core}
workers:
  - {id: 1, address: 127.0.0.4, at: left}
  - {id: 7, address: 127.0.0.5, at: right}
model: {kind: lr}
data: {train: train.libfm}
`

func TestFabric(t *testing.T) {
	c, err := Read(write(t, fabric))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][2]int{{0, 1}, {0, 3}, {1, 2}}, c.Cables()); diff != "" {
		t.Errorf("cables (-want +got):\n%s", diff)
	}
	var slots []int
	for _, s := range c.Switches {
		slots = append(slots, c.SlotsOf(s))
	}
	if want := []int{5000, control.DefaultSlots, 1000, control.DefaultSlots}; !slices.Equal(slots, want) {
		t.Errorf("slots %v, want %v", slots, want)
	}
	path := write(t, "")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if diff := cmp.Diff(c, again, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); err != nil || diff != "" {
		t.Errorf("written and read again: %v\n%s", err, diff)
	}
}

// Every mistake is named by its field and line, with a remedy.
func TestFabricMistakes(t *testing.T) {
	many := ""
	for i := range 14 {
		many += fmt.Sprintf("  - {name: s%d, address: 127.0.1.%d, links: [core]}\n", i, i+1)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"name twice":         {"name: right", "name: left", `line 9: switches[3].name: "left" is used twice: give one`},
		"no name":            {"name: right, ", "", `switches[3].name: "" is 0 bytes long: it must be 1 to 63`},
		"odd name":           {"name: right", `name: "ri\tght"`, `switches[3].name: "ri\tght" has characters`},
		"address twice":      {"127.0.0.13", "127.0.0.12", "line 9: switches[3].address: 127.0.0.12 is also switches[2].address: each process needs"},
		"address of switch":  {"127.0.0.13", "127.0.0.2", "switches[3].address: 127.0.0.2 is also switches[0].address"},
		"address of a host":  {"127.0.0.13", "127.0.0.4", "switches[3].address: 127.0.0.4 is also workers[0].address"},
		"no address":         {", address: 127.0.0.13", "", "switches[3].address: an IP address is required"},
		"another machine":    {"{address: 127.0.0.2,", "{address: 127.0.0.9,", "line 4: switch.address: 127.0.0.9 is none of the switches that aggregate: list that machine"},
		"loop":               {"slots: 1000", "slots: 1000, links: [right]", `switches[2].links: the link to "right" closes a loop (left, middle, core, right): frames would go round`},
		"link to itself":     {"links: [core]", "links: [right]", `line 9: switches[3].links: "right" is this switch itself: remove it`},
		"link twice":         {"links: [core]", "links: [core, core]", `switches[3].links: "core" is listed twice: two cables`},
		"link to nowhere":    {"links: [core]", "links: [cor]", `line 9: switches[3].links: "cor" is none of the switches core, middle, left, right`},
		"unreachable":        {"plain: true, links: [left]", "plain: true", `switches[2].links: no path leads from "left" to "core", where the server is: list the switch`},
		"no such parent":     {"parent: core", "parent: cor", `line 8: switches[2].parent: "cor" is none of the switches core,`},
		"plain parent":       {"parent: core", "parent: middle", `switches[2].parent: "middle" is plain, so it adds nothing: name a switch`},
		"own parent":         {"parent: core", "parent: left", "switches[2].parent: harvests would go in a circle (left to left): leave parent out"},
		"circular parents":   {"links: [middle, right]", "links: [middle, right], parent: left", "switches[0].parent: harvests would go in a circle (core to left to core): leave parent out at one"},
		"parent with lut":    {"hot_set: hot.libra", "hot_set: hot.libra, arithmetic: lut", `line 8: switches[2].parent: "core", but a parent adds sums of exact or fixed arithmetic, not of lut: leave it out`},
		"plain with slots":   {"plain: true", "plain: true, slots: 7", "line 7: switches[1].slots: 7, but a plain switch only forwards: leave it out"},
		"plain with address": {"plain: true", "plain: true, address: 127.0.0.14", "switches[1].address: 127.0.0.14, but a plain switch only forwards"},
		"plain with parent":  {"plain: true", "plain: true, parent: core", `switches[1].parent: "core", but a plain switch only forwards`},
		"slots":              {"slots: 1000", "slots: -1", "line 8: switches[2].slots: -1 is negative"},
		"no slots":           {"slots: 1000", "slots: 0", `line 8: switches[2].slots: "0" is not a valid value: leave the field out`},
		"other slots":        {"address: 127.0.0.2, links", "address: 127.0.0.2, slots: 6000, links", "switches[0].slots: 6000, but switch.slots of the same machine is 5000: give the same"},
		"17 that aggregate":  {"server:", many + "server:", "switches: 17 aggregate; the limit is 16: let those that hold least be plain"},
		"no at":              {", at: left", "", "workers[0].at: required with switches: give the name"},
		"at nowhere":         {"at: left", "at: lft", `line 12: workers[0].at: "lft" is none of the switches core, middle, left, right`},
		"server nowhere":     {"at: core", "at: cor", `line 10: server.at: "cor" is none of the switches`},
	} {
		text := strings.Replace(fabric, c.old, c.new, 1)
		if text == fabric {
			t.Fatalf("%s changes nothing", name)
		}
		_, err := Read(write(t, text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	var without strings.Builder
	for line := range strings.Lines(fabric) {
		if !strings.HasPrefix(line, "  - {name") && line != "switches:\n" {
			without.WriteString(line)
		}
	}
	_, err := Read(write(t, without.String()))
	if want := `line 5: server.at: "core", but the file lists no switches: leave it out, or list them`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("no switches: %v, want %q", err, want)
	}
	// Negative slots of a daemon are told once.
	_, err = Read(write(t, strings.Replace(fabric, "slots: 1000", "slots: -1", 1)))
	if err == nil || strings.Count(err.Error(), "switches[2].slots: -1 is negative") != 1 {
		t.Errorf("negative slots: %v", err)
	}
	// A circle is told once, and not at a switch that leads into it.
	text := strings.Replace(fabric, "links: [middle, right]", "links: [middle, right], parent: left", 1)
	_, err = Read(write(t, strings.Replace(text, "links: [core]", "links: [core], parent: core", 1)))
	if err == nil || strings.Count(err.Error(), "circle") != 1 {
		t.Errorf("circular parents, and a switch below them: %v", err)
	}
}

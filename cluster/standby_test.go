// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
)

// Standbys are machines of their own: neither the switch nor each other.
func TestStandbysAreOtherMachines(t *testing.T) {
	for changes, want := range map[string]string{
		"standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}]":                                                                                      "",
		"standbys: [{address: 127.0.0.1, control: 127.0.0.9:7700}]":                                                                                      "standbys[0].address: 127.0.0.1 is also switch.address",
		"standbys: [{address: 127.0.0.9, control: 127.0.0.1:7700}]":                                                                                      "standbys[0].control: 127.0.0.1:7700 is also switch.control",
		"backend: afxdp; switch.plane: p4; server.interface: eth0; workers[].interface: eth0; standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}]": "standbys: a P4 switch",
		"standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}, {address: 127.0.0.9, control: 127.0.0.9:7700}]":                                       "standbys[1].address: 127.0.0.9 is also standbys[0].address",
	} {
		_, err := parse(example(t, changes))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", changes, err, want)
		}
	}
}

// The daemon of a standby gets its own part of the file, with what all aggregators have in common.
func TestStandbysHaveTheirOwnPart(t *testing.T) {
	c, err := parse(example(t, "standbys: [{address: 127.0.0.9, control: 127.0.0.9:7701, slots: 5000}]; switch.stripes: 3; switch.slots: 7"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := c.ForStandby(0)
	if err != nil {
		t.Fatal(err)
	}
	s := own.Switch
	if s.Address.String() != "127.0.0.9" || s.Control.Port() != 7701 || s.Slots != 5000 || s.Stripes != 3 || s.Plane != PlaneModel {
		t.Errorf("%+v", s)
	}
	if got := own.SwitchField() + " " + c.SwitchField(); got != "standbys[0] switch" {
		t.Errorf("fields %s", got)
	}
	if _, err := c.ForStandby(1); err == nil || !strings.Contains(err.Error(), "no standby 1") {
		t.Errorf("a standby that there is not: %v", err)
	}
}

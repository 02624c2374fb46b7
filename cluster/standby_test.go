// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"
	"time"
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

// An aggregator may be silent for a second, or for as long as its lease if there is no other. What
// is too short for heartbeats, and what a P4 switch cannot do, is refused.
func TestSilenceOfAggregators(t *testing.T) {
	const standby = "standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}]"
	for changes, want := range map[string]time.Duration{
		"": 5 * time.Second, standby: time.Second, "switch.silence: 700ms": 700 * time.Millisecond,
		standby + "; switch.silence: 300ms; switch.evacuate: true": 300 * time.Millisecond,
	} {
		c, err := parse(example(t, changes))
		if err != nil || c.Switch.Silence != want {
			t.Errorf("%s: %v, %v", changes, c, err)
			continue
		}
		if len(c.Standbys) > 0 {
			if own, err := c.ForStandby(0); err != nil || own.Switch.Silence != want {
				t.Errorf("%s: the standby has %v, %v", changes, own, err)
			}
		}
	}
	for changes, want := range map[string]string{
		"switch.silence: 299ms": "switch.silence: 299ms is shorter than 300ms",
		"switch.silence: -1s":   "switch.silence: -1s is shorter than 300ms",
		"switch.silence: 0s":    "switch.silence: \"0s\" is not a valid value",
		"switch.evacuate: true": "switch.evacuate: there is no other aggregator",
		"switch.silence: 1s; backend: afxdp; switch.plane: p4; server.interface: eth0; workers[].interface: eth0": "switch.silence: a P4 switch",
	} {
		if _, err := parse(example(t, changes)); err == nil || !strings.Contains(err.Error(), want) {
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

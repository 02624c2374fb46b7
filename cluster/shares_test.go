// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// The hot set of a job with more numbers is divided among them. What such a job cannot do is
// refused, with the field.
func TestFieldsOfShares(t *testing.T) {
	const sync = "job.sync: true; job.harvest: null; job.staleness: null; job.accumulate: null; job.harvest_frames: null; server.rejoin: null; "
	for changes, want := range map[string]string{
		"job.ids: [8, 9]":         "",
		"job.ids: [8, 8]":         "job.ids[1]: 8 is the number of another share",
		"job.id: 8; job.ids: [8]": "job.ids[0]: 8 is the number of another share",
		"job.ids: [256]":          "job.ids[0]: 256 is not in 0..255",
		"job.ids: [101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131]": "job.ids: with job.id, 32 numbers, and a hot set has at most 31 shares",
		"job.ids: [8]; job.replay_mib: 32":                                                          "job.replay_mib: 32, but job.ids divides the hot set",
		"job.ids: [8]; standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}]":                   "standbys: some are listed, but job.ids",
		"job.ids: [8]; tls: {ca: a, cert: b, key: c}":                                               "tls: there are certificates, but job.ids",
		"job.ids: [8]; job.sync: false; job.staleness: 3; job.accumulate: 1":                        "",
		"job.ids: [8]; job.sync: false; job.staleness: 3; job.accumulate: 1; job.harvest_frames: 5": "job.harvest_frames: 5, but job.ids divides the hot set: leave it out",
	} {
		_, err := parse(example(t, sync+changes))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", changes, err, want)
		}
	}
	const planned = `
backend: udp
job: {id: 3, hot_set: hot.libra, sync: true, plan: auto}
switch: {address: 127.0.0.2, control: 127.0.0.2:7700}
switches:
  - {name: core, address: 127.0.0.2, links: [left, edge]}
  - {name: left, address: 127.0.0.12, control: 127.0.0.12:7700, slots: 1000}
  - {name: edge, plain: true}
server: {address: 127.0.0.3, control: 127.0.0.3:7700, at: core}
workers: [{id: 1, address: 127.0.0.4, at: left}]
model: {kind: lr}
data: {train: train.libfm}
`
	for change, want := range map[[2]string]string{
		{"", ""}:                                                                        "",
		{"plan: auto", "plan: plan.json"}:                                               "",
		{"plan: auto", "plan: auto, ids: [4]"}:                                          "",
		{"plan: auto", "plan: auto, ids: [3]"}:                                          "job.ids[0]: 3 is the number of another share",
		{"sync: true, plan", "plan"}:                                                    "",
		{"sync: true, plan", "harvest_frames: 9, plan"}:                                 "job.harvest_frames: 9, but job.plan divides the hot set: leave it out",
		{"plan: auto", "plan: auto, replay_mib: 3"}:                                     "job.replay_mib: 3, but job.plan",
		{"model:", "tls: {ca: a, cert: b, key: c}\nmodel:"}:                             "",
		{"model:", "standbys: [{address: 127.0.0.9, control: 127.0.0.9:7700}]\nmodel:"}: "standbys: some are listed, but job.plan",
		{"slots: 1000", "parent: core"}:                                                 "",
		{", control: 127.0.0.12:7700", ""}:                                              "switches[1].control: required with job.plan: give the TCP address",
		{"127.0.0.12:7700", "127.0.0.3:7700"}:                                           "server.control: 127.0.0.3:7700 is also switches[1].control",
		{"127.0.0.12:7700", "127.0.0.12:0"}:                                             "switches[1].control: 127.0.0.12:0 cannot be dialled",
		{"slots: 1000", "interfaces: [eth0]"}:                                           "switches[1].interfaces: [eth0], but the udp backend",
		{", links: [left, edge]", ", control: 127.0.0.2:7701, links: [left, edge]"}:     "switches[0].control: given, but this is the machine of switch: give switch.control instead",
		{"plain: true", "plain: true, control: 127.0.0.9:7700"}:                         "switches[2].control: given, but a plain switch",
	} {
		c, err := Read(write(t, strings.Replace(planned, change[0], change[1], 1)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", change[1], err, want)
		}
		if err != nil || change[0] != "" {
			continue
		}
		own, err := c.ForSwitch("left")
		if err != nil || own.Switch.Address != c.Switches[1].Address || own.Switch.Control != c.Switches[1].Control ||
			own.Switch.Slots != 1000 || own.Switch.Plane != PlaneModel || own.SwitchField() != "switches[1]" {
			t.Errorf("the daemon of left: %+v, %v", own, err)
		}
		if core, err := own.ForSwitch("core"); err == nil {
			t.Errorf("a switch without a daemon: %+v", core.Switch)
		}
		for name, want := range map[string]string{"edge": `"edge" is plain`, "none": "those there: core, left, edge"} {
			if _, err := c.ForSwitch(name); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the daemon of %s: %v, want %q", name, err, want)
			}
		}
	}
	one := Job{ID: 7}
	if s, err := one.Shares(nil); s != nil || err != nil {
		t.Errorf("a job with one number is divided: %v, %v", s, err)
	}
	hot, err := packer.NewHotSet(1, []uint64{3, 4}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := (Job{ID: 7, IDs: []uint16{8}}).Shares(hot); err != nil || s.Len() != 2 {
		t.Errorf("shares %v, %v", s, err)
	}
	if _, err := (Job{ID: 7, IDs: []uint16{8, 9}}).Shares(hot); !errors.Is(err, share.ErrConfig) {
		t.Errorf("three shares of two rows: %v", err)
	}
}

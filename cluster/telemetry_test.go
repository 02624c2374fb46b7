// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Processes show their telemetry at the addresses of their control services, and workers at those
// of their frames; without a port nowhere.
func TestProcesses(t *testing.T) {
	c, err := parse(example(t, "telemetry.port: 7790; server.control: 10.0.0.9:7700"))
	if err != nil {
		t.Fatal(err)
	}
	list := func() (all []string) {
		for _, p := range c.Processes() {
			all = append(all, fmt.Sprintf("%s %s %v", p.Name, p.Field, p.At))
		}
		return all
	}
	want := []string{
		"switch switch.control 127.0.0.1:7790", "ps server.control 10.0.0.9:7790", "worker 1 workers[0].address 127.0.0.3:7790",
	}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.Standbys = []Standby{{Control: c.Server.Control}}
	if got := list()[1]; got != "standby 0 standbys[0].control 10.0.0.9:7790" {
		t.Errorf("a standby: %s", got)
	}
	c.Standbys = nil
	c.Servers = []Server{c.Server, c.Server}
	if got := list(); !strings.HasPrefix(got[1], "ps 0 servers[0].control") || !strings.HasPrefix(got[2], "ps 1 servers[1].control") {
		t.Errorf("%v", got)
	}
	c.Telemetry.Port = 0
	if c.Processes()[0].At.IsValid() {
		t.Error("a process without a port has a place")
	}
}

// Ports of telemetry must be free on each host that the file knows of.
func TestTelemetryPortMustBeFree(t *testing.T) {
	for changes, want := range map[string]string{
		"telemetry.port: 7700":                                         "telemetry.port: 7700 is also the port of switch.control",
		"telemetry.port: 7701; server.control: 127.0.0.2:7701":         "telemetry.port: 7701 is also the port of server.control",
		"telemetry.port: 7790; server.control: 127.0.0.1:7701":         "switch.control and server.control have the address 127.0.0.1 in common",
		`telemetry.port: 7790; server.control: "[::ffff:127.0.0.3]:1"`: "server.control and workers[0].address have the address 127.0.0.3 in common",
		"telemetry.port: 7790":                                         "",
		"server.control: 127.0.0.1:7701":                               "",
	} {
		_, err := parse(example(t, changes))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", changes, err, want)
		}
	}
}

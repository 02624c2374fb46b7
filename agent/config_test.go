// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
)

// Omitted fields of a configuration have the defaults of their comments.
func TestConfigDefaults(t *testing.T) {
	hot, err := packer.NewHotSet(3, []uint64{1}, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	least := agentproto.LayoutOf(8, 1).Total
	c := Config{Jobs: []Job{
		{Name: strings.Repeat("n", 63), Worker: new(transport.Worker), HotSet: hot},
		{Name: "b", Worker: new(transport.Worker), HotSet: hot, Dim: 1, Limits: Limits{Clients: 1, Memory: least, Prepared: 2}},
	}}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	if c.Socket != "/run/libra/agent.sock" || c.Mode != 0o666 || c.Log != slog.Default() {
		t.Errorf("%+v", c)
	}
	if j := c.Jobs[0]; j.Dim != 3 || j.Limits != (Limits{Clients: 64, UserClients: 64, Memory: 64 << 20, Prepared: 64 << 20}) {
		t.Errorf("%+v", j)
	}
	if j := c.Jobs[1]; j.Dim != 1 || j.Limits != (Limits{Clients: 1, UserClients: 1, Memory: least, Prepared: 2}) {
		t.Errorf("%+v", j)
	}
	c.Jobs[0].Name += "n"
	if err := c.complete(); err == nil || !strings.Contains(err.Error(), "jobs[0]: the name \""+c.Jobs[0].Name+"\" is 64 bytes long: it must be 1 to 63") {
		t.Errorf("a long name: %v", err)
	}
	c.Jobs[0].Name, c.Jobs[1].Limits.Memory = "a", least-1
	if err := c.complete(); err == nil || err.Error() != fmt.Sprintf("job b: %d bytes of memory for each client: at least %d are needed", least-1, least) {
		t.Errorf("too little memory: %v", err)
	}
}

// A job is for its users, for members of its groups, by the process or by the system's files, and
// for the agent's user.
func TestJobAllows(t *testing.T) {
	const stranger, group = 4_000_000, 4_000_001
	j := &Job{Users: []uint32{stranger}}
	for _, c := range []struct {
		who  unix.Ucred
		want bool
	}{
		{unix.Ucred{Uid: stranger, Gid: group}, true},
		{unix.Ucred{Uid: stranger + 7, Gid: group}, false},
		{unix.Ucred{Uid: uint32(os.Geteuid()), Gid: group}, true},
	} {
		if got := j.allows(&c.who); got != c.want {
			t.Errorf("by user, %+v: %v", c.who, got)
		}
	}
	j = &Job{Groups: []uint32{group}}
	for _, c := range []struct {
		who  unix.Ucred
		want bool
	}{
		{unix.Ucred{Uid: stranger, Gid: group}, true},
		{unix.Ucred{Uid: stranger, Gid: group + 7}, false},
	} {
		if got := j.allows(&c.who); got != c.want {
			t.Errorf("by group, %+v: %v", c.who, got)
		}
	}
	known, err := user.LookupId("1")
	if err != nil {
		t.Skip(err)
	}
	ids := groupsOf(1)
	if len(ids) == 0 || userName(1) != known.Username+" (1)" || userName(stranger) != "4000000" || groupsOf(stranger) != nil {
		t.Errorf("user 1 is called %s, in groups %v; a stranger %s, in %v", userName(1), ids, userName(stranger), groupsOf(stranger))
	}
	j.Groups = []uint32{ids[len(ids)-1]}
	if !j.allows(&unix.Ucred{Uid: 1, Gid: group}) || os.Geteuid() != 1 && j.allows(&unix.Ucred{Uid: stranger, Gid: group}) {
		t.Errorf("by the system's files, group %v", j.Groups)
	}
}

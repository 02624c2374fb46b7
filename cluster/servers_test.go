// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// several is the valid file with servers in place of the server.
func several(items ...string) string {
	const server = "server: {address: 127.0.0.3, control: 127.0.0.3:7701}"
	if !strings.Contains(valid, server) {
		panic("the valid file has another server")
	}
	return strings.Replace(valid, server, "servers:\n- "+strings.Join(items, "\n- "), 1)
}

func item(host int, more string) string {
	return fmt.Sprintf("{address: 127.0.9.%d, control: 127.0.9.%[1]d:7701%s}", host, more)
}

// TestSeveralServers reads a list of servers, with the defaults of each.
func TestSeveralServers(t *testing.T) {
	c, err := Read(write(t, several(item(1, ""), item(2, ", rejoin: 3s, max_rows: 7"))))
	if err != nil {
		t.Fatal(err)
	}
	all := c.AllServers()
	if len(all) != 2 || all[0].Rejoin != DefaultRejoin || all[0].MaxRows == 0 || all[1].Rejoin != 3*time.Second || all[1].MaxRows != 7 || c.Server != (Server{}) {
		t.Errorf("%+v, %+v", all, c.Server)
	}
	own, err := c.ForServer(1)
	if err != nil || own.Server != all[1] || c.Server == all[1] {
		t.Errorf("%+v, %v", own.Server, err)
	}
	for _, index := range []int{-1, 2} {
		if _, err := c.ForServer(index); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no server %d in the cluster configuration, which has 2", index)) {
			t.Errorf("server %d: %v", index, err)
		}
	}
	if n := c.Agreement()[ServersField]; n != "2" {
		t.Errorf("hosts agree on %s servers", n)
	}
	// What was read is what is written.
	path := filepath.Join(t.TempDir(), "again.yaml")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	if again, err := Read(path); err != nil || len(again.Servers) != 2 || again.Servers[1] != all[1] {
		t.Errorf("%+v, %v", again, err)
	}
}

// Synchronous servers write checkpoints at the same steps, by default too.
func TestCheckpointsOfServers(t *testing.T) {
	sync := func(text string) string {
		return strings.NewReplacer("harvest: 20ms", "sync: true").Replace(text)
	}
	c, err := Read(write(t, sync(several(item(1, ", checkpoint: a"), item(2, ", checkpoint: b")))))
	if err != nil || c.Servers[1].CheckpointSteps != DefaultCheckpointSteps || c.Servers[1].CheckpointEvery != nil {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = Read(write(t, several(item(1, ", checkpoint: a"), item(2, ", checkpoint: b"))))
	if err != nil || c.Servers[1].CheckpointSteps != 0 || *c.Servers[1].CheckpointEvery != DefaultCheckpointEvery {
		t.Errorf("%+v, %v", c, err)
	}
	// Where the steps of others do not matter, a zero is a zero.
	for _, text := range []string{
		sync(several(item(1, ", checkpoint: a, checkpoint_steps: 0"))),
		sync(several(item(1, ", checkpoint_steps: 0"), item(2, ""))),
		several(item(1, ", checkpoint: a, checkpoint_steps: 0"), item(2, ", checkpoint: b")),
	} {
		if c, err := Read(write(t, text)); err != nil || c.Servers[0].CheckpointSteps != 0 {
			t.Errorf("%+v, %v", c, err)
		}
	}
	for text, want := range map[string]string{
		several(item(1, ", checkpoint: a"), item(2, "")):                                                                `servers[1].checkpoint: "", and that of servers[0] is "a"`,
		sync(several(item(1, ", checkpoint: a, checkpoint_steps: 5"), item(2, ", checkpoint: b, checkpoint_steps: 6"))): "servers[1].checkpoint_steps: 6, and those of servers[0] are 5",
		sync(several(item(1, ", checkpoint: a, checkpoint_every: 1m"), item(2, ", checkpoint: b"))):                     "servers[0].checkpoint_every: 1m0s, but several servers with job.sync keep checkpoints of the same steps: use checkpoint_steps",
		sync(several(item(1, ", checkpoint: a"), item(2, ", checkpoint: b, checkpoint_steps: 0"))):                      `line 7: servers[1].checkpoint_steps: "0" is not a valid value: leave the field out for 1000, or give another`,
	} {
		if _, err := Read(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Mistakes in lists of servers are told with the line and the item.
func TestServersMistakes(t *testing.T) {
	many := make([]string, 33)
	for i := range many {
		many[i] = item(i+1, "")
	}
	for text, want := range map[string]string{
		several(item(1, ""), item(1, "")):                                                                "line 7: servers[1].address: 127.0.9.1 is also servers[0].address",
		several(item(1, ""), "{address: 127.0.0.4, control: 127.0.9.1:7701}"):                            "servers[1].control: 127.0.9.1:7701 is also servers[0].control: give one of them a different port",
		strings.Replace(several(item(1, ""), item(2, ", rejoin: 5s")), "harvest: 20ms", "sync: true", 1): "servers[1].rejoin: 5s, but with job.sync and several servers the loss of a worker ends the job",
		several(many...): "servers: 33 are listed; the limit is 32",
		valid + "servers: [" + item(1, "") + "]\n":                                                       "servers: the file has server, too: list all servers here, and leave server out",
		several(item(1, ""), item(2, ", max_rows: 0")):                                                   `line 7: servers[1].max_rows: "0" is not a valid value`,
		several(item(1, ""), item(2, ", id: 4")):                                                         "servers[1].id: no such field: address, interface, queue, at, control,",
		strings.Replace(several(item(1, ""), item(2, "")), "train: train.libfm", "train: a, test: b", 1): "data.test: a server evaluates its own rows",
	} {
		if _, err := Read(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

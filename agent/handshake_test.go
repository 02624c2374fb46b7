// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
)

// Each client that cannot be admitted gets the reason and a remedy, and is counted.
func TestHandshakeRefuses(t *testing.T) {
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Limits = agent.Limits{Clients: 2, Memory: 1 << 20}
	})
	refused := map[agent.Code]uint64{}
	refuse := func(want agentproto.Code, text string, change func(*agentproto.Hello)) {
		t.Helper()
		hello := agentproto.Hello{Oldest: 1, Newest: 1, Job: jobName, Entries: 16, BufferBytes: 4096}
		change(&hello)
		c, err := agentclient.Dial(within(t), b.socket, hello)
		if c != nil && err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, want) || !strings.Contains(err.Error(), want.Error()) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q with %q", err, want, text)
		}
		refused[agent.Code(want)]++
	}
	refuse(agentproto.BadVersion, "versions 2 to 7, the agent version 1", func(h *agentproto.Hello) { h.Oldest, h.Newest = 2, 7 })
	refuse(agentproto.BadVersion, "versions 2 to 0", func(h *agentproto.Hello) { h.Oldest, h.Newest = 2, 0 })
	refuse(agentproto.Features, "bits 0x10", func(h *agentproto.Hello) { h.Features = 16 })
	refuse(agentproto.NoJob, `"ads"; it serves clicks`, func(h *agentproto.Hello) { h.Job = "ads" })
	refuse(agentproto.Dimension, "rows of job clicks have 2, the client expects 3", func(h *agentproto.Hello) { h.Dim = 3 })
	refuse(agentproto.HotSet, "fingerprint is "+b.hot.Fingerprint().String()+", the client expects 000000000001", func(h *agentproto.Hello) { h.HotSet[5] = 1 })
	refuse(agentproto.NoMemory, "in 1048576 bytes", func(h *agentproto.Hello) { h.BufferBytes = 1 << 20 })
	refuse(agentproto.NoMemory, "in 1048576 bytes", func(h *agentproto.Hello) { h.BufferBytes = 1<<64 - 1 })
	refuse(agentproto.BadHello, "5 entries", func(h *agentproto.Hello) { h.Entries = 5 })
	refuse(agentproto.BadHello, "131072 entries", func(h *agentproto.Hello) { h.Entries = 1 << 17 })

	small := func(h *agentproto.Hello) { h.BufferBytes, h.HotSet = 4096, b.hot.Fingerprint() }
	c := b.dial(small)
	if w := c.Welcome(); w.Dim != dim || w.HotRows != hotRows || w.HotSet != b.hot.Fingerprint() || w.Exponent != -46 || int(w.PID) != os.Getpid() {
		t.Errorf("welcome %+v", w)
	}
	b.dial(small)
	refuse(agentproto.Clients, "2", small)

	// One user may have a lower limit than all.
	one := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits = agent.Limits{Clients: 3, UserClients: 1} })
	one.dial(small)
	if _, err := agentclient.Dial(within(t), one.socket, agentproto.Hello{Job: jobName}); !errors.Is(err, agentproto.Clients) || !strings.Contains(err.Error(), fmt.Sprintf("1 of user %d", os.Geteuid())) {
		t.Errorf("a second client of a user that may have one: %v", err)
	}

	// Messages that are not a HELLO.
	for _, message := range []string{"", "x", strings.Repeat("x", agentproto.AskLen), strings.Repeat("x", agentproto.HelloLen), strings.Repeat("x", 1000)} {
		conn, err := net.Dial("unixpacket", b.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 1000)
		n, _ := conn.Read(answer)
		if _, err := agentproto.ParseAnswer(answer[:n]); !errors.Is(err, agentproto.BadHello) {
			t.Errorf("%d bytes are answered by %v", len(message), err)
		}
		refused[agent.Code(agentproto.BadHello)]++
		_ = conn.Close()
	}
	for code, n := range refused {
		if got := b.agent.Stats().Refused[code]; got != n {
			t.Errorf("%d clients are counted as refused for %q, want %d", got, code, n)
		}
	}
	if err := c.Flush(within(t)); err != nil {
		t.Error("the client that was admitted notices: ", err)
	}
}

// A socket left behind by an agent is replaced; a socket in use, or a file, is not.
func TestSocketInTheWay(t *testing.T) {
	b := newBed(t)
	cfg := agent.Config{Socket: b.socket, Jobs: []agent.Job{{Name: "other", Worker: b.cluster.Worker(0), Dim: 1}}}
	if _, err := agent.Listen(cfg); err == nil || !strings.Contains(err.Error(), "another agent serves it") {
		t.Errorf("a second agent: %v", err)
	}
	b.dial()
	dir := shortDir(t)
	cfg.Socket = dir + "/its"
	if _, err := agent.Listen(cfg); err == nil || !strings.Contains(err.Error(), "job other: transport: bad configuration: the worker has a feed already") {
		t.Errorf("a second agent with the same worker: %v", err)
	}
	if err := b.agent.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.Socket = dir + "/left"
	left, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: cfg.Socket})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	a, err := agent.Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(cfg.Socket, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Listen(cfg); err == nil || !strings.Contains(err.Error(), "the file is not a socket") {
		t.Errorf("a file: %v", err)
	}
	if text, err := os.ReadFile(cfg.Socket); string(text) != "mine" {
		t.Error("the file is gone: ", err)
	}
	if err := os.Remove(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	if a, err = agent.Listen(cfg); err != nil {
		t.Fatal("when the file has been removed: ", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// The error of a socket that cannot be opened names the path and the system's error, and the
// attempt leaves nothing behind.
func TestSocketErrors(t *testing.T) {
	dir := shortDir(t)
	file := dir + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := dir + "/" + strings.Repeat("n", 100) // a lock may have that name, a socket may not
	for path, want := range map[string]string{
		file + "/sock":   "not a directory",
		long:             fmt.Sprintf("path is %d bytes long; the limit is 107: configure a shorter one: listen unixpacket %s: bind: invalid argument", len(long), long),
		dir + "/no/sock": "its directory does not exist: make it, or configure another socket",
		file:             "the file is not a socket: remove it, or configure another path",
		dir:              "the file is not a socket: remove it, or configure another path",
	} {
		err := agent.TrySocket(path)
		if err == nil || !strings.HasPrefix(err.Error(), "agent: socket "+path+": ") || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// A job without users, or two of one name, are refused at once.
func TestConfigIsChecked(t *testing.T) {
	b := newBed(t)
	w := b.cluster.Worker(0)
	for want, cfg := range map[string]agent.Config{
		"no job":                       {},
		"no worker is set":             {Jobs: []agent.Job{{Name: "a"}}},
		"0 bytes":                      {Jobs: []agent.Job{{Worker: w}}},
		"dimension 0":                  {Jobs: []agent.Job{{Name: "a", Worker: w}}},
		"is used twice":                {Jobs: []agent.Job{{Name: "a", Worker: w, Dim: 1}, {Name: "a", Worker: w, Dim: 1}}},
		"also serves another job":      {Jobs: []agent.Job{{Name: "a", Worker: w, Dim: 1}, {Name: "b", Worker: w, Dim: 1}}},
		"at least":                     {Jobs: []agent.Job{{Name: "a", Worker: w, Dim: 1, Limits: agent.Limits{Memory: 4096}}}},
		"its directory does not exist": {Socket: "/nowhere/at/all", Jobs: []agent.Job{{Name: "a", Worker: w, Dim: 1}}},
		"invalid argument":             {Socket: shortDir(t) + strings.Repeat("/x", 60), Jobs: []agent.Job{{Name: "a", Worker: w, Dim: 1}}},
	} {
		if want == "invalid argument" {
			_ = os.MkdirAll(cfg.Socket[:strings.LastIndex(cfg.Socket, "/")], 0o755)
		}
		a, err := agent.Listen(cfg)
		if err == nil {
			_ = a.Close()
		}
		// A text with wrong arguments of fmt contains "%!".
		if err == nil || !strings.HasPrefix(err.Error(), "agent: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// A client that requests more than a message or buffer can hold, or has no agent, gets an error on
// its own side.
func TestClientRefuses(t *testing.T) {
	b := newBed(t)
	name := strings.Repeat("n", 64)
	if _, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: name}); err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("a long name: %v", err)
	}
	_, err := agentclient.Dial(within(t), b.socket+".absent", agentproto.Hello{Job: jobName})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "agent at "+b.socket+".absent: ") || !strings.Contains(err.Error(), "is 'libra agent' running?") {
		t.Errorf("no agent: %v", err)
	}
	c := b.dial()
	if _, err := c.Prepare(within(t), make([]uint64, 1<<16)); err == nil {
		t.Error("a batch that is larger than the buffer is prepared")
	}
	if err := c.Flush(within(t)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

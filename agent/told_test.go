// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/local"
)

// A client gets all properties of its job, and its own number; the agent's instance is the same for
// all clients, and differs from other agents'.
func TestWelcomeTellsTheJob(t *testing.T) {
	b := newBed(t, func(c *agent.Config) {
		c.Jobs[0].Number, c.Jobs[0].NextStep, c.Jobs[0].Limits = 777, 88, agent.Limits{Prepared: 9999}
	})
	layout := agentproto.LayoutOf(16, 64<<10)
	first := b.dial().Welcome()
	want := agentproto.Welcome{
		Version: 1, Job: 777, Dim: dim, Exponent: -46, HotRows: hotRows, Client: 1, PID: uint32(os.Getpid()), Instance: first.Instance,
		Features: agentproto.FeatureHarvest, NextStep: 88, Layout: layout, PreparedBytes: 9999, HotSet: b.hot.Fingerprint(),
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	want.Client = 2
	if diff := cmp.Diff(want, b.dial().Welcome()); diff != "" {
		t.Error(diff)
	}
	if other := newBed(t).dial().Welcome(); other.Instance == first.Instance {
		t.Errorf("two agents have the instance %x", first.Instance)
	}
}

// A client's numbers in the agent's statistics and on its page match its actions.
func TestNumbersOfAClient(t *testing.T) {
	const n = 5
	b := newBed(t)
	c := b.dial(func(h *agentproto.Hello) { h.Client = "trainer" })
	keys, grads := batch(1, n)
	ctx := within(t)
	handle, err := c.Prepare(ctx, keys)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	if _, err := c.PushPrepared(ctx, handle, n, grads); err != nil {
		t.Fatal(err)
	}
	grads[3] = float32(math.Inf(1))
	if _, err := c.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Push, Dim: dim + 1, N: 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(ctx); err == nil || !strings.Contains(err.Error(), agentproto.NotFinite.Error()) {
		t.Errorf("the first push that fails is reported as %v", err)
	}
	if err := c.Flush(ctx); err != nil {
		t.Errorf("a failure is reported twice: %v", err)
	}
	if err := c.Pull(ctx, keys[:3], make([]float32, 3*dim)); err != nil {
		t.Fatal(err)
	}
	const (
		pushes, acknowledged, failed, keysPushed = 4, 2, 2, 3 * n
		charged                                  = 512 + 16*n + 8*n*dim
		read                                     = 8*n + (8*n + 4*n*dim) + 4*n*dim + (8*n + 4*n*dim) + 8*3 // prepared, pushed three times, pulled
	)
	page, err := c.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []uint64{pushes, acknowledged, failed, keysPushed, 1, 3, read, charged}
	if diff := cmp.Diff(want, page[:8]); diff != "" {
		t.Errorf("the page: %s", diff)
	}
	if page[10] == 0 || page[12]+page[13] == 0 || page[14] != 0 || page[15] != 0 {
		t.Errorf("the page has %v", page)
	}
	for ctx.Err() == nil && b.agent.Stats().Jobs[0].Clients[0].InFlight > 0 { // an entry is answered just before it is settled
		runtime.Gosched()
	}
	hot := uint64(0)
	for _, key := range keys {
		if key < hotRows {
			hot += dim
		}
	}
	got := b.agent.Stats().Jobs[0]
	layout := agentproto.LayoutOf(16, 64<<10)
	wanted := agent.JobStats{Name: jobName, Memory: int64(layout.Total), Clients: []agent.ClientStats{{
		Client: 1, Name: "trainer", User: uint32(os.Getuid()), Process: int32(os.Getpid()), Memory: layout.Total, Prepared: charged,
		Pushes: pushes, Acknowledged: acknowledged, Failed: failed, FailedBy: map[agent.Code]uint64{agent.Code(agentproto.NotFinite): 1, agent.Code(agentproto.Dimension): 1}, KeysPushed: keysPushed, Pulls: 1, KeysPulled: 3,
	}}, PairsSent: acknowledged * hot}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("the statistics: %s", diff)
	}
	asked, err := agent.Ask(ctx, b.socket)
	if diff := cmp.Diff(b.agent.Stats(), asked, cmpopts.EquateEmpty()); err != nil || diff != "" {
		t.Errorf("asked over the socket: %v, %s", err, diff)
	}
	if err := c.Release(ctx, handle); err != nil {
		t.Fatal(err)
	}
	if page, err = c.Stats(ctx); err != nil || page[7] != 0 {
		t.Errorf("after the release, %d bytes are charged, %v", page[7], err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b.idle(0)
	for ctx.Err() == nil && len(b.agent.Stats().Jobs[0].Clients) > 0 {
		runtime.Gosched()
	}
	if ended := b.agent.Stats().Jobs[0].Ended[agent.Code(agentproto.OK)]; ended != 1 {
		t.Errorf("%d clients are counted that have closed", ended)
	}
}

// The page shows how often the agent has woken the client: once for each sleep, at the completion
// that ends it.
func TestPageCountsWakes(t *testing.T) {
	b := newBed(t)
	c, ctx := b.dial(), within(t)
	for n := range uint32(3) {
		c.Memory().ClientSleeps.Store(1) // before the entry: there is no completion yet
		if _, err := c.Submit(ctx, agentproto.Entry{Op: agentproto.Flush}); err != nil {
			t.Fatal(err)
		}
		for c.Memory().ClientSleeps.Load() == 1 && ctx.Err() == nil {
			runtime.Gosched()
		}
		if done := c.Memory().CQTail.Load(); done != n+1 {
			t.Errorf("%d entries are answered when the client is woken, want %d", done, n+1)
		}
	}
	if page, err := c.Stats(ctx); err != nil || page[9] != 3 {
		t.Errorf("the page has %d wake-ups, %v, want 3", page[9], err)
	}
}

// The socket has the configured mode, by default that for all users; checking it leaves nothing
// behind, and returns the error that Listen would.
func TestSocketIsMade(t *testing.T) {
	cluster, err := local.Open(t.Context(), local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	dir := shortDir(t)
	for configured, want := range map[fs.FileMode]fs.FileMode{0: 0o666, 0o600: 0o600} {
		path := filepath.Join(dir, "sock")
		if err := agent.TrySocket(path); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("trying has left %v, %v", left, err)
		}
		a, err := agent.Listen(agent.Config{Socket: path, Mode: configured, Jobs: []agent.Job{{Name: jobName, Worker: cluster.Worker(0), Dim: dim}}})
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|want {
			t.Errorf("the socket has mode %v, %v, want %v", info.Mode(), err, want)
		}
		if err := agent.TrySocket(path); err == nil || err.Error() != "agent: socket "+path+": another agent serves it: stop that one, or configure another socket" {
			t.Errorf("trying a socket that is served: %v", err)
		}
		for range 2 {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A client can use its memory limit to the last byte.
func TestMemoryLimitIsInclusive(t *testing.T) {
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Limits.Memory = agentproto.LayoutOf(8, 4096).Total })
	c := b.dial(func(h *agentproto.Hello) { h.Entries, h.BufferBytes = 8, 4096 })
	if err := c.Flush(within(t)); err != nil {
		t.Error(err)
	}
	if c, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: jobName, Entries: 8, BufferBytes: 4097}); err == nil {
		t.Errorf("a client has %d bytes", c.Welcome().Layout.Total)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/wire"
)

// shard puts several servers in the place of the one of a configuration.
func shard(t *testing.T, c *cluster.Config, servers int) {
	t.Helper()
	dir := filepath.Dir(c.Server.Checkpoint)
	ip := c.Server.Address.As4()
	c.Server = cluster.Server{}
	for i := range servers {
		ip[3] = byte(100 + i)
		a := netip.AddrFrom4(ip)
		c.Servers = append(c.Servers, cluster.Server{
			Host: cluster.Host{Address: a}, Control: netip.AddrPortFrom(a, freePort(t, a)), Checkpoint: filepath.Join(dir, fmt.Sprintf("weights-%d.libra", i)),
		})
	}
	c.SetDefaults()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
}

// sharded is the outcome of a run with several servers.
type sharded struct {
	servers []*ServerResult
	errs    []error // of the servers, then of the workers
}

// trainSharded runs all servers and workers of a cluster whose switch runs. ends, if not nil, gets
// a function for each server that ends it; steps are what the servers are told to begin with.
func trainSharded(ctx context.Context, t *testing.T, c *cluster.Config, step *uint64, progress func(train.Progress, []func())) sharded {
	t.Helper()
	log, n := testLog(t), len(c.AllServers())
	out := sharded{servers: make([]*ServerResult, n), errs: make([]error, n+len(c.Workers))}
	var group sync.WaitGroup
	var ends []func()
	for i := range n {
		ctx, end := context.WithCancel(ctx)
		defer end()
		ends = append(ends, end)
		group.Go(func() {
			out.servers[i], out.errs[i] = RunServer(ctx, Env{Config: c, Server: i, Step: step, Log: log.With("process", fmt.Sprint("ps ", i))})
		})
	}
	for i, w := range c.Workers {
		o := WorkerOptions{ID: w.ID}
		if progress != nil && i == 0 {
			o.Progress = func(p train.Progress) { progress(p, ends) }
		}
		group.Go(func() {
			_, out.errs[n+i] = RunWorker(ctx, Env{Config: c, Log: log.With("process", fmt.Sprint("worker ", w.ID))}, o)
		})
	}
	group.Wait()
	return out
}

// merged returns the rows of all servers' checkpoints.
func merged(t *testing.T, c *cluster.Config) *ps.Store {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	var stores []*ps.Store
	for _, s := range c.Servers {
		store, _, err := ps.Restore(s.Checkpoint, cfg)
		if err != nil {
			t.Fatal(err)
		}
		stores = append(stores, store)
	}
	all, err := ps.Merge(stores...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The weights of synchronous training are those of one process, with one server and with three,
// with faults and without.
func TestServersGiveTheSameWeights(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, 3} {
		for name, faults := range map[string]cluster.Faults{"no faults": {}, "faults": {Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Seed: 3}} {
			t.Run(fmt.Sprintf("%d servers, %s", n, name), func(t *testing.T) {
				c := newCluster(t, 2)
				c.Faults = faults
				shard(t, c, n)
				startSwitch(t, c)
				out := trainSharded(t.Context(), t, c, nil, nil)
				if err := errors.Join(out.errs...); err != nil {
					t.Fatal(err)
				}
				want, got := reference(t, c), merged(t, c)
				if hash(got) != hash(want) || got.Len() != want.Len() {
					t.Errorf("%d rows with weights %s, in one process %d with %s", got.Len(), hash(got), want.Len(), hash(want))
				}
				for i, s := range out.servers {
					if s.Rows == 0 || s.ColdFrames == 0 {
						t.Errorf("server %d has done nothing: %+v", i, s)
					}
				}
			})
		}
	}
}

// Asynchronous servers end with everything that was pushed, and continue.
func TestServersWithoutBarriers(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
	shard(t, c, 3)
	startSwitch(t, c)
	for epochs := 1; epochs <= 2; epochs++ {
		c.Model.Epochs = epochs
		out := trainSharded(t.Context(), t, c, nil, nil)
		if err := errors.Join(out.errs...); err != nil {
			t.Fatal(err)
		}
		if want := reference(t, c); merged(t, c).Len() != want.Len() {
			t.Errorf("%d rows, in one process %d", merged(t, c).Len(), want.Len())
		}
	}
}

// Whichever server ends at whichever step, training continues from a step of which all have
// a checkpoint, and gives the weights that it would have given.
func TestServersContinue(t *testing.T) {
	for _, victim := range []int{0, 1, 2} {
		t.Run(fmt.Sprint("server ", victim), func(t *testing.T) {
			c := newCluster(t, 2)
			shard(t, c, 3)
			for i := range c.Servers {
				c.Servers[i].CheckpointSteps = 3
			}
			startSwitch(t, c)
			out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, ends []func()) {
				if p.Steps == 8 {
					ends[victim]()
				}
			})
			if errors.Join(out.errs...) == nil {
				t.Fatal("training has not noticed")
			}
			step := commonStep(t, c)
			if step < 6 {
				t.Fatalf("the servers have checkpoints of step %d only", step)
			}
			out = trainSharded(t.Context(), t, c, &step, nil)
			if err := errors.Join(out.errs...); err != nil {
				t.Fatal(err)
			}
			if want, got := reference(t, c), merged(t, c); hash(got) != hash(want) {
				t.Errorf("weights %s, without an interruption %s", hash(got), hash(want))
			}
		})
	}
}

// trainedByTwo trains with two servers that write a checkpoint every six steps. It returns the
// cluster, the hash of its weights, and the steps of the first server's checkpoints.
func trainedByTwo(t *testing.T, workers int) (c *cluster.Config, want string, steps []uint64) {
	t.Helper()
	c = newCluster(t, workers)
	shard(t, c, 2)
	for i := range c.Servers {
		c.Servers[i].CheckpointSteps = 6
	}
	startSwitch(t, c)
	if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs...); err != nil {
		t.Fatal(err)
	}
	return c, hash(merged(t, c)), stepsOf(t, c, 0)
}

// Servers that are told to go back to the checkpoints before their last ones train on from there,
// to the same weights.
func TestServersGoBack(t *testing.T) {
	c, want, steps := trainedByTwo(t, 2)
	if len(steps) != 2 || steps[1] >= steps[0] || !slices.Equal(steps, stepsOf(t, c, 1)) {
		t.Fatalf("checkpoints of steps %v and %v", steps, stepsOf(t, c, 1))
	}
	out := trainSharded(t.Context(), t, c, &steps[1], nil)
	if err := errors.Join(out.errs...); err != nil {
		t.Fatal(err)
	}
	if got, again := hash(merged(t, c)), out.servers[0].Steps; got != want || again != steps[0]-steps[1] {
		t.Errorf("weights %s after %d steps again, at first %s; the checkpoints were of steps %v", got, again, want, steps)
	}
}

// Servers that end at the same moment may be a step apart, and then have no checkpoint of the
// earlier step in common. Workers name the newest step of which all have one, and training goes on
// from there.
func TestServersEndAStepApart(t *testing.T) {
	c, want, steps := trainedByTwo(t, 1)
	says := func(server0, server1, common uint64) {
		t.Helper()
		relabel(t, c, 0, server0)
		relabel(t, c, 1, server1)
		err := trainSharded(t.Context(), t, c, nil, nil).errs[2]
		want := fmt.Sprintf("the checkpoints of the servers are of different steps: [%d %d], by index: start all servers with --step %d, the newest step of which each has a checkpoint", server0, server1, common)
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	says(steps[0], steps[0]-1, steps[1])
	step := steps[1]
	if err := errors.Join(trainSharded(t.Context(), t, c, &step, nil).errs...); err != nil {
		t.Fatal(err)
	}
	if got := hash(merged(t, c)); got != want {
		t.Errorf("weights %s, at first %s", got, want)
	}
	says(steps[0]-1, steps[1], steps[1]) // server 1 was killed
	for _, s := range c.Servers {
		if err := os.Remove(s.Checkpoint + previousSuffix); err != nil {
			t.Fatal(err)
		}
	}
	says(2, 1, 0) // their first checkpoints
}

// relabel makes a server's last checkpoint one of another step.
func relabel(t *testing.T, c *cluster.Config, server int, step uint64) {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	path := c.Servers[server].Checkpoint
	store, attachment, err := ps.Restore(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var saved savedProgress
	if err := json.Unmarshal(attachment, &saved); err != nil {
		t.Fatal(err)
	}
	saved.Step, saved.Complete = step, 0
	if attachment, err = json.Marshal(saved); err != nil {
		t.Fatal(err)
	}
	if err := store.Checkpoint(path, attachment); err != nil {
		t.Fatal(err)
	}
}

// A server that is killed before its first checkpoint begins with nothing, and so do the others,
// which have one: it is the first, so that no server can have one of the step before. A later one
// is not given up.
func TestServersBeginAnew(t *testing.T) {
	c := newCluster(t, 2)
	shard(t, c, 2)
	startSwitch(t, c)
	for _, every := range []uint64{1000, 1} {
		for i := range c.Servers {
			c.Servers[i].CheckpointSteps = every
		}
		if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs...); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(c.Servers[0].Checkpoint); err != nil { // as if it had none
			t.Fatal(err)
		}
		_ = os.Remove(c.Servers[0].Checkpoint + previousSuffix)
		if every == 1 {
			break
		}
		step := uint64(0)
		if err := errors.Join(trainSharded(t.Context(), t, c, &step, nil).errs...); err != nil {
			t.Fatal(err)
		}
		if want, got := reference(t, c), merged(t, c); hash(got) != hash(want) {
			t.Errorf("weights %s, without an interruption %s", hash(got), hash(want))
		}
		for _, s := range c.Servers {
			if err := os.Remove(s.Checkpoint); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = os.Remove(c.Servers[1].Checkpoint + previousSuffix)
	step := uint64(0)
	_, err := RunServer(soon(t), Env{Config: c, Server: 1, Step: &step, Log: testLog(t)})
	if err == nil || !strings.Contains(err.Error(), "and there is none before it") || len(stepsOf(t, c, 1)) != 1 {
		t.Errorf("%v, checkpoints of steps %v", err, stepsOf(t, c, 1))
	}
}

// steps returns the steps of a server's checkpoints.
func stepsOf(t *testing.T, c *cluster.Config, server int) (steps []uint64) {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{c.Servers[server].Checkpoint, c.Servers[server].Checkpoint + previousSuffix} {
		if _, attachment, err := ps.Restore(path, cfg); err == nil {
			p := newProgress(true, server)
			if _, err := p.resumeFrom(attachment, map[string]string{}, c.Model.Epochs); err != nil {
				t.Fatal(err)
			}
			steps = append(steps, p.step)
		}
	}
	return steps
}

// commonStep returns the newest step of which all servers have a checkpoint.
func commonStep(t *testing.T, c *cluster.Config) uint64 {
	t.Helper()
	counts := map[uint64]int{}
	for i := range c.Servers {
		for _, step := range stepsOf(t, c, i) {
			counts[step]++
		}
	}
	maps.DeleteFunc(counts, func(_ uint64, n int) bool { return n < len(c.Servers) })
	if len(counts) == 0 {
		t.Fatal("the servers have no step in common")
	}
	return slices.Max(slices.Collect(maps.Keys(counts)))
}

// A server refuses a checkpoint of another step, server or split, with the remedy.
func TestServersThatDoNotBelongTogether(t *testing.T) {
	c := newCluster(t, 1)
	shard(t, c, 2)
	for i := range c.Servers {
		c.Servers[i].CheckpointSteps = 5
	}
	startSwitch(t, c)
	if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs...); err != nil {
		t.Fatal(err)
	}
	swapped := *c
	swapped.Servers = slices.Clone(c.Servers)
	swapped.Servers[0].Checkpoint, swapped.Servers[1].Checkpoint = c.Servers[1].Checkpoint, c.Servers[0].Checkpoint
	one := *c
	one.Servers = c.Servers[:1]
	refuses := func(c *cluster.Config, server int, step *uint64, want string) {
		t.Helper()
		_, err := RunServer(soon(t), Env{Config: c, Server: server, Step: step, Log: testLog(t)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	refuses(&swapped, 1, nil, "it was that of server 0 and is given to server 1; restore that, or remove the checkpoint to start over")
	refuses(&one, 0, nil, "servers was 2 and is 1; restore that")
	step := uint64(99)
	kept := stepsOf(t, c, 1)
	has := fmt.Sprintf("--step 99: the checkpoint %s (servers[1].checkpoint) is of step %d", c.Servers[1].Checkpoint, kept[0])
	refuses(c, 1, &step, fmt.Sprintf("%s, and the one before it of step %d: start all servers with a step of which each has a checkpoint", has, kept[1]))
	broken := *c
	broken.Servers = slices.Clone(c.Servers)
	broken.Servers[1].Checkpoint = filepath.Join(t.TempDir(), "weights.libra")
	for to, from := range map[string]string{broken.Servers[1].Checkpoint: c.Servers[1].Checkpoint, broken.Servers[1].Checkpoint + previousSuffix: c.Servers[0].Checkpoint} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refuses(&broken, 1, &step, "checkpoint "+broken.Servers[1].Checkpoint+previousSuffix+": it was trained with a different configuration: it was that of server 0")
	if err := os.WriteFile(broken.Servers[1].Checkpoint+previousSuffix, []byte("no checkpoint"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(&broken, 1, &step, "and the one before it cannot be read: "+broken.Servers[1].Checkpoint+previousSuffix+": ")
	broken.Servers[1].Checkpoint = ""
	refuses(&broken, 1, &step, "--step 99: servers[1].checkpoint names no file: leave --step out")
	one.Servers[0].Checkpoint = ""
	refuses(&one, 0, &step, "--step 99: only several servers of a job with job.sync")
	refuses(c, 2, nil, "no server 2 in the cluster configuration, which has 2")

	c.Servers[0].Checkpoint = filepath.Join(t.TempDir(), "fresh.libra")
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	defer cancel()
	out := trainSharded(ctx, t, c, nil, nil)
	steps := stepsOf(t, c, 1)
	want := fmt.Sprintf("the checkpoints of the servers are of different steps: [0 %d], by index, and there is no step of which each has a checkpoint ([[0 0] [%[1]d %d]]): put files there that belong together", steps[0], steps[1])
	if err := out.errs[2]; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	for _, err := range out.errs[:2] { // it has told the servers
		if err == nil || err.Error() != "worker 1 left before it had finished: "+out.errs[2].Error() {
			t.Errorf("a server ends with %v", err)
		}
	}
}

// Without barriers workers begin where the server is that has the fewest of their steps.
func TestFirstStepOfServers(t *testing.T) {
	m := &control.Membership{FirstStep: 9, MoreFirstSteps: []uint64{12, 7}}
	if err := agreeOnFirstStep(m, false); err != nil || m.FirstStep != 7 {
		t.Errorf("step %d, %v", m.FirstStep, err)
	}
	for _, equal := range []*control.Membership{{FirstStep: 4}, {FirstStep: 4, MoreFirstSteps: []uint64{4, 4}}} {
		if err := agreeOnFirstStep(equal, true); err != nil || equal.FirstStep != 4 {
			t.Errorf("step %d, %v", equal.FirstStep, err)
		}
	}
}

// A worker whose cluster file lists the servers in another order is refused. It would push rows to,
// and pull them from, servers that do not own them.
func TestServersInAnotherOrder(t *testing.T) {
	c := newCluster(t, 2)
	shard(t, c, 3)
	startSwitch(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	log := testLog(t)
	var servers sync.WaitGroup
	defer servers.Wait()
	defer cancel()
	for i := range 3 {
		servers.Go(func() { _, _ = RunServer(ctx, Env{Config: c, Server: i, Log: log}) }) // until ctx ends
	}
	other := *c
	other.Servers = slices.Clone(c.Servers)
	other.Servers[1], other.Servers[2] = other.Servers[2], other.Servers[1]
	hot, err := loadHotSet(c, 4)
	if err != nil {
		t.Fatal(err)
	}
	lost := func(why error) {
		if ctx.Err() == nil {
			t.Errorf("worker 1, whose file is right, has lost the job: %v", why)
		}
	}
	right, err := join(ctx, lost, Env{Config: c, Log: log}, c.Workers[0], hot, new(allotment), wire.Endpoint{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = join(ctx, func(error) {}, Env{Config: &other, Log: log}, c.Workers[1], hot, new(allotment), wire.Endpoint{}, nil)
	if err == nil || !strings.Contains(err.Error(), "configuration differs") {
		t.Errorf("a worker with the servers 0, 2, 1 has joined: %v", err)
	}
	// The job goes on, and takes the worker with the right file.
	also, err := join(ctx, lost, Env{Config: c, Log: log}, c.Workers[1], hot, new(allotment), wire.Endpoint{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	met := make(chan error, 1)
	go func() { met <- right.Barrier(ctx, 0) }()
	if err := errors.Join(also.Barrier(ctx, 0), <-met); err != nil {
		t.Errorf("the step of the others: %v", err)
	}
	cancel()
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train/weights"
)

// withServers gives a bed on the loopback interface several servers, which write a checkpoint every
// seventh step.
func (b *killBed) withServers(t *testing.T, n int) {
	t.Helper()
	c := b.config
	dir, ip := filepath.Dir(c.Server.Checkpoint), c.Server.Address.As4()
	c.Server = cluster.Server{}
	for i := range n {
		ip[3] = byte(100 + i)
		a := netip.AddrFrom4(ip)
		c.Servers = append(c.Servers, cluster.Server{
			Host: cluster.Host{Address: a}, Control: netip.AddrPortFrom(a, uint16(freePort(t, a.String()))),
			Checkpoint: filepath.Join(dir, fmt.Sprintf("weights-%d.libra", i)), CheckpointSteps: 7,
		})
	}
	c.SetDefaults()
	if err := c.Write(b.path); err != nil {
		t.Fatal(err)
	}
}

// startAll starts all servers with more arguments, and the workers.
func (b *killBed) startAll(t *testing.T, more ...string) (servers, workers []*child) {
	t.Helper()
	for i := range b.config.Servers {
		servers = append(servers, b.run(t, theServer, append([]string{"ps", "--index", strconv.Itoa(i)}, more...)...))
	}
	for i, w := range b.config.Workers {
		workers = append(workers, b.run(t, firstWorker+i, "worker", "--id", strconv.Itoa(int(w.ID))))
	}
	return servers, workers
}

// remedy is a worker's message about servers that are not at the same step.
var remedy = regexp.MustCompile(`checkpoints of the servers are of different steps: .*: start all servers with --step (\d+)`)

// One of three servers is killed at random moments, repeatedly. Training continues where it was, or
// names the step from which it can, and ends with the weights of an undisturbed run.
func TestKilledServersGoOn(t *testing.T) {
	t.Parallel()
	bed := newKillBed(t, cluster.BackendUDP)
	bed.withServers(t, 3)
	want := bed.reference(t)
	bed.runSwitch(t)
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	wait := func(all ...*child) (failed bool) {
		for _, c := range all {
			failed = c.Wait() != nil || failed
		}
		return failed
	}
	var more []string
	backs := 0
	for n := 0; n <= *kills; {
		servers, workers := bed.startAll(t, more...)
		more = nil
		for _, s := range servers {
			waitTraining(t, s)
		}
		if n < *kills {
			time.Sleep(time.Duration(rng.Int64N(int64(900 * time.Millisecond))))
			victim := servers[rng.IntN(3)]
			_ = victim.Process.Kill()
			for _, w := range workers {
				_ = w.Process.Signal(os.Interrupt)
			}
		}
		failed := wait(workers...)
		if failed { // servers without workers wait for some
			for _, s := range servers {
				_ = s.Process.Signal(os.Interrupt)
			}
		}
		failed = wait(servers...) || failed
		for _, w := range workers {
			if m := remedy.FindStringSubmatch(w.err.String()); m != nil {
				more = []string{"--step", m[1]}
			}
		}
		switch {
		case more != nil:
			backs++
			t.Logf("run %d goes on with step %s", n+1, more[1])
			if backs > 2**kills+1 {
				t.Fatal("the servers never come to the same step")
			}
			continue // the kill may have been earlier or later; it does not count
		case n == *kills && failed:
			for _, c := range append(servers, workers...) {
				t.Errorf("%v:\n%s", c.Args[1:], &c.err)
			}
		}
		n++
	}
	store, _, err := weights.ReadCheckpoints(bed.config.Servers[2].Checkpoint, bed.config.Servers[0].Checkpoint, bed.config.Servers[1].Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	if got := store.Hash(); hex.EncodeToString(got[:]) != want {
		t.Errorf("weights %x, the reference's %s", got, want)
	}
}

// Servers that are told to end may be a step apart. The workers name a step of which both have a
// checkpoint, and training continues with it.
func TestEndedServersNameAStep(t *testing.T) {
	t.Parallel()
	bed := newKillBed(t, cluster.BackendUDP)
	bed.withServers(t, 2)
	want := bed.reference(t)
	bed.runSwitch(t)
	first, second := bed.config.Servers[0].Checkpoint, bed.config.Servers[1].Checkpoint
	servers, workers := bed.startAll(t)
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(second + ".previous"); err == nil {
			break
		}
	}
	_ = servers[0].Process.Signal(syscall.SIGTERM)
	for _, c := range append(workers, servers...) {
		_ = c.Wait()
	}
	setApart(t, first, second)
	servers, workers = bed.startAll(t)
	ended := make(chan struct{}, len(workers))
	for _, w := range workers {
		go func() {
			_ = w.Wait()
			ended <- struct{}{}
		}()
	}
	<-ended
	for _, c := range append(workers, servers...) { // processes started later wait for ended ones
		_ = c.Process.Signal(syscall.SIGTERM)
	}
	<-ended
	for _, s := range servers {
		_ = s.Wait()
	}
	named := remedy.FindStringSubmatch(workers[0].err.String() + workers[1].err.String())
	if named == nil {
		t.Fatalf("the workers say:\n%s\n%s", &workers[0].err, &workers[1].err)
	}
	servers, workers = bed.startAll(t, "--step", named[1])
	for _, c := range append(workers, servers...) {
		if err := c.Wait(); err != nil {
			t.Fatalf("%v: %v\n%s", c.Args[1:], err, &c.err)
		}
	}
	store, _, err := weights.ReadCheckpoints(first, second)
	if err != nil {
		t.Fatal(err)
	}
	if got := store.Hash(); hex.EncodeToString(got[:]) != want {
		t.Errorf("weights %x, the reference's %s", got, want)
	}
}

// setApart makes the second of two checkpoints claim the step after the first's, if both are of one
// step. Every seventh step must keep its weights, so the claim is not the step before.
func setApart(t *testing.T, first, second string) {
	t.Helper()
	_, one := restoreProgress(t, first)
	store, two := restoreProgress(t, second)
	if one["step"] != two["step"] {
		return
	}
	two["step"] = two["step"].(float64) + 1
	attachment, err := json.Marshal(two)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Checkpoint(second, attachment); err != nil {
		t.Fatal(err)
	}
}

func restoreProgress(t *testing.T, path string) (*ps.Store, map[string]any) {
	t.Helper()
	cfg, err := ps.CheckpointConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	store, attachment, err := ps.Restore(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var progress map[string]any
	if err := json.Unmarshal(attachment, &progress); err != nil {
		t.Fatal(err)
	}
	return store, progress
}

// Commands for clusters with several servers need the server's index, and commands that read
// weights need the checkpoints of all.
func TestServersOnTheCommandLine(t *testing.T) {
	t.Parallel()
	bed := newKillBed(t, cluster.BackendUDP)
	bed.withServers(t, 2)
	bed.runSwitch(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ps", "--config", bed.path}, "--index is required: " + bed.path + " has 2 servers, which one is this?"},
		{[]string{"ps", "--config", bed.path, "--index", "2"}, "no server 2 in the cluster configuration, which has 2: their indices begin with 0"},
		{[]string{"ps", "--config", bed.path, "--index", "-1"}, "no server -1 in the cluster configuration, which has 2"},
		{[]string{"demo", "--backend", "udp", "--servers", "33"}, "--servers 33: it must be from 1 to 32"},
		{[]string{"agent", "--config", agentFile(t, bed.path)}, "has 2 servers, but agents only serve jobs with one"},
	} {
		if _, stderr, code := output(t, c.args...); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("libra %v: %d, %s, want %q", c.args, code, stderr, c.want)
		}
	}
	servers, workers := bed.startAll(t)
	for i, c := range append(workers, servers...) {
		if err := c.Wait(); err != nil {
			t.Fatalf("process %d: %v\n%s", i, err, &c.err)
		}
	}
	a, b := bed.config.Servers[0].Checkpoint, bed.config.Servers[1].Checkpoint
	out := filepath.Join(t.TempDir(), "weights.csv")
	if _, stderr, code := output(t, "export", "--weights", b+","+a, "--out", out); code != 0 {
		t.Error(stderr)
	}
	w, err := weights.Load(out)
	whole, failed := weights.Load(a, b)
	if err != nil || failed != nil || w.Len() != whole.Len() || w.Len() < 1000 {
		t.Errorf("%v, %v", err, failed)
	}
	if _, stderr, code := output(t, "export", "--weights", a, "--out", out); code != 1 || !regexp.MustCompile("it is of server 0 of a job with 2 .*: give the checkpoints of all its servers, separated by commas").MatchString(stderr) {
		t.Errorf("%d, %s", code, stderr)
	}
}

// agentFile writes the file of an agent that takes part in a cluster.
func agentFile(t *testing.T, config string) string {
	t.Helper()
	return writeFile(t, "agent.yaml", fmt.Sprintf("socket: %s\njobs: [{name: a, cluster: %s, worker: 1}]\n", filepath.Join(t.TempDir(), "s"), config))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/packer"
)

const (
	stepsDim = 2
	stepsHot = 20
	// stepsRows is about how many of the stepsKeys rows a host pushes in a step: the sums take
	// about twenty frames.
	stepsRows, stepsKeys = 1500, 3000
)

// stepsBed is a job whose hosts take part by agents over AF_XDP sockets and take steps together.
// This process is a client of each agent.
type stepsBed struct {
	*killBed
	bed     *testbed.Bed
	sockets string
	server  *child
	agents  []*child
	clients []*agentclient.Client
	next    uint64 // step
}

func newStepsBed(t *testing.T, hosts int, optimizer string, faults cluster.Faults) *stepsBed {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	b := &stepsBed{killBed: &killBed{path: filepath.Join(dir, "cluster.yaml"), config: &cluster.Config{
		Backend: cluster.BackendAFXDP, Faults: faults,
		Job:   cluster.Job{ID: 3, HotSet: filepath.Join(dir, "hot.libra"), Sync: true},
		Model: cluster.Model{Kind: "fm", Factors: stepsDim - 1, Optimizer: optimizer},
	}}}
	b.bed = b.inNamespaces(t, hosts)
	b.config.SetDefaults()
	hot := make([]uint64, stepsHot)
	for i := range hot {
		hot[i] = uint64(i)
	}
	set, err := packer.NewHotSet(stepsDim, hot, nil, packer.Meta{})
	if err == nil {
		err = errors.Join(packer.SaveHotSet(b.config.Job.HotSet, set), b.config.Write(b.path))
	}
	if err == nil {
		b.sockets, err = os.MkdirTemp("", "libra-steps-*") // the path of a socket is short
		t.Cleanup(func() { _ = os.RemoveAll(b.sockets) })
	}
	if err != nil {
		t.Fatal(err)
	}
	b.runSwitch(t)
	b.startServer(t)
	b.startAgents(t)
	return b
}

func (b *stepsBed) startServer(t *testing.T) {
	t.Helper()
	b.server = b.run(t, theServer, "ps", "--verbose")
	b.server.endWith(t)
}

// endWith kills the process when the test ends, unless it has been waited for.
func (c *child) endWith(t *testing.T) {
	t.Cleanup(func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	})
}

// startAgents starts all agents, and opens a session with each of them.
func (b *stepsBed) startAgents(t *testing.T) {
	t.Helper()
	n := len(b.config.Workers)
	b.agents, b.clients, b.next = make([]*child, n), make([]*agentclient.Client, n), 0
	for host := range n {
		b.startAgent(t, host)
	}
	for host := range n {
		b.openSession(t, host)
	}
}

func (b *stepsBed) socket(host int) string {
	return filepath.Join(b.sockets, fmt.Sprint(b.config.Workers[host].ID))
}

func (b *stepsBed) startAgent(t *testing.T, host int) {
	t.Helper()
	file := writeFile(t, "agent.yaml", fmt.Sprintf("socket: %s\njobs: [{name: rows, cluster: %s, worker: %d}]\n", b.socket(host),
		b.path, b.config.Workers[host].ID))
	b.agents[host] = b.runWith(t, firstWorker+host, file, "agent")
	b.agents[host].endWith(t)
}

// openSession opens a session with an agent that has been started.
func (b *stepsBed) openSession(t *testing.T, host int) {
	t.Helper()
	waitTraining(t, b.agents[host])
	c, err := agentclient.Dial(t.Context(), b.socket(host), agentproto.Hello{Job: "rows", Dim: stepsDim, Parties: 1, BufferBytes: 1 << 20})
	if err != nil {
		t.Fatalf("agent %d: %v\n%s", host+1, err, &b.agents[host].err)
	}
	t.Cleanup(func() { _ = c.Close() })
	b.clients[host] = c
}

// pushed returns a host's push in a step: rows whose sums are exact in float64. Every fourth step
// also has hot rows, which the aggregator adds.
func pushed(host int, step uint64) (keys []uint64, gradients []float32) {
	rng := rand.New(rand.NewPCG(uint64(host), step))
	for key := range uint64(stepsKeys) {
		if key < stepsHot && step%4 == 3 || key >= stepsHot && rng.IntN(stepsKeys) < stepsRows {
			keys = append(keys, key)
			for range stepsDim {
				gradients = append(gradients, float32(rng.IntN(1<<16)-1<<15)/1024)
			}
		}
	}
	return keys, gradients
}

// judge compares a host's sums of a step with the first hosts' pushes.
func judge(hosts int, step uint64, keys []uint64, sums []float32) error {
	want := map[uint64]*[stepsDim]float64{}
	for host := range hosts {
		theirs, gradients := pushed(host, step)
		for i, key := range theirs {
			if want[key] == nil {
				want[key] = new([stepsDim]float64)
			}
			for j := range stepsDim {
				want[key][j] += float64(gradients[i*stepsDim+j])
			}
		}
	}
	for key, sum := range want {
		if *sum == [stepsDim]float64{} {
			delete(want, key)
		}
	}
	if len(keys) != len(want) {
		return fmt.Errorf("step %d has sums of %d rows, want %d", step, len(keys), len(want))
	}
	for i, key := range keys {
		sum := want[key]
		if sum == nil || i > 0 && key <= keys[i-1] {
			return fmt.Errorf("step %d: key %d after %v", step, key, keys[max(0, i-1)])
		}
		for j := range stepsDim {
			if got := sums[i*stepsDim+j]; got != float32(sum[j]) {
				return fmt.Errorf("step %d: the sum of key %d is %v, want %v", step, key, got, sum[j])
			}
		}
	}
	return nil
}

var errWrongSums = errors.New("wrong sums")

// step takes a step of a host. Its sums, if any, must be right: otherwise the error is
// errWrongSums.
func (b *stepsBed) step(ctx context.Context, host int, step uint64) error {
	c := b.clients[host]
	keys, gradients := pushed(host, step)
	half := len(keys) / 2
	if _, err := c.Push(ctx, keys[:half], gradients[:half*stepsDim]); err != nil {
		return err
	}
	if _, err := c.Push(ctx, keys[half:], gradients[half*stepsDim:]); err != nil {
		return err
	}
	keys, sums, err := c.Reduce(ctx, step)
	if err != nil {
		return err
	}
	if err := judge(len(b.clients), step, keys, sums); err != nil {
		return fmt.Errorf("%w: %w", errWrongSums, err)
	}
	return nil
}

// steps takes steps of all hosts, and fails the test if one of them cannot.
func (b *stepsBed) steps(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var group errgroup.Group
	for host := range b.clients {
		group.Go(func() error {
			for i := range n {
				if err := b.step(ctx, host, b.next+uint64(i)); err != nil {
					return fmt.Errorf("host %d, step %d: %w", host+1, b.next+uint64(i), err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatalf("%v\nserver:\n%s", err, &b.server.err)
	}
	b.next += uint64(n)
}

// counters are the server's.
func (b *stepsBed) counters(t *testing.T) map[string]uint64 {
	t.Helper()
	c := b.run(t, theServer, "stats")
	if err := c.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &c.err)
	}
	var told struct {
		Processes []struct{ PS *ServerStatistics }
	}
	decodeLast(t, c.out.String(), &told)
	for _, p := range told.Processes {
		if p.PS != nil {
			return p.PS.Counters
		}
	}
	t.Fatalf("no server in %s", &c.out)
	return nil
}

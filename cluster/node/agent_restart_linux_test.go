// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/ps"
)

// restarts are the agents of a job, with a client each, and its server.
type restarts struct {
	t      *testing.T
	dir    string // of sockets
	file   string // the cluster's
	log    lines  // the server's
	store  *ps.Store
	server chan error
	stop   context.CancelFunc // of the server

	stopSwitch func()
	control    *breakable // of the switch

	agents []*runningAgent
	done   atomic.Bool // clients are to end
}

type runningAgent struct {
	end    context.CancelFunc
	ended  chan error
	rounds atomic.Int64 // of its client
}

const (
	restartHot  = 0 // keys that the clients push; 0 is hot
	restartCold = 1 << 40
)

// startHosts starts server and agents of a job whose clients call round until the test ends.
func startHosts(t *testing.T, n int, sync bool, change ...func(*cluster.Config)) *restarts {
	t.Helper()
	c := newCluster(t, n)
	c.Model.Optimizer, c.Model.LearningRate, c.Model.InitialAccumulator = "sgd", 1, 0
	c.Job.Sync = sync
	for _, f := range change {
		f(c)
	}
	h := &restarts{t: t, control: &breakable{}}
	h.stopSwitch = runSwitchOn(t, c, testLog(t), Machine{Listen: h.control.listen})
	h.file, h.server = filepath.Join(t.TempDir(), "cluster.yaml"), make(chan error, 1)
	var err error
	t.Cleanup(h.stopSwitch)
	if h.dir, err = os.MkdirTemp("", "libra-node-*"); err != nil { // the path of a socket is short
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(h.dir) })
	if err := c.Write(h.file); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(t.Context())
	t.Cleanup(h.stop)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: h.log.logger(), Machine: Machine{Store: func(s *ps.Store) { h.store = s }}})
		h.server <- err
	}()
	for i := range n {
		h.agents = append(h.agents, &runningAgent{})
		h.start(i, false)
	}
	return h
}

func (h *restarts) socket(i int) string { return filepath.Join(h.dir, fmt.Sprint(i)) }

// start starts an agent and waits until it serves.
func (h *restarts) start(i int, finish bool) {
	h.t.Helper()
	cfg := &cluster.Agent{Socket: h.socket(i), Jobs: []cluster.AgentJob{{Name: "rows", Cluster: h.file, Worker: uint16(i + 1), Finish: finish}}}
	a := h.agents[i]
	var ctx context.Context
	ctx, a.end = context.WithCancel(h.t.Context())
	a.ended = make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		a.ended <- runAgent(ctx, cfg, testLog(h.t), func() { close(ready) }, func() error { return nil })
	}()
	select {
	case <-ready:
	case err := <-a.ended:
		h.t.Fatalf("agent %d: %v", i, err)
	case err := <-h.server:
		h.t.Fatalf("the server has ended: %v", err)
	}
}

// restart ends an agent gracefully and starts it again, when the clients have gone on.
func (h *restarts) restart(i int, finish bool) {
	h.t.Helper()
	a := h.agents[i]
	a.end()
	if err := <-a.ended; err != nil {
		h.t.Fatalf("agent %d: %v", i, err)
	}
	h.start(i, finish)
	for i, a := range h.agents {
		for limit, before := time.Now().Add(time.Minute), a.rounds.Load(); a.rounds.Load() < before+3; time.Sleep(time.Millisecond) {
			if time.Now().After(limit) {
				h.t.Fatalf("the client of agent %d does not go on", i)
			}
		}
	}
}

// client calls round with a session until the clients are to end; it opens another one if its agent
// is stopped.
func (h *restarts) client(i int, round func(c *agentclient.Client) error) error {
	for {
		c, err := agentclient.Dial(h.t.Context(), h.socket(i), agentproto.Hello{Job: "rows", Parties: 1, BufferBytes: 1 << 16})
		if err != nil {
			if h.t.Context().Err() != nil {
				return err
			}
			time.Sleep(time.Millisecond) // its agent is being started
			continue
		}
		for err == nil && !h.done.Load() {
			if err = round(c); err == nil {
				h.agents[i].rounds.Add(1)
			}
		}
		_ = c.Close()
		if !errors.Is(err, agentproto.AgentClosed) {
			return err
		}
	}
}

// finish ends the job by its hosts, or by its server after them.
func (h *restarts) finish(interrupts bool) {
	h.t.Helper()
	for i, a := range h.agents {
		a.end()
		if err := <-a.ended; err != nil {
			h.t.Errorf("agent %d: %v", i, err)
		}
	}
	if interrupts {
		h.stop()
	}
	if err := <-h.server; (err != nil) != interrupts {
		h.t.Errorf("the server: %v", err)
	}
	if text := h.log.String(); strings.Contains(text, "lost a worker") {
		h.t.Errorf("the server has logged %s", text)
	}
}

// Host by host, agents are restarted while their clients push: the job goes on, every push that an
// agent has accepted counts once, and the server ends when all hosts have finished. A server that
// is stopped after its hosts has everything, too, even if no other harvest is due.
func TestAgentsAreRestartedUnderLoad(t *testing.T) {
	t.Run("finished", func(t *testing.T) { restartUnderLoad(t, true, time.Millisecond, nil) })
	t.Run("stopped", func(t *testing.T) { restartUnderLoad(t, false, time.Minute, nil) })
}

// restartUnderLoad restarts each of three agents twice. moves, if not nil, is called before each
// restart, the first of which is 0.
func restartUnderLoad(t *testing.T, finish bool, harvest time.Duration, moves func(h *restarts, restart int),
	change ...func(*cluster.Config)) {
	const agents = 3
	h := startHosts(t, agents, false, append(change, func(c *cluster.Config) { c.Job.Harvest = harvest })...)
	var accepted atomic.Int64
	var clients sync.WaitGroup
	for i := range agents {
		clients.Go(func() {
			grads := []float32{1, 0, 0, 0, 1, 0, 0, 0}
			before, counted := (*agentclient.Client)(nil), uint32(0)
			err := h.client(i, func(c *agentclient.Client) error {
				if c != before {
					before, counted = c, 0
				}
				_, err := c.Push(t.Context(), []uint64{restartHot, restartCold}, grads)
				if err == nil {
					err = c.Flush(t.Context())
				}
				// Two entries for each push: what the agent has read is accepted, even if it is not
				// answered.
				if read := (c.Memory().SQHead.Load() + 1) / 2; read > counted {
					accepted.Add(int64(read - counted))
					counted = read
				}
				return err
			})
			if err != nil {
				t.Errorf("the client of agent %d: %v", i, err)
			}
		})
	}
	for i := range 2 * agents {
		if moves != nil {
			moves(h, i)
		}
		h.restart(i%agents, i >= agents && finish)
	}
	h.done.Store(true)
	clients.Wait()
	h.finish(!finish)
	for _, key := range []uint64{restartHot, restartCold} {
		row := make([]float32, 4)
		h.store.Read([]uint64{key}, row)
		if want := -float32(accepted.Load()); row[0] != want {
			t.Errorf("key %d has %v, want %v", key, row[0], want)
		}
	}
}

// In a job whose workers take steps together the others wait for a host that is restarted. A step
// that it has left torn is dropped for all; the sums of all others are those of one push of each
// host.
func TestAgentsAreRestartedBetweenSteps(t *testing.T) { restartBetweenSteps(t, nil) }

// restartBetweenSteps is restartUnderLoad for a job whose workers take steps together.
func restartBetweenSteps(t *testing.T, moves func(h *restarts, restart int), change ...func(*cluster.Config)) {
	const agents = 3
	h := startHosts(t, agents, true, change...)
	var dropped, last atomic.Int64
	last.Store(1 << 62)
	var clients sync.WaitGroup
	for i := range agents {
		clients.Go(func() {
			grads := []float32{1, 0, 0, 0, 1, 0, 0, 0}
			var session *agentclient.Client
			var step uint64
			err := h.client(i, func(c *agentclient.Client) error {
				if session != c {
					session, step = c, c.Welcome().NextStep
				}
				if step >= uint64(last.Load()) {
					return errFinished
				}
				if _, err := c.Push(t.Context(), []uint64{restartHot, restartCold}, grads); err != nil {
					return err
				}
				keys, sums, err := c.Reduce(t.Context(), step)
				switch {
				case errors.Is(err, agentproto.Dropped):
					dropped.Add(1)
				case err != nil:
					return err
				case len(keys) != 2 || sums[0] != agents || sums[4] != agents:
					t.Errorf("the sums of step %d are %v of %v", step, sums, keys)
				}
				step++
				return nil
			})
			if !errors.Is(err, errFinished) {
				t.Errorf("the client of agent %d: %v", i, err)
			}
		})
	}
	for i := range 2 * agents {
		if moves != nil {
			moves(h, i)
		}
		h.restart(i%agents, i >= agents)
	}
	last.Store(h.agents[0].rounds.Load() + 200)
	clients.Wait()
	h.finish(false)
	t.Logf("%d ends of steps were answered with DROPPED", dropped.Load())
	if n := dropped.Load(); n > 2*agents*agents {
		t.Errorf("%d answers are DROPPED, want at most one step for each of %d restarts", n, 2*agents)
	}
}

var errFinished = errors.New("all steps are done")

// stopAgent ends an agent gracefully.
func (h *restarts) stopAgent(i int) {
	h.t.Helper()
	h.agents[i].end()
	if err := <-h.agents[i].ended; err != nil {
		h.t.Fatalf("agent %d: %v", i, err)
	}
}

func (h *restarts) dial(i int) *agentclient.Client {
	h.t.Helper()
	c, err := agentclient.Dial(h.t.Context(), h.socket(i), agentproto.Hello{Job: "rows", Parties: 1, BufferBytes: 1 << 16})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Conn().Close() })
	return c
}

// pushes pushes rows of a hot and a cold key, which are acknowledged.
func (h *restarts) pushes(c *agentclient.Client, g float32) {
	h.t.Helper()
	_, err := c.Push(h.t.Context(), []uint64{restartHot, restartCold}, []float32{g, 0, 0, 0, g, 0, 0, 0})
	if err == nil {
		err = c.Flush(h.t.Context())
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// both ends a step by a BARRIER of one client and a REDUCE of the other, and returns the sum, 0 if
// it is dropped.
func (h *restarts) both(one, two *agentclient.Client, step uint64) (sum float32, dropped bool) {
	h.t.Helper()
	first := make(chan error, 1)
	go func() { first <- one.Barrier(h.t.Context(), step) }()
	_, sums, err := two.Reduce(h.t.Context(), step)
	err1 := <-first
	if errors.Is(err, agentproto.Dropped) && errors.Is(err1, agentproto.Dropped) {
		return 0, true
	}
	if err != nil || err1 != nil || len(sums) != 8 || sums[0] != sums[4] {
		h.t.Fatalf("step %d: %v, %v, sums %v", step, err, err1, sums)
	}
	return sums[0], false
}

// A step that the clients of a host have left torn when its agent is stopped is dropped, and not
// committed, whether the host comes back or has finished, and also if it is the last one of the
// job.
func TestStoppedAgentLeavesATornStep(t *testing.T) {
	h := startHosts(t, 2, true)
	one, two := h.dial(0), h.dial(1)
	h.pushes(one, 1)
	h.stopAgent(0)
	h.start(0, true)
	one = h.dial(0)
	h.pushes(two, 10)
	if step := one.Welcome().NextStep; step != 0 {
		t.Fatalf("step %d is next", step)
	}
	if sum, dropped := h.both(one, two, 0); !dropped {
		t.Errorf("the sum of the torn step is %v", sum)
	}
	h.pushes(one, 2)
	h.pushes(two, 20)
	if sum, dropped := h.both(one, two, 1); dropped || sum != 22 {
		t.Errorf("the sum of the next step is %v, dropped: %v", sum, dropped)
	}

	h.pushes(one, 3)
	h.pushes(two, 30)
	h.stopAgent(0) // it has finished
	if _, _, err := two.Reduce(t.Context(), 2); !errors.Is(err, agentproto.Dropped) {
		t.Errorf("a step that one that has finished has torn: %v", err)
	}
	h.pushes(two, 40)
	if _, sums, err := two.Reduce(t.Context(), 3); err != nil || len(sums) != 8 || sums[0] != 40 {
		t.Errorf("the next one: %v, %v", sums, err)
	}
	h.stopAgent(1)
	h.start(1, true)
	two = h.dial(1)
	h.pushes(two, 50)
	h.stopAgent(1)
	if err := <-h.server; err != nil {
		t.Error(err)
	}
	row := make([]float32, 4)
	for _, key := range []uint64{restartHot, restartCold} {
		if h.store.Read([]uint64{key}, row); row[0] != -62 {
			t.Errorf("key %d has %v, want -62", key, row[0])
		}
	}
}

// In an asynchronous job, too, clients meet at barriers after a host was restarted, at the step
// that the server names.
func TestBarriersAfterARestart(t *testing.T) {
	h := startHosts(t, 2, false)
	one, two := h.dial(0), h.dial(1)
	both := func(step uint64) {
		t.Helper()
		first := make(chan error, 1)
		go func() { first <- one.Barrier(t.Context(), step) }()
		if err := errors.Join(two.Barrier(t.Context(), step), <-first); err != nil {
			t.Fatal(err)
		}
	}
	both(0)
	both(1)
	for i := range 2 {
		h.stopAgent(i)
		h.start(i, true)
	}
	one, two = h.dial(0), h.dial(1)
	if first, second := one.Welcome().NextStep, two.Welcome().NextStep; first != 2 || second != 2 {
		t.Fatalf("the next steps are %d and %d", first, second)
	}
	both(2)
	h.finish(false)
}

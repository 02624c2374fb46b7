// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// cluster is its servers and workers, all of one baseline.
type cluster struct {
	group   *proc.Group
	servers []*child.Child
	workers []*child.Child
	agent   []*child.Child // whose clients the workers are, if there is one
	folder  string         // folder of sockets, or ""
	sums    []*sys.Shared  // of each server
}

// heldRows returns the rows of all servers.
func (c *cluster) heldRows(dim int) (rows []row) {
	for _, s := range c.sums {
		rows = append(rows, heldRows(s.Mem, dim)...)
	}
	return rows
}

func (r *run) launchCluster(ctx context.Context, baseline string, workers int, harvest time.Duration) (_ *cluster,
	err error) {
	c := &cluster{group: proc.NewGroup(ctx, proc.Config{Grace: child.EndLimit})}
	defer experiment.Undo(&err, c.killAll)
	if throughAgent(baseline) || baseline == Logged {
		if c.folder, err = os.MkdirTemp("", "libra-bench-*"); err != nil {
			return nil, err
		}
	}
	for i := range max(1, r.servers) {
		sums, err := sys.NewShared("libra-bench-sums", sumsSize(r.work.keys, r.work.dim))
		if err != nil {
			return nil, err
		}
		c.sums = append(c.sums, sums)
		s, err := child.Launch(ctx, c.group, r.serverSpec(c, baseline, workers, i, harvest))
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, s)
	}
	if throughAgent(baseline) {
		if err := r.startAgent(ctx, c, baseline, workers); err != nil {
			return nil, err
		}
	}
	var specs []child.Spec
	for i := range workers {
		specs = append(specs, r.workerSpec(c, baseline, workers, i))
	}
	if c.workers, err = child.StartAll(ctx, c.group, specs); err != nil {
		return nil, err
	}
	return c, nil
}

// serverHost returns the host of a server: those after the first come after the workers'.
func (b *bed) serverHost(server int) int {
	if server == 0 {
		return 0
	}
	return b.workers + server
}

func (r *run) serverSpec(of *cluster, baseline string, workers, server int, harvest time.Duration) child.Spec {
	host := r.bed.serverHost(server)
	s := child.Spec{Name: fmt.Sprintf("%s server %d", baseline, server), Start: r.bed.net.Host(host).Start,
		Files: []*os.File{r.load.File, of.sums[server].File}}
	if !ours(baseline) {
		s.Command = r.keyValueCommand("server", 0, strings.TrimPrefix(baseline, "zeromq-"))
		return s
	}
	if baseline == SwitchML {
		s.Command, s.CPU, s.Config = r.cfg.ChildCommand, new(cpu(0)), childConfig{Dense: &denseConfig{}}
		return s
	}
	c := serverConfig{Index: server, Harvest: harvest}
	if baseline == Logged {
		c.Marks = of.folder
	}
	hosts := workers
	if throughAgent(baseline) {
		hosts = 1
		workers++ // the agent is a process, too
	}
	for i := range hosts {
		c.Workers = append(c.Workers, netip.AddrPortFrom(r.bed.net.Host(i+1).IP, wire.DefaultPort))
	}
	s.Command, s.CPU, s.Config = r.cfg.ChildCommand, new(cpu(server)),
		childConfig{HostConfig: r.hostConfig(host, server, workers+max(1, r.servers)), Server: &c}
	return s
}

func (r *run) workerSpec(c *cluster, baseline string, workers, worker int) child.Spec {
	s := child.Spec{Name: fmt.Sprintf("%s worker %d", baseline, worker), Files: []*os.File{r.load.File}}
	if !ours(baseline) {
		// The loopback device carries 64 KiB segments without a switch in between.
		s.Start = r.bed.net.Host(0).Start
		s.Command = r.keyValueCommand("worker", worker+1, strconv.Itoa(worker))
		return s
	}
	s.Command = r.cfg.ChildCommand
	cfg := workerConfig{Number: worker, Unprepared: baseline == Unprepared || baseline == AgentUnprepared}
	if throughAgent(baseline) {
		cfg.Socket = c.socketPath()
		s.CPU, s.Config = new(cpu(worker+2)), childConfig{Worker: &cfg}
		return s
	}
	s.CPU, s.Start = new(cpu(worker+1)), r.bed.net.Host(worker+1).Start
	host := r.hostConfig(worker+1, worker+1, workers+max(1, r.servers))
	if baseline == Logged {
		cfg.Marks = c.folder
	}
	if baseline == Lossy {
		host.Faults = link.Faults{Drop: r.cfg.Loss, Seed: uint64(worker + 1)}
	}
	config := childConfig{HostConfig: host, ServerEnd: harness.HostConfigOf(r.bed.net, 0).Self, Worker: &cfg}
	for i := 1; i < r.servers; i++ {
		config.MoreServers = append(config.MoreServers, harness.HostConfigOf(r.bed.net, r.bed.serverHost(i)).Self)
	}
	if baseline == SwitchML {
		config.Worker, config.Dense = nil, &denseConfig{Workers: workers, Number: worker, Slots: r.slots}
	}
	s.Config = config
	return s
}

// hostConfig returns what a process, of several, needs to know of its host on the bed. If it has to
// share its CPU with another of them it does not spin: what it would wait for may well wait for the
// CPU. In the study of scale time that is only waited would count as a role's.
func (r *run) hostConfig(host, process, processes int) harness.HostConfig {
	p := harness.HostConfigOf(r.bed.net, host)
	p.MTU = wire.MaxMTU
	if cpus := runtime.NumCPU(); process >= cpus || process+cpus < processes || r.cfg.Scale {
		p.Spin = -1
	}
	if r.cfg.Scale {
		p.Look = -1
	}
	return p
}

const zmqPort = 7701

// keyValueCommand returns the command of a process of the C++ program.
func (r *run) keyValueCommand(role string, process int, args ...string) []string {
	return r.keyValue.Command(append([]string{role, strconv.Itoa(cpu(process)), strconv.Itoa(zmqPort)}, args...)...)
}

func askAll(ctx context.Context, processes []*child.Child, op string) ([]mark, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, child.EndLimit, fmt.Errorf("no answer within %v", child.EndLimit))
	defer cancel()
	return child.AskAll[mark](ctx, processes, op)
}

// finishWorkers ends the workers, then the servers, and returns how often each worker
// pushed in all. If the workers are ours, the first one is asked for its round trip before.
func (c *cluster) finishWorkers(ctx context.Context, ours bool) (pushes []uint64, trip time.Duration, err error) {
	marks, err := askAll(ctx, c.workers, opStop)
	if err == nil && ours {
		var told []mark
		told, err = askAll(ctx, c.workers[:1], opTrips)
		marks[0], trip = told[0], told[0].Trip
	}
	if err != nil {
		return nil, 0, err
	}
	// Workers of rounds leave together: the lowest one waits for the others.
	if err := child.StopAll(ctx, c.workers); err != nil {
		return nil, 0, err
	}
	if err := child.StopAll(ctx, c.agent); err != nil {
		return nil, 0, err
	}
	if _, err := askAll(ctx, c.servers, opStop); err != nil {
		return nil, 0, err
	}
	if err := child.StopAll(ctx, c.servers); err != nil {
		return nil, 0, err
	}
	for _, m := range marks {
		pushes = append(pushes, m.Pushes)
	}
	return pushes, trip, c.group.Wait()
}

func (c *cluster) killAll() error {
	_ = c.group.Stop() // what failed first has been reported
	err := experiment.Close(c.sums...)
	if c.folder != "" {
		err = errors.Join(err, os.RemoveAll(c.folder))
	}
	return err
}

// bed is the network that a run takes place in: host 0 is the first parameter server's, host i+1
// that of worker i; the other servers' come last. The switch's ports carry the XDP aggregator for
// the whole run; jobs come and go.
type bed struct {
	net        *testbed.Bed
	workers    int // hosts of workers
	aggregator *bpf.Aggregator
	statistics io.Closer
	endControl func()   // the control service; nil before it has begun
	threads    [][2]int // threads that receive at each host and at its port; nil unless roles are told apart
}

// newBed makes a bed. Where roles are to be told apart, frames are received by threads of each
// interface, instead of by the sender's.
func newBed(ctx context.Context, workers, servers int, apart bool) (_ *bed, err error) {
	network, err := testbed.New(ctx, testbed.Config{Hosts: workers + servers, MTU: wire.MaxMTU, StaticARP: true,
		ThreadedNAPI: apart})
	if err != nil {
		return nil, err
	}
	b := &bed{net: network, workers: workers}
	defer experiment.Undo(&err, b.Close)
	// The kernel counts the run time of BPF programs as long as the descriptor is
	// open: the setting is back to what it was when this process is gone, however it ends.
	if b.statistics, err = ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME)); err != nil {
		return nil, fmt.Errorf("push: count the run time of BPF programs (needs Linux 5.8): %w", err)
	}
	if b.aggregator, err = harness.OpenSwitch(network); err != nil {
		return nil, err
	}
	for i := 0; apart && i <= workers; i++ {
		threads, err := harness.NAPIThreads(network, i)
		if err != nil {
			return nil, fmt.Errorf("push: %w", err)
		}
		b.threads = append(b.threads, threads)
	}
	b.endControl, err = harness.ServeControl(network, b.aggregator)
	return b, err
}

// Close removes the bed.
func (b *bed) Close() error {
	if b.endControl != nil {
		b.endControl()
	}
	err := experiment.Close(b.aggregator)
	if b.statistics != nil {
		err = errors.Join(err, b.statistics.Close())
	}
	return errors.Join(err, b.net.Close())
}

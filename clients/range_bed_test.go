// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/packer"
)

// rangeBed is a switch and the agents of hosts, each a process of its own. All have a range of jobs
// without a parameter server.
type rangeBed struct {
	t      *testing.T
	dir    string
	libra  string
	sw     *exec.Cmd
	agents []*exec.Cmd
	logs   map[*exec.Cmd]*strings.Builder
	net    *testbed.Bed // nil for UDP sockets of this host
	hot    *packer.HotSet
	more   []string      // ranges besides hot
	most   time.Duration // that a process runs; 0: limit
}

// rangeRows are the hot rows, with the keys 7, 10, 13 and so on.
const rangeRows = 300

// newRangeBed starts a switch and agents, each with jobs hot/0 to hot/(jobs-1).
func newRangeBed(t *testing.T, hosts, jobs int) *rangeBed {
	t.Helper()
	b := &rangeBed{t: t, agents: make([]*exec.Cmd, hosts), hot: rangeHotSet(t)}
	b.startUDP(jobs)
	return b
}

// rangeHotSet returns the hot set of most tests: its ranks are not in the order of keys.
func rangeHotSet(t *testing.T) *packer.HotSet {
	var keys []uint64
	for i := range rangeRows {
		keys = append(keys, uint64(7+3*((i*7+3)%rangeRows)))
	}
	hot, err := packer.NewHotSet(dim, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	return hot
}

// startUDP starts everything on UDP sockets of this host.
func (b *rangeBed) startUDP(jobs int) {
	b.t.Helper()
	net16 := rand.Uint32N(1<<15) + 1<<8
	address := func(host int) netip.Addr {
		return netip.AddrFrom4([4]byte{127, byte(net16 >> 8), byte(net16), byte(host)})
	}
	b.startAll(jobs, func(ranged int) string { // each range has addresses of its own
		cluster := fmt.Sprintf("backend: udp\nswitch: {address: %v, control: '%v:7700'}\nworkers:\n", address(1), address(1))
		for i := range b.agents {
			cluster += fmt.Sprintf("  - {id: %d, address: %v}\n", i+1, address(i+2+16*ranged))
		}
		return cluster
	})
}

// newRangeBedOverAFXDP is newRangeBed on a network of namespaces with a switch of this machine's
// kernel, for one job: a link takes the only interface of its host.
func newRangeBedOverAFXDP(t *testing.T, hosts int) *rangeBed {
	t.Helper()
	needRoot(t)
	b := &rangeBed{t: t, agents: make([]*exec.Cmd, hosts), net: bedtest.New(t, testbed.Config{Hosts: hosts}), hot: rangeHotSet(t)}
	var ports []string
	workers := ""
	for i, h := range b.net.Hosts() {
		ports = append(ports, h.PortName)
		workers += fmt.Sprintf("  - {id: %d, address: %v, interface: %s}\n", i+1, h.IP, h.Interface)
	}
	sw := b.net.Switch().IP
	b.startAll(1, func(int) string {
		return fmt.Sprintf("backend: afxdp\nswitch: {address: %v, control: '%v:7700', interfaces: [%s]}\nworkers:\n%s", sw, sw,
			strings.Join(ports, ", "), workers)
	})
	return b
}

// startAll starts the switch and the agents. cluster returns the cluster file of a range, without
// its job.
func (b *rangeBed) startAll(jobs int, cluster func(ranged int) string) {
	b.t.Helper()
	t := b.t
	build(t, plain)
	b.dir = openDir(t)
	var err error
	if b.libra, err = buildLibra(); err != nil {
		t.Fatal(err)
	}
	if err := packer.SaveHotSet(b.path("hot.libra"), b.hot); err != nil {
		t.Fatal(err)
	}
	for i := range b.agents {
		workers := strings.Join(slices.Repeat([]string{strconv.Itoa(i + 1)}, jobs), ", ")
		text := fmt.Sprintf("socket: %s\njobs:\n  - {name: hot, cluster: %s, workers: [%s]}\n", b.socket(i), b.path("cluster.yaml"), workers)
		for _, name := range b.more {
			text += fmt.Sprintf("  - {name: %s, cluster: %s, workers: [%s]}\n", name, b.path(name+".yaml"), workers)
		}
		b.write(fmt.Sprintf("agent-%d.yaml", i), text)
	}
	for i, name := range append([]string{"cluster"}, b.more...) {
		b.write(name+".yaml", cluster(i)+fmt.Sprintf("job: {id: %d, hot_set: %s, exponent: -30}\n", 20+100*i, b.path("hot.libra"))+
			"faults: {loss: 0.01, duplicate: 0.01, reorder: 0.01, seed: 5}\n")
	}
	b.startSwitch()
	for i := range b.agents {
		b.startAgent(i)
	}
}

func (b *rangeBed) path(name string) string { return filepath.Join(b.dir, name) }
func (b *rangeBed) socket(host int) string  { return b.path(fmt.Sprintf("socket-%d", host)) }
func (b *rangeBed) startSwitch()            { b.sw = b.start("switch", "cluster.yaml", (*testbed.Bed).Switch) }
func (b *rangeBed) startAgent(host int) {
	b.t.Helper()
	b.agents[host] = b.start("agent", fmt.Sprintf("agent-%d.yaml", host), func(net *testbed.Bed) *testbed.Node { return net.Host(host) })
}

func (b *rangeBed) write(name, content string) {
	if err := os.WriteFile(b.path(name), []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// start starts a process of Libra, and waits until it is ready. at is its place in the network.
func (b *rangeBed) start(command, config string, at func(*testbed.Bed) *testbed.Node) *exec.Cmd {
	b.t.Helper()
	cmd := within(b.t, cmp.Or(b.most, limit), b.libra, command, "--config", b.path(config), "--json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	var log strings.Builder
	cmd.Stderr = &log
	if b.logs == nil {
		b.logs = map[*exec.Cmd]*strings.Builder{}
	}
	b.logs[cmd] = &log
	if b.net == nil {
		err = cmd.Start()
	} else {
		err = at(b.net).Start(cmd)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if b.t.Failed() {
			b.t.Logf("%s %s:\n%s", command, config, log.String())
		}
	})
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"ready"`) {
		_ = cmd.Wait()
		b.t.Fatalf("%s %s is not ready: %q\n%s", command, config, lines.Text(), log.String())
	}
	return cmd
}

// rangeProgram is a running c/test/range.c.
type rangeProgram struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	log strings.Builder
}

// program starts a program on a host.
func (b *rangeBed) program(host int, args ...string) *rangeProgram {
	b.t.Helper()
	p := &rangeProgram{cmd: program(b.t, plain, "range", args...)}
	p.cmd.Env = append(os.Environ(), "LIBRA_AGENT="+b.socket(host))
	p.cmd.Stderr = &p.log
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		b.t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewScanner(out)
	b.t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() })
	return p
}

// own starts an owner, and waits until it owns the job.
func (b *rangeBed) own(host int, job string) *rangeProgram {
	b.t.Helper()
	p := b.program(host, "own", job)
	b.line(p, "owns")
	return p
}

func (b *rangeBed) push(host int, job string, number, pushes int) *rangeProgram {
	return b.program(host, "push", job, strconv.Itoa(number), strconv.Itoa(pushes))
}

// line reads a line of output.
func (b *rangeBed) line(p *rangeProgram, want string) {
	b.t.Helper()
	if !p.out.Scan() || p.out.Text() != want {
		b.t.Fatalf("%v has printed %q, want %q\n%s", p.cmd.Args, p.out.Text(), want, p.log.String())
	}
}

// acknowledged reads until a pusher has at least n acknowledged pushes, or ends. last is what else
// it prints.
func (p *rangeProgram) acknowledged(n int) (got int, last string) {
	for got < n && p.out.Scan() {
		m, err := strconv.Atoi(p.out.Text())
		if err != nil {
			return got, p.out.Text()
		}
		got = m
	}
	return got, ""
}

// await waits until a pusher has at least n acknowledged pushes.
func (b *rangeBed) await(p *rangeProgram, n int) {
	b.t.Helper()
	if got, last := p.acknowledged(n); got < n {
		b.t.Fatalf("%v has %d acknowledged pushes, want %d, then it prints %q\n%s", p.cmd.Args, got, n, last, p.log.String())
	}
}

// harvestNow makes an owner take a harvest at once.
func (b *rangeBed) harvestNow(p *rangeProgram) {
	b.t.Helper()
	if _, err := p.in.Write([]byte("\n")); err != nil {
		b.t.Fatal(err)
	}
	b.line(p, "now")
}

// sums ends an owner, and returns the sums that it has taken, by row.
func (b *rangeBed) sums(p *rangeProgram) (sums [rangeRows][dim]float64) {
	b.t.Helper()
	_ = p.in.Close()
	for i := range sums {
		var key uint64
		if !p.out.Scan() {
			b.t.Fatalf("an owner has printed %d rows\n%s", i, p.log.String())
		}
		if _, err := fmt.Sscan(p.out.Text(), &key, &sums[i][0], &sums[i][1]); err != nil || key != uint64(7+3*i) {
			b.t.Fatalf("an owner has printed %q: %v", p.out.Text(), err)
		}
	}
	if err := p.cmd.Wait(); err != nil {
		b.t.Errorf("an owner has ended with %v\n%s", err, p.log.String())
	}
	return sums
}

// added adds the first n pushes of a pusher.
func added(sums *[rangeRows][dim]float64, number, n int) {
	for push := range n {
		for i := range 40 {
			row := &sums[(push*7+i*11)%rangeRows]
			row[0] += float64(number)
			row[1] += float64(push)
		}
	}
}

// noClients waits until an agent holds nothing of clients.
func (b *rangeBed) noClients(host int) {
	b.t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		stats, err := agent.Ask(b.t.Context(), b.socket(host))
		if err == nil && !slices.ContainsFunc(stats.Jobs, func(j agent.JobStats) bool { return j.Memory != 0 || len(j.Clients) > 0 }) {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("host %d: the agent still has %+v: %v", host, stats, err)
		}
	}
}

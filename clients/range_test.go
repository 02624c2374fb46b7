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
	"syscall"
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

// newRangeBedOverAFXDP is newRangeBed on a network of namespaces with a switch of this machine's kernel, for
// one job: a link takes the only interface of its host.
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

// startAll starts the switch and the agents. cluster returns the cluster file of a range, without its job.
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

// acknowledged reads until a pusher has at least n acknowledged pushes, or ends. last is what else it prints.
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

// C programs own two jobs, on two hosts, and C programs on both hosts push to both, while frames are lost,
// duplicated and reordered: the owners get the exact sums.
func TestOwnersInC(t *testing.T) {
	t.Parallel()
	const pushes = 400
	b := newRangeBed(t, 2, 2)
	owners := []*rangeProgram{b.own(0, "hot/0"), b.own(1, "hot/1")}
	var want [2][rangeRows][dim]float64
	var pushers []*rangeProgram
	for job := range owners {
		for i := range 4 {
			number := 1 + i + 10*job
			pushers = append(pushers, b.push(i%2, fmt.Sprintf("hot/%d", job), number, pushes))
			added(&want[job], number, pushes)
		}
	}
	for _, p := range pushers {
		if n, last := p.acknowledged(pushes / 2); n < pushes/2 {
			t.Fatalf("a pusher has %d acknowledged pushes, then %q\n%s", n, last, p.log.String())
		}
	}
	for _, o := range owners {
		b.harvestNow(o)
	}
	for _, p := range pushers {
		n, last := p.acknowledged(pushes)
		if err := p.cmd.Wait(); n != pushes || err != nil {
			t.Fatalf("a pusher has %d acknowledged pushes, then %q: %v\n%s", n, last, err, p.log.String())
		}
	}
	for job, o := range owners {
		if got := b.sums(o); got != want[job] {
			t.Errorf("job %d: the sums are %v, want %v", job, got, want[job])
		}
	}
}

// The same over AF_XDP. The links, which the agents opened at their start, serve one owner after the other.
func TestOwnersOverAFXDP(t *testing.T) {
	t.Parallel()
	const pushes = 200
	b := newRangeBedOverAFXDP(t, 2)
	for life := range 3 {
		owner := b.own(life%2, "hot/0")
		var want [rangeRows][dim]float64
		var pushers []*rangeProgram
		for i := range 4 {
			pushers = append(pushers, b.push(i%2, "hot/0", 1+life+i, pushes))
			added(&want, 1+life+i, pushes)
		}
		for _, p := range pushers {
			if n, last := p.acknowledged(pushes); n != pushes {
				t.Fatalf("a pusher has %d acknowledged pushes, then %q\n%s", n, last, p.log.String())
			}
		}
		if got := b.sums(owner); got != want {
			t.Errorf("owner %d has the sums %v, want %v", life, got, want)
		}
	}
}

// A Python program owns a job and pushes to it. Its buffers hold a part of a harvest only.
func TestOwnerInPython(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 1, 2)
	run(t, python(t, &bed{socket: b.socket(0)}, "-c", `
import time, numpy as np, libra
try:
    libra.Session("hot/1")
    assert False
except libra.JobNotOpen as e:
    assert e.name == "NOT_OPEN", e.name
with libra.Session("hot/0", owner=True, buffer_bytes=4096) as owner, libra.Session("hot/0") as pusher:
    keys = np.arange(7, 7 + 3 * 300, 3)
    for n in (1, 2):
        pusher.push(keys, np.full((300, 2), n, np.float32))
        pusher.flush()
        got, sums = owner.harvest(now=n == 2)
        assert got.tolist() == keys.tolist() and (sums == n).all(), (got, sums)
    got, sums = owner.harvest(now=True)
    assert got.shape == (0,) and sums.shape == (0, 2)
    for call in (lambda: pusher.pull(keys), lambda: pusher.push([7, 8], np.ones((2, 2), np.float32)) or pusher.flush()):
        try:
            call()
            assert False
        except libra.NoServer as e:
            assert e.key in (None, 8), e.key
    try:
        pusher.harvest()
        assert False
    except libra.Error as e:
        assert e.name == "NOT_OWNER" and "options.owner" in str(e), e
    owner.close()
    try:
        while True:
            pusher.flush()
    except libra.JobEnded:
        pusher.abandon()
`))
}

// A pusher that is killed is in the sums with all of its acknowledged pushes and perhaps some that follow, each
// wholly; others are not affected, and its agent keeps nothing of it.
func TestKilledPusher(t *testing.T) {
	t.Parallel()
	const pushes = 3000
	b := newRangeBed(t, 2, 1)
	owner := b.own(0, "hot/0")
	other := b.push(1, "hot/0", 1<<12, pushes)
	for kill := range 5 {
		p := b.push(kill%2, "hot/0", 1, 1<<30)
		before, _ := p.acknowledged(8 + 40*kill)
		_ = p.cmd.Process.Kill()
		more, _ := p.acknowledged(1 << 30)
		_ = p.cmd.Wait()
		t.Logf("%d pushes were acknowledged", max(before, more))
	}
	if n, last := other.acknowledged(pushes); n != pushes {
		t.Fatalf("the other pusher has %d acknowledged pushes, then %q\n%s", n, last, other.log.String())
	}
	sums := b.sums(owner)
	// The other's part of a sum is a multiple of 1<<12, and known.
	var want [rangeRows][dim]float64
	added(&want, 1<<12, pushes)
	whole := 0.
	for i := range sums {
		whole += sums[i][0] - want[i][0]
	}
	if whole <= 0 || int(whole)%40 != 0 {
		t.Errorf("%v rows of killed pushers are in the sums: want whole pushes of 40", whole)
	}
	for host := range 2 {
		b.noClients(host)
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

// With its owner, killed or not, a job ends for all, and another owner may have it at once, with sums that begin
// anew.
func TestKilledOwner(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, 1)
	for _, host := range []int{0, 0, 1} {
		owner := b.own(host, "hot/0")
		pushers := []*rangeProgram{b.push(0, "hot/0", 1, 1<<30), b.push(1, "hot/0", 1, 1<<30)}
		for _, p := range pushers {
			p.acknowledged(16)
		}
		_ = owner.cmd.Process.Kill()
		for _, p := range pushers {
			if _, last := p.acknowledged(1 << 30); last != "JOB_ENDED" {
				t.Errorf("when the owner was killed, a pusher has printed %q\n%s", last, p.log.String())
			}
		}
	}
	const pushes = 50
	owner, pusher := b.own(1, "hot/0"), b.push(0, "hot/0", 3, pushes)
	if n, last := pusher.acknowledged(pushes); n != pushes {
		t.Fatalf("%d pushes are acknowledged, then %q\n%s", n, last, pusher.log.String())
	}
	var want [rangeRows][dim]float64
	added(&want, 3, pushes)
	if got := b.sums(owner); got != want {
		t.Errorf("the next owner has the sums %v, want %v", got, want)
	}
}

// The job of an owner whose agent is killed ends with its lease. A pusher whose agent is killed has lost nothing
// that was acknowledged, and its host comes back.
func TestKilledAgentOfRange(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, 1)
	owner := b.own(0, "hot/0")
	kill := func(host int) {
		_ = b.agents[host].Process.Kill()
		_ = b.agents[host].Wait()
		b.startAgent(host)
	}
	first := b.push(1, "hot/0", 1, 1<<30)
	before, _ := first.acknowledged(80)
	kill(1)
	more, last := first.acknowledged(1 << 30)
	if last != "AGENT_DIED" {
		t.Errorf("when its agent was killed, a pusher has printed %q\n%s", last, first.log.String())
	}
	const pushes = 100
	second := b.push(1, "hot/0", 1<<20, pushes)
	if n, last := second.acknowledged(pushes); n != pushes {
		t.Fatalf("after its agent's restart a pusher has %d acknowledged pushes, then %q\n%s", n, last, second.log.String())
	}
	b.harvestNow(owner)
	sums := b.sums(owner)
	var least, later [rangeRows][dim]float64
	added(&least, 1, max(before, more))
	added(&later, 1<<20, pushes)
	for i := range sums {
		if sums[i][0] < least[i][0]+later[i][0] {
			t.Errorf("row %d has the sum %v; %v and %v were acknowledged", i, sums[i][0], least[i][0], later[i][0])
		}
	}

	owner = b.own(0, "hot/0")
	pusher := b.push(1, "hot/0", 1, 1<<30)
	pusher.acknowledged(16)
	kill(0)
	if !owner.out.Scan() || owner.out.Text() != "AGENT_DIED" {
		t.Errorf("when its agent was killed, the owner has printed %q\n%s", owner.out.Text(), owner.log.String())
	}
	if _, last := pusher.acknowledged(1 << 30); last != "JOB_ENDED" {
		t.Errorf("when the owner's agent was killed, a pusher has printed %q\n%s", last, pusher.log.String())
	}
	owner = b.own(0, "hot/0") // once the lease has ended
	again := b.push(1, "hot/0", 1, pushes)
	if n, last := again.acknowledged(pushes); n != pushes {
		t.Fatalf("%d pushes are acknowledged, then %q\n%s", n, last, again.log.String())
	}
	b.sums(owner)
	for _, a := range b.agents {
		if err := a.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := a.Wait(); err != nil {
			t.Errorf("an interrupted agent has ended with %v", err)
		}
	}
}

// The death of the switch ends all sessions of its jobs, and not as that of an owner does, whether or not another
// switch comes soon. The agents go on, for other owners.
func TestKilledSwitchOfRange(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, 1)
	for _, soon := range []bool{true, false} {
		owner := b.own(0, "hot/0")
		programs := []*rangeProgram{b.push(0, "hot/0", 1, 1<<30), b.push(1, "hot/0", 1, 1<<30)}
		for _, p := range programs {
			p.acknowledged(16)
		}
		_ = b.sw.Process.Kill()
		_ = b.sw.Wait()
		if soon {
			b.startSwitch()
		}
		for _, p := range append(programs, owner) {
			_, last := p.acknowledged(1 << 30)
			if last != "AGGREGATOR_LOST" && (!soon || last != "JOB_ENDED" || p == owner) { // the new aggregator may refuse a push first
				t.Errorf("when the switch was killed, a program has printed %q\n%s", last, p.log.String())
			}
		}
		if !soon {
			b.startSwitch()
		}
		const pushes = 50
		owner, pusher := b.own(1, "hot/0"), b.push(0, "hot/0", 3, pushes)
		if n, last := pusher.acknowledged(pushes); n != pushes {
			t.Fatalf("%d pushes are acknowledged, then %q\n%s", n, last, pusher.log.String())
		}
		var want [rangeRows][dim]float64
		added(&want, 3, pushes)
		if got := b.sums(owner); got != want {
			t.Errorf("the next owner has the sums %v, want %v", got, want)
		}
		for host := range b.agents {
			b.noClients(host)
		}
	}
}

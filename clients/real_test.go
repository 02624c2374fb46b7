// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/ps"
)

const nobody = 65534

// real returns a command of c/test/real.c for a bed's agent.
func (b *bed) real(t testing.TB, v variant, what string) *exec.Cmd {
	t.Helper()
	cmd := program(t, v, "real", what)
	cmd.Env = append(os.Environ(), "LIBRA_AGENT="+b.socket)
	return cmd
}

// expected returns the weights after the pushes of c/test/real.c's push_all.
func expected(t testing.TB) *ps.Store {
	t.Helper()
	s, err := ps.New(ps.Config{Dim: dim, Exp: ps.DefaultExp, Optimizer: config(dim, 1).Optimizer, Init: config(dim, 1).Init})
	if err != nil {
		t.Fatal(err)
	}
	push := func(seed, n, first int) {
		var keys []uint64
		var gradients []float32
		for i := range n {
			keys = append(keys, uint64((seed*31+i*7)%100))
			for j := range dim {
				gradients = append(gradients, float32(seed+i+1)/float32(3*i+j+7))
			}
		}
		if err := s.Push(keys[:first], gradients[:first*dim]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 60 {
		push(i, 5+i, 5+i)
	}
	for range 20 {
		push(3, 2000, 2000)
	}
	for range 30 {
		push(3, 2000, 300)
	}
	for i := range 20 {
		push(i+1000, 100, 100)
	}
	s.Commit()
	return s
}

// TestSums compares the weights that a C program has pulled with those of the same pushes in one
// store, bit for bit. The program is an ordinary one, or has sanitizers, or runs as an unprivileged
// user in a network namespace without interfaces.
func TestSums(t *testing.T) {
	t.Parallel()
	want := expected(t)
	keys, rows := make([]uint64, 100), make([]float32, 100*dim)
	for k := range keys {
		keys[k] = uint64(k)
	}
	want.Read(keys, rows)
	var bits strings.Builder
	for _, w := range rows {
		fmt.Fprintf(&bits, "%08x\n", math.Float32bits(w))
	}
	for _, c := range []struct {
		name string
		variant
		change func(*testing.T, *exec.Cmd)
	}{
		{"plain", plain, nil},
		{"address", address, nil},
		{"thread", thread, nil},
		{"nobody", plain, func(t *testing.T, cmd *exec.Cmd) {
			if os.Getuid() != 0 {
				leaveOut(t, "becoming nobody in an empty network namespace needs root: this process's own user shows the same")
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, jobName, config(dim, 1))
			cmd := b.real(t, c.variant, "push")
			if c.change != nil {
				c.change(t, cmd)
			}
			if got := run(t, cmd); got != bits.String() {
				t.Errorf("the weights are\n%s\nwant\n%s", got, bits.String())
			}
			b.idle(t)
		})
	}
}

// TestClosesAmongSignals ends sessions while a timer interrupts the client.
func TestClosesAmongSignals(t *testing.T) {
	t.Parallel()
	b := newBed(t, jobName, config(dim, 1))
	run(t, b.real(t, plain, "signals"))
	b.idle(t)
}

var kills = flag.Int("kills", 5, "how many clients are killed beside three others")

// pusher is a process that pushes until it is killed, or until its standard input ends.
type pusher struct {
	cmd          *exec.Cmd
	first        uint64 // of its keys
	end          io.Closer
	out          *bufio.Scanner
	acknowledged int // number of the last acknowledged push, or -1
}

func (b *bed) pusher(t *testing.T, number int) *pusher {
	t.Helper()
	p := &pusher{cmd: b.real(t, plain, "killed"), first: uint64(1+number) << 24, acknowledged: -1}
	p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("LIBRA_FIRST=%d", p.first))
	p.cmd.Stderr = os.Stderr
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, p.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	p.end, p.out = in, bufio.NewScanner(out)
	return p
}

// read reads the pusher's output until a push is acknowledged, or it ends.
func (p *pusher) read(t *testing.T, until int) {
	t.Helper()
	for p.acknowledged < until && p.out.Scan() {
		n, err := strconv.Atoi(p.out.Text())
		if err != nil { // truncated by its death
			return
		}
		p.acknowledged = n
	}
}

// pushed returns how many pushes of a pusher are in the weights, each wholly, and adds their hot
// rows to those of others.
func (p *pusher) pushed(t *testing.T, b *bed, hot []float32) (whole int) {
	t.Helper()
	const beyond = 1000 // more than can be in flight
	n := p.acknowledged + 1 + beyond
	keys, rows := make([]uint64, 4*n), make([]float32, 4*n*dim)
	for i := range keys {
		keys[i] = p.first + uint64(i)
	}
	if err := b.cluster.Do(t.Context(), func(s *ps.Store) { s.Read(keys, rows) }); err != nil {
		t.Fatal(err)
	}
	round(rows)
	for i := range n {
		push := rows[4*dim*i:][:4*dim]
		for _, w := range push {
			if w != push[0] || w != 0 && w != -1 {
				t.Fatalf("push %d is there in part, or twice: weights %v", i, push)
			}
		}
		switch {
		case push[0] != 0:
			whole++
			hot[i%hotRows]--
		case i <= p.acknowledged:
			t.Errorf("push %d was acknowledged, and is missing", i)
		}
	}
	return whole
}

// mappings counts the clients' memories in this process.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:libra")
}

// TestKilledClients kills one of four clients repeatedly, at random moments (-args -kills 100).
// Each of its pushes is applied wholly or not at all, acknowledged ones are applied, also those of
// the other three, and the agent frees the memory of the killed one.
func TestKilledClients(t *testing.T) {
	b := newBed(t, jobName, config(dim, 1))
	var others, dead []*pusher
	for i := range 3 {
		others = append(others, b.pusher(t, i))
		others[i].read(t, 0)
	}
	for i := range *kills {
		p := b.pusher(t, len(others)+i)
		p.read(t, i%7*i%300)
		_ = p.cmd.Process.Kill()
		p.read(t, math.MaxInt)
		_ = p.cmd.Wait()
		dead = append(dead, p)
		for _, other := range others {
			other.read(t, other.acknowledged+1) // they continue
		}
	}
	for end := time.Now().Add(limit); len(b.agent.Stats().Jobs[0].Clients) > len(others); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the agent still has clients that were killed")
		}
	}
	for end := time.Now().Add(limit); mappings(t) != len(others); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d memories of clients are mapped, want those of the %d that live", mappings(t), len(others))
		}
	}
	for _, p := range others {
		go p.end.Close()
		p.read(t, math.MaxInt)
		if err := p.cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	b.idle(t)
	if n := mappings(t); n > 0 {
		t.Errorf("%d memories of clients are left", n)
	}
	if err := b.cluster.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	hot, killed := make([]float32, hotRows), 0
	for _, p := range dead {
		n := p.pushed(t, b, hot)
		killed += n
		if n == 0 || p.acknowledged < 0 {
			t.Errorf("%d pushes of a dead client are there, the last acknowledged is %d", n, p.acknowledged)
		}
	}
	for i, p := range others {
		if n := p.pushed(t, b, hot); n != p.acknowledged+1 {
			t.Errorf("client %d: %d pushes are there, want %d", i, n, p.acknowledged+1)
		}
	}
	keys, rows := config(dim, 1).Hot, make([]float32, hotRows*dim)
	if err := b.cluster.Do(t.Context(), func(s *ps.Store) { s.Read(keys, rows) }); err != nil {
		t.Fatal(err)
	}
	for i, w := range round(rows) {
		if w != hot[i/dim] {
			t.Errorf("hot row %d has %v, but its pushes' cold rows are there %v times", i/dim, w, -hot[i/dim])
		}
	}
	t.Logf("%d pushes of %d clients that were killed, up to %d of each other", killed, len(dead), others[0].acknowledged+1)
}

// round rounds weights to integers, in place.
func round(weights []float32) []float32 {
	for i, w := range weights {
		weights[i] = float32(math.Round(float64(w)))
	}
	return weights
}

// TestKilledAgent kills an agent while every call of a client is in progress. Each call fails and
// names the cause.
func TestKilledAgent(t *testing.T) {
	outlive(t, func(b *bed) *exec.Cmd { return b.real(t, address, "outlive") })
}

// toldWithin is how long all calls may take after the agent was killed, on a machine that is busy
// with other programs, too. They have no time limits of their own.
const toldWithin = time.Minute

// apart runs an agent in a process of its own, which ends with the test.
func apart(t *testing.T) (*bed, *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{socket: filepath.Join(openDir(t), "agent.sock")}
	agent := command(t, self)
	agent.Env = append(os.Environ(), agentSocket+"="+b.socket)
	input, err := agent.StdinPipe() // its end tells the agent of ours
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = input.Close() })
	begin(t, agent, "ready")
	return b, agent
}

// outlive kills the agent of a running client.
func outlive(t *testing.T, client func(*bed) *exec.Cmd) {
	b, agent := apart(t)
	cmd := client(b)
	rest := begin(t, cmd, "under way")
	_ = agent.Process.Kill()
	killed := time.Now()
	if !rest.Scan() || rest.Text() != "told" {
		t.Errorf("the client has printed %q", rest.Text())
	}
	if after := time.Since(killed); after > toldWithin {
		t.Errorf("the last of the client's calls has ended %v after the agent was killed", after)
	} else {
		t.Logf("all calls have ended %v after the agent was killed", after)
	}
	_ = agent.Wait()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// begin starts a command, and waits for a line of its output.
func begin(t testing.TB, cmd *exec.Cmd, line string) *bufio.Scanner {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != line {
		t.Fatalf("%v has printed %q, want %q", cmd.Args, lines.Text(), line)
	}
	return lines
}

// TestForkWithAgent compares sums after a program has forked between its pushes.
func TestForkWithAgent(t *testing.T) {
	t.Parallel()
	b := newBed(t, jobName, config(dim, 1))
	run(t, b.real(t, plain, "fork"))
	b.idle(t)
	if err := b.cluster.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows := make([]float32, 2*dim)
	if err := b.cluster.Do(t.Context(), func(s *ps.Store) { s.Read([]uint64{1, 60}, rows) }); err != nil {
		t.Fatal(err)
	}
	for _, w := range rows {
		if w != -53 {
			t.Errorf("weights %v after 53 pushes of 1", rows)
		}
	}
}

// TestRefusals reads the errors of a program that the agent does not admit.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBed(t, jobName, config(dim, 1))
	lines := strings.Split(strings.TrimSpace(run(t, b.real(t, plain, "refusals"))), "\n")
	for i, want := range []string{
		`NO_JOB: libra_open: the agent at \S+ refuses job nothing: .*"nothing".*clicks`,
		`DIMENSION: .* refuses job clicks: .*2.*3`,
		`HOT_SET: .*fingerprint`,
		`MEMORY: .*1099511627776 bytes`,
	} {
		if i >= len(lines) || !regexp.MustCompile("^"+want).MatchString(lines[i]) {
			t.Errorf("line %d of %q does not match %s", i, lines, want)
		}
	}
}

// TestRefusedByTheSocket opens a session as a user for whom the agent's socket is closed.
func TestRefusedByTheSocket(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		leaveOut(t, "becoming nobody needs root, for whom no socket is closed")
	}
	b := newBed(t, jobName, config(dim, 1))
	if err := os.Chmod(b.socket, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := b.real(t, plain, "refusals")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	want := fmt.Sprintf("NO_AGENT: libra_open: user %d may not open %s: add it to the socket's group\n", nobody, b.socket)
	if got := run(t, cmd); got != strings.Repeat(want, 4) {
		t.Errorf("it prints %s, want %s", got, want)
	}
}

// needRoot leaves a test out that makes a network of namespaces.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		leaveOut(t, "a network of namespaces needs root: nothing goes through a switch of the kernel")
	}
}

// TestSumsOverAFXDP compares the weights that a C program has pulled, and the server's, after the
// same pushes through a switch of this machine's kernel and over UDP, bit for bit.
func TestSumsOverAFXDP(t *testing.T) {
	t.Parallel()
	needRoot(t)
	pushes := program(t, plain, "real", "push")
	libra, err := buildLibra()
	if err != nil {
		t.Fatal(err)
	}
	over := func(backend string) (bits, weights string) {
		args := strings.Fields("run --job clicks --sync --optimizer sgd --learning-rate 1 --dim 2 --hot-rows 50 --json --backend " + backend + " --")
		out := strings.TrimSpace(run(t, command(t, libra, append(args, pushes.Args...)...)))
		end := strings.LastIndexByte(out, '\n')
		var result struct {
			HotPairs int    `json:"hot_pairs"`
			Weights  string `json:"weights_sha256"`
		}
		if err := json.Unmarshal([]byte(out[end+1:]), &result); err != nil || result.HotPairs == 0 || result.Weights == "" {
			t.Fatalf("over %s: %v\n%s", backend, err, out)
		}
		return out[:end], result.Weights
	}
	bits, weights := over("udp")
	if n := strings.Count(bits, "\n") + 1; n != 100*dim {
		t.Fatalf("%d weights are pulled:\n%s", n, bits)
	}
	if b, w := over("afxdp"); b != bits || w != weights {
		t.Errorf("through the switch the weights are %s\n%s\nover UDP %s\n%s", w, b, weights, bits)
	}
}

// TestExample runs c/example.c.
func TestExample(t *testing.T) {
	t.Parallel()
	b := newBed(t, "lines", config(1, 0.1))
	cmd := program(t, plain, "example", "lines")
	cmd.Env = append(os.Environ(), "LIBRA_AGENT="+b.socket)
	if got := run(t, cmd); got != "w = 3.000 -2.000\n" {
		t.Errorf("the example has printed %q", got)
	}
}

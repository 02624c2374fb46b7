// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/ps"
)

const nobody = 65534

// real is a command of c/test/real.c for a bed's agent.
func (b *bed) real(t testing.TB, v variant, what string) *exec.Cmd {
	t.Helper()
	cmd := program(t, v, "real", what)
	cmd.Env = append(os.Environ(), "LIBRA_AGENT="+b.socket)
	return cmd
}

// expected are the weights after the pushes of c/test/real.c's push_all.
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
// store, bit for bit. The program is an ordinary one, or with sanitizers, or of a user without any rights in a
// network namespace without any interface.
func TestSums(t *testing.T) {
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

// TestKilledClients kills clients at moments of their own choice. Each push is there wholly or not at
// all, acknowledged ones are there, and the agent gives their memory back.
func TestKilledClients(t *testing.T) {
	for n := range 3 {
		b := newBed(t, jobName, config(dim, 1))
		cmd := b.real(t, plain, "killed")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		acknowledged := -1
		for lines := bufio.NewScanner(out); acknowledged < 300*n && lines.Scan(); {
			if acknowledged, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		b.idle(t)
		if err := b.cluster.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}

		hot := make([]float32, hotRows)
		whole := 0
		for p, missing := 0, 0; missing < 1000; p++ {
			keys, rows := make([]uint64, 4), make([]float32, 4*dim)
			for i := range keys {
				keys[i] = uint64(1000 + 4*p + i)
			}
			if err := b.cluster.Do(t.Context(), func(s *ps.Store) { s.Read(keys, rows) }); err != nil {
				t.Fatal(err)
			}
			for _, w := range round(rows) {
				if w != rows[0] || (w != 0 && w != -1) {
					t.Fatalf("push %d is there in part, or twice: weights %v", p, rows)
				}
			}
			switch {
			case rows[0] != 0:
				whole++
				hot[p%hotRows]--
			case p <= acknowledged:
				t.Errorf("push %d was acknowledged, and is missing", p)
			default:
				missing++
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
		if whole == 0 || acknowledged < 0 {
			t.Errorf("%d pushes are there, the last acknowledged is %d", whole, acknowledged)
		}
	}
}

// round rounds weights to integers, in place.
func round(weights []float32) []float32 {
	for i, w := range weights {
		weights[i] = float32(math.Round(float64(w)))
	}
	return weights
}

// TestKilledAgent kills an agent while every call of a client is under way. Each call fails and names it.
func TestKilledAgent(t *testing.T) {
	outlive(t, func(b *bed) *exec.Cmd { return b.real(t, address, "outlive") })
}

// outlive kills the agent of a client that is under way.
func outlive(t *testing.T, client func(*bed) *exec.Cmd) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(openDir(t), "agent.sock")
	agent := command(t, self)
	agent.Env = append(os.Environ(), agentSocket+"="+socket)
	input, err := agent.StdinPipe() // its end tells the agent of ours
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	begin(t, agent, "ready")

	b := &bed{socket: socket}
	cmd := client(b)
	rest := begin(t, cmd, "under way")
	_ = agent.Process.Kill()
	_ = agent.Wait()
	if !rest.Scan() || rest.Text() != "told" {
		t.Errorf("the client has printed %q", rest.Text())
	}
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

// TestRefusals reads what a program is told that the agent does not admit.
func TestRefusals(t *testing.T) {
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

// TestExample runs c/example.c.
func TestExample(t *testing.T) {
	b := newBed(t, "lines", config(1, 0.1))
	cmd := program(t, plain, "example", "lines")
	cmd.Env = append(os.Environ(), "LIBRA_AGENT="+b.socket)
	if got := run(t, cmd); got != "w = 3.000 -2.000\n" {
		t.Errorf("the example has printed %q", got)
	}
}

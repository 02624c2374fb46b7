// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/local"
	"github.com/libra-ina/libra/ps"
)

// children are roles of the test binary, by the value of LIBRA_AGENT_CHILD.
var children = map[string]func() int{"push": pushUntilKilled, "nobody": pushUnprivileged, "agent": serveUntilKilled}

// child returns the command that runs the test binary in a role.
func child(t testing.TB, what, socket string, arg int) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "LIBRA_AGENT_CHILD="+what, "LIBRA_AGENT_SOCKET="+socket, "LIBRA_AGENT_ARG="+strconv.Itoa(arg))
	proc.DieWithParent(cmd)
	return cmd
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// ownBatch is the batch of a child: ones for the hot rows, for cold rows, and for its own row.
func ownBatch(own int) (keys []uint64, grads []float32) {
	keys = append(hotKeys(), 500, 501, 502, 503, 10_000+uint64(own))
	for range len(keys) * dim {
		grads = append(grads, 1)
	}
	return keys, grads
}

// pushUntilKilled pushes, with several pushes in flight, and prints a byte for each acknowledged
// push.
func pushUntilKilled() int {
	ctx := context.Background()
	c, err := agentclient.Dial(ctx, os.Getenv("LIBRA_AGENT_SOCKET"), agentproto.Hello{Job: jobName, Entries: 16, BufferBytes: 64 << 10})
	if err != nil {
		return fail(err)
	}
	own, _ := strconv.Atoi(os.Getenv("LIBRA_AGENT_ARG"))
	keys, grads := ownBatch(own)
	var waiting []uint64
	for {
		ticket, err := c.Push(ctx, keys, grads)
		if err != nil {
			return fail(err)
		}
		if waiting = append(waiting, ticket); len(waiting) < 8 {
			continue
		}
		got, err := c.Wait(ctx, waiting[0])
		if err == nil && got.Status != agentproto.OK {
			err = got.Status
		}
		if err != nil {
			return fail(err)
		}
		waiting = waiting[1:]
		if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
			return fail(err)
		}
	}
}

// Clients are killed while they push, one after the other, while another one continues. Each push
// of the killed ones is applied wholly or not at all, acknowledged ones are applied, the memory is
// returned, and the sums of the other are exact.
func TestClientsAreKilled(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 10
	}
	b := newBed(t)
	other := b.dial()
	keys, grads := batch(1, 40)
	for i := range keys { // its own rows, a hot one among them
		keys[i] = 20_000 + uint64(i)
	}
	otherPushes := 0
	acknowledged := make([]int, kills)
	for i := range kills {
		cmd := child(t, "push", b.socket, i)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if n, err := io.ReadFull(out, make([]byte, 1+i%30)); err != nil {
			t.Fatalf("client %d ended after %d acknowledgements: %v\n%s", i, n, err, &stderr)
		}
		if _, err := other.Push(within(t), keys, grads); err != nil {
			t.Fatal(err)
		}
		otherPushes++
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		acknowledged[i] = 1 + i%30 + len(rest)
		_ = cmd.Wait()
	}
	if err := other.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	b.idle(int64(agentproto.LayoutOf(16, 64<<10).Total))

	total := b.expectWhole(acknowledged)
	b.expect(otherPushes, keys, grads)
	b.check()
	t.Logf("%d pushes of %d clients", total, kills)
}

// expectWhole expects, of each child that pushed until it was killed, as many pushes in all of its
// rows as in its own row: at least the acknowledged ones. It returns the number of pushes.
func (b *bed) expectWhole(acknowledged []int) (total int) {
	b.t.Helper()
	own := make([]uint64, len(acknowledged))
	for i := range own {
		own[i] = 10_000 + uint64(i)
	}
	before, after := make([]float32, dim*len(own)), make([]float32, dim*len(own))
	if err := b.cluster.Worker(0).Pull(within(b.t), own, before); err != nil {
		b.t.Fatal(err)
	}
	if err := b.cluster.Commit(within(b.t)); err != nil {
		b.t.Fatal(err)
	}
	if err := b.cluster.Worker(0).Pull(within(b.t), own, after); err != nil {
		b.t.Fatal(err)
	}
	for i := range own {
		n := int(before[dim*i] - after[dim*i] + 0.5)
		if n < acknowledged[i] {
			b.t.Errorf("client %d: %d pushes are in the sums, %d were acknowledged", i, n, acknowledged[i])
		}
		total += n
		keys, ones := ownBatch(i)
		b.expect(n, keys, ones)
	}
	return total
}

// Eight clients push at the same time, so that waiting pushes are added up, and one after the other
// is killed. Each push of each is applied wholly or not at all, acknowledged ones are applied, and
// no other sum changes. The same holds if the job keeps pushes separate, and nothing is added up.
func TestClientsWhosePushesAreAddedUpAreKilled(t *testing.T) {
	for _, separate := range []bool{false, true} {
		t.Run(fmt.Sprintf("separate=%v", separate), func(t *testing.T) { killEight(t, separate) })
	}
}

func killEight(t *testing.T, separate bool) {
	const clients, each = 8, 200
	b := newBed(t, func(c *agent.Config) { c.Jobs[0].Separate = separate })
	var commands []*exec.Cmd
	var outs []io.Reader
	for i := range clients {
		cmd := child(t, "push", b.socket, i)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		commands, outs = append(commands, cmd), append(outs, out)
	}
	// Each is killed after some acknowledgements, while later ones push.
	acknowledged := make([]int, clients)
	var group errgroup.Group
	for i, cmd := range commands {
		group.Go(func() error {
			n := each * (i + 1)
			if _, err := io.ReadFull(outs[i], make([]byte, n)); err != nil {
				return fmt.Errorf("client %d: %w", i, err)
			}
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
			rest, err := io.ReadAll(outs[i])
			acknowledged[i] = n + len(rest)
			_ = cmd.Wait()
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	b.idle(0)
	if err := b.cluster.Worker(0).Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	total := b.expectWhole(acknowledged)
	b.check()
	s, err := b.cluster.Worker(0).Stats(within(t))
	if err != nil || (s.PairsAdded == 0) != separate {
		t.Errorf("%d pairs were added up, %d sent, %v", s.PairsAdded, s.PairsHot, err)
	}
	t.Logf("%d pushes; %d pairs were added up, %d sent", total, s.PairsAdded, s.PairsHot)
}

// pushUnprivileged pushes once.
func pushUnprivileged() int {
	ctx := context.Background()
	missing, err := sys.MissingCapabilities(sys.CapNetAdmin, sys.CapSysAdmin, sys.CapPerfmon, sys.CapBPF)
	if err != nil || len(missing) != 4 {
		return fail(fmt.Errorf("it has capabilities: only %v are missing: %w", missing, err))
	}
	c, err := agentclient.Dial(ctx, os.Getenv("LIBRA_AGENT_SOCKET"), agentproto.Hello{Job: jobName})
	if err != nil {
		return fail(err)
	}
	keys, grads := ownBatch(0)
	if _, err := c.Push(ctx, keys, grads); err != nil {
		return fail(err)
	}
	if err := errors.Join(c.Flush(ctx), c.Close()); err != nil {
		return fail(err)
	}
	if _, err := agent.Ask(ctx, os.Getenv("LIBRA_AGENT_SOCKET")); !errors.Is(err, agentproto.NotAllowed) {
		return fail(fmt.Errorf("it is told the agent's statistics: %w", err))
	}
	if _, err := agent.Learn(ctx, ctx, os.Getenv("LIBRA_AGENT_SOCKET"), jobName, 10); !errors.Is(err, agentproto.NotAllowed) {
		return fail(fmt.Errorf("it is told what clients push: %w", err))
	}
	return 0
}

// nobody is the user and the group without any files.
const nobody = 65534

func needsRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
}

// asNobody runs a child as the user nobody.
func asNobody(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	program := filepath.Join(shortDir(t), "child") // other users cannot reach the directories of go test
	text, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Args[0], cmd.Dir = program, program, "/"
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
}

// A user without capabilities, in a network namespace without interfaces, pushes exactly, if the
// job allows that user or one of its groups, and is refused otherwise.
func TestUnprivilegedClient(t *testing.T) {
	const elsewhere = 54321
	needsRoot(t)
	for _, c := range []struct {
		name    string
		change  func(*agent.Job)
		allowed bool
	}{
		{"as a user", func(j *agent.Job) { j.Users = []uint32{elsewhere, nobody} }, true},
		{"in a group", func(j *agent.Job) { j.Groups = []uint32{elsewhere, nobody} }, true},
		{"otherwise", func(j *agent.Job) { j.Users, j.Groups = []uint32{elsewhere}, []uint32{elsewhere} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, func(cfg *agent.Config) { c.change(&cfg.Jobs[0]) })
			cmd := child(t, "nobody", b.socket, 0)
			asNobody(t, cmd)
			cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
			out, err := cmd.CombinedOutput()
			if !c.allowed {
				if err == nil || !strings.Contains(string(out), "add the user or a group of it to the job in the agent's configuration: user nobody (65534), job clicks") {
					t.Errorf("%v\n%s", err, out)
				}
				if n := b.agent.Stats().Refused[agent.Code(agentproto.NotAllowed)]; n != 1 {
					t.Errorf("%d clients are counted as not allowed", n)
				}
				return
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			keys, grads := ownBatch(0)
			b.expect(1, keys, grads)
			b.check()
		})
	}
}

// serveUntilKilled runs an agent with its job.
func serveUntilKilled() int {
	ctx := context.Background()
	cluster, err := local.Open(ctx, local.Config{Dim: dim, Hot: hotKeys(), Optimizer: sgd})
	if err != nil {
		return fail(err)
	}
	a, err := agent.Listen(agent.Config{
		Socket: os.Getenv("LIBRA_AGENT_SOCKET"),
		Jobs:   []agent.Job{{Name: jobName, Worker: cluster.Worker(0), Dim: dim, Exp: ps.DefaultExp}},
		Log:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return fail(err)
	}
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx) }()
	if _, err := agent.Ask(ctx, os.Getenv("LIBRA_AGENT_SOCKET")); err != nil { // its own user may
		return fail(err)
	}
	fmt.Println("ready")
	return fail(<-served)
}

// startAgent starts a process with an agent and its job.
func startAgent(t testing.TB, socket string, changes ...func(*exec.Cmd)) *exec.Cmd {
	t.Helper()
	cmd := child(t, "agent", socket, 0)
	for _, change := range changes {
		change(cmd)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the agent says %q, %v", line, err)
	}
	return cmd
}

// The agent is killed. The waiting call and all later ones fail, with an error that names the
// cause; another agent takes over the socket.
func TestAgentIsKilled(t *testing.T) {
	socket := filepath.Join(shortDir(t), "agent.sock")
	cmd := startAgent(t, socket)
	c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName, Parties: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	keys, grads := ownBatch(0)
	if _, err := c.Push(within(t), keys, grads); err != nil {
		t.Fatal(err)
	}
	if err := c.Flush(within(t)); err != nil {
		t.Fatal(err)
	}
	ticket, err := c.Submit(within(t), agentproto.Entry{Op: agentproto.Barrier}) // waits for another party
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := c.Wait(within(t), ticket)
		waited <- err
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	_ = cmd.Wait()
	named := fmt.Sprintf("the agent at %s (process %d) has gone", socket, cmd.Process.Pid)
	names := func(call string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), named) {
			t.Errorf("%s: %v, want one with %q", call, err, named)
		}
	}
	names("the call that waits", <-waited)
	names("flush", c.Flush(within(t)))
	names("pull", c.Pull(within(t), keys, grads))
	_, err = c.Prepare(within(t), keys)
	names("prepare", err)
	if after := time.Since(killed); after > time.Minute { // of the two that each call has
		t.Errorf("the last call has ended %v after the agent was killed", after)
	}

	b := newBed(t, func(cfg *agent.Config) { cfg.Socket = socket })
	if err := b.dial().Flush(within(t)); err != nil {
		t.Errorf("at the next agent: %v", err)
	}
}

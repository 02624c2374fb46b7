// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
)

// fabricBed is a killBed with three switches in a star: core, at which the server and the first
// worker are, b with the second worker, and c. Its job follows a plan of all three.
type fabricBed struct {
	*killBed
	switches map[string]*child
	plans    map[string]string // files, by the switch that a plan is without; "": none
}

// atSwitch has the places of the switches in killBed.start.
var atSwitch = map[string]int{"core": theSwitch, "b": firstWorker + 2, "c": firstWorker + 3}

// newFabricBed starts the switches of such a bed, on which frames are lost. Peers may be silent for
// so long that a test can suspend them.
func newFabricBed(t *testing.T, backend, firstWithout string, epochs int) *fabricBed {
	t.Helper()
	b := &fabricBed{newKillBedOf(t, backend, func(b *killBed) {
		if backend == cluster.BackendUDP {
			b.onLoopback(t)
			b.addFabricOnLoopback(t)
		} else {
			b.addFabricInNamespaces(t)
		}
		c := b.config
		c.Job.Plan, c.Job.IDs, c.Silence = cluster.PlanAuto, []uint16{4, 5}, time.Minute
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 6}
		c.Server.At, c.Workers[0].At, c.Workers[1].At = "core", "core", "b"
	}), map[string]*child{}, map[string]string{}}
	dir := filepath.Dir(b.path)
	give := func(slots int) {
		for i := range b.config.Switches {
			b.config.Switches[i].Slots = slots
		}
		b.trainFor(t, epochs)
	}
	give(800) // in the plans: the rest is room for shares that are opened while others are closed
	for _, without := range []string{"", "b"} {
		args := []string{"plan", "--config", b.path, "--objective", "room", "--pushes", "100", "--json"}
		if without != "" {
			args = append(args, "--without", without)
		}
		plan, said, code := inProcess(t, args...)
		if code != 0 {
			t.Fatal(said)
		}
		b.plans[without] = writeFile(t, "plan.json", plan)
	}
	b.config.Job.Plan = filepath.Join(dir, "first.json")
	first, err := os.ReadFile(b.plans[firstWithout])
	if err == nil {
		err = os.WriteFile(b.config.Job.Plan, first, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	give(1600)
	for name := range atSwitch {
		b.startSwitch(t, name)
	}
	return b
}

// addFabricOnLoopback gives a bed on the loopback interface more switches.
func (b *killBed) addFabricOnLoopback(t *testing.T) {
	t.Helper()
	c := b.config
	c.Switches = []cluster.FabricSwitch{{Name: "core", Address: c.Switch.Address}}
	at := c.Workers[1].Address
	for _, name := range []string{"b", "c"} {
		at = at.Next()
		c.Switches = append(c.Switches, cluster.FabricSwitch{Name: name, Address: at, Links: []string{"core"},
			Control: netip.AddrPortFrom(at, uint16(freePort(t, at.String())))})
		b.start = append(b.start, (*exec.Cmd).Start)
	}
}

// addFabricInNamespaces gives a bed three switches and its hosts.
func (b *killBed) addFabricInNamespaces(t *testing.T) {
	t.Helper()
	needRoot(t)
	bed := bedtest.New(t, testbed.Config{Hosts: 3, Above: []int{0, 0}, At: []int{0, 0, 1}})
	b.useBed(bed, 2)
	for i, s := range bed.Switches() {
		one := cluster.FabricSwitch{Name: "core", Address: s.IP}
		if i > 0 {
			one.Name, one.Links = string(rune('a'+i)), []string{"core"}
			one.Control, one.Interfaces = netip.AddrPortFrom(s.IP, 7700), s.Ports()
			b.start = append(b.start, s.Start)
		}
		b.config.Switches = append(b.config.Switches, one)
	}
}

// startSwitch starts a switch, which runs until the test or endSwitch ends it.
func (b *fabricBed) startSwitch(t *testing.T, name string) {
	t.Helper()
	sw := b.run(t, atSwitch[name], "switch", "--name", name)
	b.switches[name] = sw
	t.Cleanup(func() {
		_ = sw.Process.Kill()
		_ = sw.Wait()
	})
	waitTraining(t, sw)
}

// begin starts an operator's command on the server's host.
func (b *fabricBed) begin(t *testing.T, args ...string) *child {
	t.Helper()
	c := &child{Cmd: libra(context.Background(), append(args, "--config", b.path)...)}
	c.Stdout, c.Stderr = &c.out, &c.err
	if err := b.start[theServer](c.Cmd); err != nil {
		t.Fatal(err)
	}
	return c
}

// ends waits for a command, which must say something: as an error, if that begins so.
func (c *child) ends(t *testing.T, want string) {
	t.Helper()
	err := c.Wait()
	text, fails := strings.CutPrefix(want, "error: ")
	if said := c.out.String() + c.err.String(); (err != nil) != fails || !strings.Contains(said, text) {
		t.Errorf("%v: %v\n%s\nwant %q", c.Args[1:], err, said, want)
	}
}

// ask runs an operator's command on the server's host, which must say something.
func (b *fabricBed) ask(t *testing.T, want string, args ...string) {
	t.Helper()
	b.begin(t, args...).ends(t, want)
}

// A training whose plan changes twice, and one of whose switches is drained, by commands, ends with
// the weights of one that was not disturbed, though the daemons of switches that were left are
// stopped at once. What cannot be done is refused. Meanwhile a worker is suspended, one joins, and
// one waits for it at the end of the first step.
func TestPlanIsChangedByCommands(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newFabricBed(t, backend, "", 4)
			server := b.run(t, theServer, "ps")
			workers := []*child{b.worker(t, 0)}
			waitSaid(t, workers[0], "worker trains", 1)
			all, withoutB := b.plans[""], b.plans["b"]
			b.ask(t, `error: "x" is none of the switches that aggregate: the job has shares at [`, "switch", "drain", "x")
			b.ask(t, "error: --based-on 7: stale plan: the job follows plan 1 by now", "plan", "apply", "--based-on", "7", withoutB)

			_ = workers[0].Process.Signal(syscall.SIGSTOP)
			change := b.begin(t, "plan", "apply", "--based-on", "1", withoutB)
			waitSaid(t, server, "the job follows another plan", 1)
			const another = "error: the plan is being changed: wait until all workers have adopted it"
			b.ask(t, another, "plan", "apply", all)
			b.ask(t, another, "switch", "drain", "c")
			workers = append(workers, b.worker(t, 1)) // by the new plan
			waitSaid(t, workers[1], "worker trains", 1)
			_ = workers[0].Process.Signal(syscall.SIGCONT)
			change.ends(t, "job 3 follows plan 2, with shares at core, c: ")
			endSwitch(t, b.switches["b"])

			b.ask(t, "error: --based-on 1: stale plan: the job follows plan 2 by now", "plan", "apply", "--based-on", "1", all)
			b.ask(t, "switch c has no share of job 3, and may be stopped: job 3 follows plan 3, with shares at core", "switch", "drain", "c")
			b.ask(t, "job 3 follows plan 3, with shares at core", "switch", "drain", "c")
			endSwitch(t, b.switches["c"])
			b.ask(t, "error: (switches[1]: ", "plan", "apply", all) // which cannot be reached
			b.startSwitch(t, "b")
			b.startSwitch(t, "c")
			b.ask(t, "job 3 follows plan 4, with shares at core, b, c", "plan", "apply", "--based-on", "3", all)
			if strings.Contains(server.out.String(), `"result"`) {
				t.Error("training has ended before the last change")
			}
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

// If the server is killed while the plan of its job changes, or a switch that is being opened, or
// left, the job ends, in all processes, by the name of that. When all is started again, it goes on
// from the checkpoint, by the first plan, to the weights of a training that was not disturbed.
func TestKillsDuringAChangeOfThePlan(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		for _, c := range []struct{ name, first, then, victim string }{
			{"server", "", "b", "server"},
			{"switch that is opened", "b", "", "b"},
			{"switch that is left", "", "b", "b"},
		} {
			t.Run(backend+" "+c.name, func(t *testing.T) {
				b := newFabricBed(t, backend, c.first, 1)
				server, workers := b.train(t)
				for _, w := range workers {
					waitSaid(t, w, "worker trains", 1)
				}
				b.waitCheckpoint(t, server)
				_ = workers[0].Process.Signal(syscall.SIGSTOP) // so that it does not adopt the plan
				change := b.begin(t, "plan", "apply", b.plans[c.then])
				waitSaid(t, server, "the job follows another plan", 1)
				victim := cmp.Or(b.switches[c.victim], server)
				killAll(t, server, victim)
				_ = workers[0].Process.Signal(syscall.SIGCONT)
				if victim != server {
					at := b.config.Switches[b.config.SwitchNamed(c.victim)].Control.String()
					if err := server.Wait(); err == nil || !strings.Contains(server.err.String(), at) {
						t.Errorf("the server ends with %v, and does not name %s\n%s", err, at, &server.err)
					}
					b.startSwitch(t, c.victim)
				}
				change.ends(t, "error: parameter server: change plan: ")
				for i, w := range workers {
					if err := w.Wait(); err == nil {
						t.Errorf("worker %d ends without an error\n%s", i+1, &w.err)
					}
				}
				server, workers = b.train(t)
				if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
					t.Errorf("weights %s, the reference's %s", got, want)
				}
				waitSaid(t, server, "continues from a checkpoint", 1)
			})
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
)

// A training whose switch is killed goes on without it, to the weights of one that was not
// disturbed.
func TestKilledSwitchEndsNothing(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newKillBed(t, backend)
			sw := b.run(t, theSwitch, "switch")
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			b.waitCheckpoint(t, server)
			_ = sw.Process.Kill()
			_ = sw.Wait()
			if strings.Contains(server.out.String(), `"result"`) {
				t.Error("training has ended before the switch was killed")
			}
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
			if said := server.err.String(); !strings.Contains(said, "the job goes on without its aggregator") {
				t.Errorf("the server says\n%s", said)
			}
		})
	}
}

// Workers do not give a killed switch up before the server does, however long that may take.
func TestWorkersWaitForTheFence(t *testing.T) {
	t.Parallel()
	b := newKillBed(t, cluster.BackendUDP)
	b.config.Silence, b.config.Switch.Silence = 3*time.Second, 7*time.Second
	b.trainFor(t, 2)
	sw := b.run(t, theSwitch, "switch")
	server, workers := b.train(t)
	for _, w := range workers {
		waitTraining(t, w)
	}
	b.waitCheckpoint(t, server)
	_ = sw.Process.Kill()
	_ = sw.Wait()
	if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
	waitSaid(t, server, "the job goes on without its aggregator", 1)
}

// A training whose switch is killed goes on at the standby, and when that is killed, at the switch,
// which was restarted: to the weights of one that was not disturbed.
func TestKilledSwitchHasAStandby(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newStandbyBed(t, backend, 1)
			b.trainFor(t, 6) // it lasts longer than the restart of a switch on a busy machine
			sw := b.run(t, theSwitch, "switch")
			standby := b.run(t, firstWorker+2, "switch", "--standby", "0")
			waitTraining(t, sw) // the job is created at the first one that answers
			waitTraining(t, standby)
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			b.waitCheckpoint(t, server)
			kill := func(c *child) {
				_ = c.Process.Kill()
				_ = c.Wait()
			}
			const again = "the job goes on at an aggregator again"
			kill(sw)
			waitSaid(t, server, again, 1)
			sw = b.run(t, theSwitch, "switch")
			defer kill(sw)
			for _, w := range workers {
				waitSaid(t, w, again, 1)
			}
			waitTraining(t, sw)
			kill(standby)
			waitSaid(t, server, again, 2)
			if strings.Contains(server.out.String(), `"result"`) {
				t.Error("training has ended before the standby was killed")
			}
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

// A training whose switch daemon is suspended goes on at the standby, although no connection
// breaks: to the weights of one that was not disturbed. With XDP the program of the daemon goes on
// to acknowledge frames.
func TestSuspendedSwitchEndsNothing(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newStandbyBed(t, backend, 1)
			sw := b.run(t, theSwitch, "switch")
			defer func() {
				_ = sw.Process.Signal(syscall.SIGCONT)
				endSwitch(t, sw)
			}()
			standby := b.run(t, firstWorker+2, "switch", "--standby", "0")
			defer endSwitch(t, standby)
			waitTraining(t, sw) // the job is created at the first one that answers
			waitTraining(t, standby)
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			b.waitCheckpoint(t, server)
			_ = sw.Process.Signal(syscall.SIGSTOP)
			waitSaid(t, server, "no heartbeat of the switch daemon", 1)
			waitSaid(t, server, "the job goes on at an aggregator again", 1)
			if strings.Contains(server.out.String(), `"result"`) {
				t.Error("training has ended before the switch was suspended")
			}
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

// A training is drained from its switch, which is stopped then, to the standby, and from that to
// the server: to the weights of one that was not disturbed. Meanwhile one worker waits for the
// other at the end of the first step.
func TestSwitchIsDrained(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newStandbyBed(t, backend, 1)
			ask := func(want string, args ...string) {
				t.Helper()
				c := &child{Cmd: libra(context.Background(), append(args, "--config", b.path)...)}
				c.Stdout, c.Stderr = &c.out, &c.err
				err := b.start[theServer](c.Cmd)
				if err == nil {
					err = c.Wait()
				}
				if said := c.out.String() + c.err.String(); (err != nil) != strings.HasPrefix(want, "error") ||
					!strings.Contains(said, strings.TrimPrefix(want, "error: ")) {
					t.Errorf("%v: %v\n%s\nwant %q", args, err, said, want)
				}
			}
			drain := func(want string, args ...string) { ask(want, append([]string{"switch", "drain"}, args...)...) }
			sw := b.run(t, theSwitch, "switch")
			standby := b.run(t, firstWorker+2, "switch", "--standby", "0")
			defer endSwitch(t, standby)
			waitTraining(t, sw) // the job is created at the first one that answers
			waitTraining(t, standby)
			server := b.run(t, theServer, "ps")
			workers := []*child{b.run(t, firstWorker, "worker", "--id", "1")}
			waitSaid(t, workers[0], "worker trains", 1)
			drain("error: --to: 192.0.2.1 is the address neither of switch nor of any of standbys", "--to", "192.0.2.1")
			drain("error: the job is at that aggregator", "--to", b.config.Switch.Address.String())
			drain("it goes on at standby 0 at " + b.config.Standbys[0].Address.String())
			at := b.config.Standbys[0].Control.String()
			ask(at, "stats")
			ask("combine", "job", "list", "--standby", "0")
			ask("error: no standby 1 in the cluster configuration, which has 1", "job", "list", "--standby", "1")
			ask("error: --standby goes with --config, and without --control", "job", "list", "--standby", "0", "--control", at)
			if backend == "udp" { // on the switch's host
				ask("error: it may be at another aggregator of the file: --standby 0 and so on", "job", "remove", "1")
			}
			endSwitch(t, sw)
			waitSaid(t, workers[0], "the job goes on at an aggregator again", 1)
			drain("hot rows go to the parameter server, until an aggregator takes the job")
			workers = append(workers, b.run(t, firstWorker+1, "worker", "--id", "2"))
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

// endSwitch tells a daemon to end, and waits for it.
func endSwitch(t *testing.T, sw *child) {
	t.Helper()
	_ = sw.Process.Signal(os.Interrupt)
	if err := sw.Wait(); err != nil {
		t.Errorf("switch: %v\n%s", err, &sw.err)
	}
}

// waitSaid waits until a process has logged a text so often.
func waitSaid(t *testing.T, c *child, text string, times int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); strings.Count(c.err.String(), text) < times; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not say %q %d times:\n%s", text, times, &c.err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// A training whose switch is killed goes on without it, to the weights of one that was not disturbed.
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

// A training whose switch is killed goes on at the standby, and when that is killed, at the switch, which was
// restarted: to the weights of one that was not disturbed.
func TestKilledSwitchHasAStandby(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newStandbyBed(t, backend, 1)
			sw := b.run(t, theSwitch, "switch")
			standby := b.run(t, firstWorker+2, "switch", "--standby", "0")
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

// waitSaid waits until a process has logged a text so often.
func waitSaid(t *testing.T, c *child, text string, times int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); strings.Count(c.err.String(), text) < times; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not say %q %d times:\n%s", text, times, &c.err)
		}
	}
}

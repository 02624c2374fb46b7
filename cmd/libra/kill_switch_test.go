// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
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

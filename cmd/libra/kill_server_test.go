// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
)

// A training whose server is killed, at any moment, goes on from its checkpoint when that is
// started again, to the weights of one that was not disturbed. Nobody starts the workers or the
// switch again.
func TestKilledServerIsRestarted(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newKillBed(t, backend)
			b.trainFor(t, 3)
			b.runSwitch(t)
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			b.waitCheckpoint(t, server)
			time.Sleep(time.Duration(rand.Int64N(int64(300 * time.Millisecond))))
			killAll(t, server, server)
			if backend == cluster.BackendUDP { // until the workers have noticed
				for _, w := range workers {
					waitSaid(t, w, "the job has lost a worker or its server", 1)
				}
			}
			server = b.run(t, theServer, "ps")
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
			for _, w := range workers {
				if !strings.Contains(w.out.String(), `"rewinds":1`) {
					t.Errorf("a worker has not joined again once:\n%s\n%s", &w.out, &w.err)
				}
			}
		})
	}
}

// A training whose server, switch and one of whose workers are killed at once, and started again,
// goes on from its checkpoint: to the weights of one that was not disturbed.
func TestServerSwitchAndWorkerAreKilled(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newKillBed(t, backend)
			b.trainFor(t, 3)
			sw := b.run(t, theSwitch, "switch")
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			b.waitCheckpoint(t, server)
			id := rand.IntN(len(workers))
			killAll(t, server, server, sw, workers[id])
			b.runSwitch(t)
			server = b.run(t, theServer, "ps")
			workers[id] = b.worker(t, id)
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
			waitSaid(t, server, "continues from a checkpoint", 1)
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// workerKills is the number of kills in TestKilledWorkerIsRestarted.
var workerKills = flag.Int("worker-kills", 2, "how often TestKilledWorkerIsRestarted kills a worker of each backend")

const rewinds = "all workers join again and repeat the open step, because one is lost"

// A training whose workers are killed, at any moment, goes on when they are started again, to the
// weights of one that was not disturbed. Nobody starts the others again.
func TestKilledWorkerIsRestarted(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newKillBed(t, backend)
			b.trainFor(t, 1+*workerKills) // without a worker it waits
			b.runSwitch(t)
			server, workers := b.train(t)
			seed := uint64(time.Now().UnixNano())
			rng := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			joined := make([]int, len(workers)) // how often each process has joined
			for n := range *workerKills {
				for i, w := range workers { // one that has not joined again since the last rewind is no loss
					joined[i]++
					waitSaid(t, w, "worker trains", joined[i])
				}
				b.waitCheckpoint(t, server)
				time.Sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond))))
				id := rng.IntN(len(workers))
				killAll(t, server, workers[id])
				if n%2 == 1 { // until the server has noticed by itself
					waitSaid(t, server, rewinds, n+1)
				}
				joined[id] = 0
				workers[id] = b.worker(t, id)
				waitSaid(t, server, rewinds, n+1)
				waitSaid(t, server, "the job goes on at an aggregator again", n+1)
			}
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

// A training whose switch and one of whose workers are killed at once, and started again, goes on:
// to the weights of one that was not disturbed. What only the two had is pushed again with the
// step.
func TestKilledSwitchAndWorkerAreRestarted(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newKillBed(t, backend)
			b.trainFor(t, 3)
			sw := b.run(t, theSwitch, "switch")
			server, workers := b.train(t)
			for _, w := range workers {
				waitSaid(t, w, "worker trains", 1)
			}
			b.waitCheckpoint(t, server)
			time.Sleep(rand.N(300 * time.Millisecond))
			id := rand.IntN(len(workers))
			killAll(t, server, sw, workers[id])
			b.runSwitch(t)
			workers[id] = b.worker(t, id)
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
			waitSaid(t, server, rewinds, 1)
		})
	}
}

// A worker that is suspended for longer than the server waits, and then goes on, joins again: to
// the same weights.
func TestSuspendedWorkerJoinsAgain(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			b := newKillBed(t, backend)
			b.runSwitch(t)
			server, workers := b.train(t)
			for _, w := range workers {
				waitTraining(t, w)
			}
			_ = workers[1].Process.Signal(syscall.SIGSTOP)
			waitSaid(t, server, rewinds, 1)
			_ = workers[1].Process.Signal(syscall.SIGCONT)
			if got, want := weightsOf(t, server, workers), b.reference(t); got != want {
				t.Errorf("weights %s, the reference's %s", got, want)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// lose makes a worker vanish until its grace is over.
func lose(w *worker) {
	w.host.Vanish()
	time.Sleep(DefaultGrace)
	synctest.Wait()
}

// A job whose rewind fails ends because of the worker that it has lost: the store's error is in the
// server's log.
func TestRewindThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, keepsLog5, func(c *ParameterServerConfig) {
			c.Rewind = func(context.Context) error { return errors.New("the loop has ended") }
		})
		result := s.waits(t)
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := errors.Join(one.join(t, withRewinds), two.join(t, withRewinds)); err != nil {
			t.Fatal(err)
		}
		lose(one)
		if err := <-result; !contains(err, "worker 1 left before it had finished") || strings.Contains(err.Error(), "the loop has ended") {
			t.Errorf("Wait returns %v", err)
		}
	})
}

// A worker that has finished need not be able to repeat a step.
func TestRewindAfterTheEndOfAWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rewinds := startRewinding(t)
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := errors.Join(one.join(t, withRewinds), two.join(t, withKeptLog), two.done(t)); err != nil {
			t.Fatal(err)
		}
		lose(one)
		if *rewinds != 1 {
			t.Errorf("%d rewinds", *rewinds)
		}
	})
}

// A worker that has been lost has its time from then on, however often the job rewinds meanwhile.
func TestRewindDoesNotProlongTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, rewinds := startRewinding(t)
		result := s.waits(t)
		one, two := s.worker(t, 1), s.worker(t, 2)
		if err := errors.Join(one.join(t, withRewinds), two.join(t, withRewinds)); err != nil {
			t.Fatal(err)
		}
		lose(one)
		begin := time.Now()
		time.Sleep(10 * time.Second)
		if err := two.join(t, withRewinds); err != nil {
			t.Fatal(err)
		}
		lose(two)
		if *rewinds != 2 {
			t.Fatalf("%d rewinds", *rewinds)
		}
		err := <-result
		if took := time.Since(begin); !contains(err, "worker 1 left before it had finished") || took < DefaultRejoin || took > DefaultRejoin+2*missingEvery {
			t.Errorf("Wait returns %v after %v", err, took)
		}
	})
}

// A generation does not collect epochs without end, and has the newest.
func TestEpochsAreBounded(t *testing.T) {
	g := newGeneration(7, 0)
	for i := range 20_000 {
		g.noteEpoch(uint16(i))
		if !g.epochs[uint16(i)] || len(g.epochs) > 4096 {
			t.Fatalf("after epoch %d there are %d", i, len(g.epochs))
		}
	}
}

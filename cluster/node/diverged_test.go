// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/wire"
)

// diverging is a learning rate with which gradients soon become too large.
const diverging = 1e9

// saveEvery makes several servers write a checkpoint each time that this number of steps has ended.
func saveEvery(c *cluster.Config, steps uint64) {
	for i := range c.Servers {
		c.Servers[i].CheckpointSteps = steps
	}
}

// A training that diverges keeps the checkpoints from before, and its error has a remedy that
// works: with a lower rate training continues from the checkpoint, and starts over without it.
func TestDivergedTrainingKeepsItsCheckpoint(t *testing.T) {
	for name, set := range map[string]func(*cluster.Config){
		"in step": func(*cluster.Config) {},
		"asynchronous": func(c *cluster.Config) {
			c.Job.Sync = false
			c.Server.Rejoin = cluster.DefaultRejoin / 100
		},
		"with two servers": func(c *cluster.Config) {
			shard(t, c, 2)
			saveEvery(c, 6) // so that there is one before the last
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			set(c)
			startSwitch(t, c)
			run := func() (workers, servers error) {
				out := trainSharded(t.Context(), t, c, nil, nil)
				n := len(c.AllServers())
				return errors.Join(out.errs[n:]...), errors.Join(out.errs[:n]...)
			}
			if err := errors.Join(run()); err != nil {
				t.Fatal(err)
			}
			path, rate := c.AllServers()[0].Checkpoint, c.Model.LearningRate
			kept := func() map[string][]byte {
				files := map[string][]byte{}
				for _, s := range c.AllServers() {
					for _, path := range []string{s.Checkpoint, s.Checkpoint + previousSuffix} {
						content, err := os.ReadFile(path)
						if err == nil {
							files[path] = content
						} else if path == s.Checkpoint || len(c.AllServers()) > 1 {
							t.Fatal(err)
						}
					}
				}
				return files
			}
			good := kept()
			saveEvery(c, 1000)
			c.Model.LearningRate, c.Model.Epochs = diverging, 20
			workers, servers := run()
			for _, part := range []string{"gradients are too large", "lower the learning rate; then start without the server's checkpoint", path, "remove "} {
				if workers == nil || !strings.Contains(workers.Error(), part) {
					t.Errorf("workers end with %v, want %q", workers, part)
				}
			}
			if servers == nil || !strings.Contains(servers.Error(), "left before it had finished: ") || !strings.Contains(servers.Error(), "out of range") || !strings.Contains(servers.Error(), "gradients are too large") {
				t.Errorf("servers end with %v, want the reason of the worker", servers)
			}
			if !maps.EqualFunc(good, kept(), bytes.Equal) {
				t.Error("the checkpoints, or those before them, have been replaced")
			}
			if _, err := os.Stat(path + divergedSuffix); err != nil {
				t.Errorf("the later weights: %v", err)
			}

			c.Model.LearningRate, c.Model.Epochs = rate, 2
			if err := errors.Join(run()); err != nil {
				t.Errorf("from the checkpoint: %v", err)
			}
			for _, s := range c.AllServers() {
				if err := os.Remove(s.Checkpoint); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(run()); err != nil {
				t.Errorf("without the checkpoint: %v", err)
			}
		})
	}
}

// Without barriers a worker whose gradients became too large may come again, and training may
// finish. Then its checkpoint is that of the whole training, and not the one that was kept.
func TestTrainingThatFinishesHasItsCheckpoint(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
	startSwitch(t, c)
	mustTrain(t, c)
	c.Model.Epochs++
	var log lines
	var result *ServerResult
	ended := make(chan error, 1)
	go func() {
		var err error
		result, err = RunServer(soon(t), Env{Config: c, Log: log.logger()})
		ended <- err
	}()
	hot, err := loadHotSet(c, 4)
	if err != nil {
		t.Fatal(err)
	}
	m, err := join(soon(t), func(error) {}, Env{Config: c, Log: testLog(t)}, c.Workers[0], hot, new(allotment), wire.Endpoint{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.LeaveAs(control.Departure{Reason: "too large", Diverged: true})
	if !strings.Contains(log.String(), "the checkpoint is kept as it is") {
		t.Errorf("the server has not noticed: %s", log.String())
	}
	var workers errgroup.Group
	for _, w := range c.Workers {
		workers.Go(func() error {
			_, err := RunWorker(soon(t), Env{Config: c, Log: testLog(t)}, WorkerOptions{ID: w.ID})
			return err
		})
	}
	if err := errors.Join(workers.Wait(), <-ended); err != nil {
		t.Fatal(err)
	}
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	store, saved := restored(t, c.Server.Checkpoint, cfg)
	if hash(store) != result.WeightsSHA256 || saved.Complete != c.Model.Epochs {
		t.Errorf("the checkpoint has weights %s of %d epochs, the result %s of %d", hash(store), saved.Complete, result.WeightsSHA256, c.Model.Epochs)
	}
	if !strings.Contains(log.String(), "training has finished nevertheless") {
		t.Errorf("the log does not say so: %s", log.String())
	}
}

// The weights with which a training finishes may be in the file of later weights already: the
// checkpoint gets them nevertheless.
func TestLaterWeightsBecomeTheCheckpoint(t *testing.T) {
	s := newServer(t, true)
	s.progress.agreed = func() map[string]string { return map[string]string{} }
	path := s.env.Config.Server.Checkpoint
	save := func(step uint64, file string) {
		t.Helper()
		if err := s.saveCheckpoint(func(f func()) error { return s.loop.Do(t.Context(), f) }); err != nil {
			t.Fatal(err)
		}
		if _, p := restored(t, file, s.store.Config()); p.Step != step {
			t.Errorf("%s is of step %d, want %d", file, p.Step, step)
		}
	}
	end := func(step uint64) {
		t.Helper()
		if err := s.commitSync(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	end(0)
	save(1, path)
	s.keepGood("a test says so", "do nothing")
	end(1)
	save(2, path+divergedSuffix)
	save(1, path)
	s.finishNevertheless()
	save(2, path)
}

// A training that finishes nevertheless, while a checkpoint is about to be written, has its weights
// in the checkpoint, and not only in the file of later weights.
func TestTrainingFinishesWhileACheckpointIsDue(t *testing.T) {
	s := newServer(t, false)
	s.progress.agreed = func() map[string]string { return map[string]string{} }
	turn := func(f func()) error { return s.loop.Do(t.Context(), f) }
	s.diverged.Store(true)
	s.saving.Lock()
	saved := make(chan error, 1)
	if err := turn(s.commitStep); err != nil {
		t.Fatal(err)
	}
	go func() { saved <- s.saveCheckpoint(turn) }()
	awaitStack(t, "saveCheckpoint", "sync.(*Mutex).Lock")
	s.diverged.Store(false) // as finishNevertheless does, with the lock
	s.saved = 0
	s.saving.Unlock()
	if err := errors.Join(<-saved, s.saveCheckpoint(turn)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.env.Config.Server.Checkpoint); err != nil {
		t.Errorf("the weights are not in the checkpoint: %v", err)
	}
}

// awaitStack waits for a goroutine that is in all of these functions.
func awaitStack(t *testing.T, functions ...string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for deadline := time.Now().Add(eventLimit); ; time.Sleep(time.Millisecond) {
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if !slices.ContainsFunc(functions, func(f string) bool { return !strings.Contains(stack, f) }) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no goroutine is in %q", functions)
		}
	}
}

// Only a worker that ends by itself says why, and only one whose gradients are too large that the
// training diverges.
func TestDeparture(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if how := departureFor(ended, errors.New("anything")); how != (control.Departure{}) {
		t.Errorf("a worker that is told to end leaves as %+v", how)
	}
	if how := departureFor(t.Context(), errors.New("no such file")); how != (control.Departure{Reason: "no such file"}) {
		t.Errorf("a worker with another error leaves as %+v", how)
	}
	c := &cluster.Config{Servers: []cluster.Server{{Checkpoint: "a"}, {}, {Checkpoint: "b"}}}
	err := errors.New("lower it")
	for _, how := range []control.Departure{{}, {Reason: "lower it"}} {
		if got := withCheckpoint(err, how, c, true); got != err { //nolint:errorlint // it is the same one
			t.Errorf("%+v: %v", how, got)
		}
	}
	want := "lower it; then start without the server's checkpoints a, b, if there is one, because its weights may have begun to diverge: remove them, or put an earlier copy there"
	if got := withCheckpoint(err, control.Departure{Diverged: true}, c, false); got.Error() != want {
		t.Errorf("%v, want %q", got, want)
	}
	if got := withCheckpoint(err, control.Departure{Diverged: true}, &cluster.Config{}, true); got != err { //nolint:errorlint // it is the same one
		t.Errorf("without a file: %v", got)
	}
	never := time.Duration(0)
	c.Servers[0].CheckpointEvery, c.Servers[2].CheckpointEvery = &never, &never
	if got := withCheckpoint(err, control.Departure{Diverged: true}, c, false); got != err { //nolint:errorlint // it is the same one
		t.Errorf("where none has been written: %v", got)
	}
	if got := withCheckpoint(err, control.Departure{Diverged: true}, c, true); got.Error() != want {
		t.Errorf("where one has been read: %v", got)
	}
}

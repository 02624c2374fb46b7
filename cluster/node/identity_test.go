// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/train"
)

// trainingOf returns the identity of the training of a file, "" if it has none.
func trainingOf(t *testing.T, c *cluster.Config, path string) string {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	_, saved := restored(t, path, cfg)
	return saved.Agreed[control.TrainingField]
}

// setTraining gives a file another identity, or none.
func setTraining(t *testing.T, c *cluster.Config, path, id string) {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	store, saved := restored(t, path, cfg)
	saved.Agreed[control.TrainingField] = id
	if id == "" {
		delete(saved.Agreed, control.TrainingField)
	}
	attachment, err := json.Marshal(saved)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Checkpoint(path, attachment); err != nil {
		t.Fatal(err)
	}
}

// interruptSharded trains until the second step, and then ends server 1.
func interruptSharded(t *testing.T, c *cluster.Config) {
	t.Helper()
	out := trainSharded(t.Context(), t, c, nil, func(p train.Progress, ends []func()) {
		if p.Steps == 2 {
			ends[1]()
		}
	})
	if errors.Join(out.errs...) == nil {
		t.Fatal("training has not noticed")
	}
}

// An operator starts over by removing the checkpoints, and leaves those before them. The new
// training does not continue from these: it offers the start alone, and takes it.
func TestPreviousOfAnotherTrainingIsNotOffered(t *testing.T) {
	c, _, _ := trainedByTwo(t, 2)
	old := trainingOf(t, c, c.Servers[0].Checkpoint)
	for _, s := range c.Servers {
		for _, path := range []string{s.Checkpoint, s.Checkpoint + previousSuffix} {
			if id := trainingOf(t, c, path); id != old || id == "" {
				t.Errorf("%s is of training %q, the first of %q", path, id, old)
			}
		}
		if err := os.Remove(s.Checkpoint); err != nil {
			t.Fatal(err)
		}
	}
	c.Model.LearningRate = 0.2 // the reason to start over
	interruptSharded(t, c)
	if err := os.Remove(c.Servers[1].Checkpoint); err != nil { // as if it had been killed before its first checkpoint
		t.Fatal(err)
	}
	if id := trainingOf(t, c, c.Servers[0].Checkpoint); id == old || id == "" {
		t.Errorf("the new training is %q, the old one %q", id, old)
	}
	if _, err := os.Stat(c.Servers[0].Checkpoint + previousSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the previous checkpoint of the old training stays: %v", err)
	}

	err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs[2:]...)
	if err == nil || !strings.Contains(err.Error(), "start all servers with --step 0, the newest step of which each has a checkpoint") {
		t.Fatalf("workers end with %v", err)
	}
	zero := uint64(0)
	if err := errors.Join(trainSharded(t.Context(), t, c, &zero, nil).errs...); err != nil {
		t.Fatal(err)
	}
	if want, got := hash(reference(t, c)), hash(merged(t, c)); got != want {
		t.Errorf("weights %s, those of the new training %s", got, want)
	}
	ids := []string{trainingOf(t, c, c.Servers[0].Checkpoint), trainingOf(t, c, c.Servers[1].Checkpoint)}
	if ids[0] != ids[1] || ids[0] == "" || ids[0] == old {
		t.Errorf("identities %q, that of the old training %q", ids, old)
	}
}

// A previous checkpoint is offered, and taken, only if it is of the training that the checkpoint is
// of, and of an earlier step. Files of an earlier release have no identity.
func TestWhichPreviousCounts(t *testing.T) {
	c, _, steps := trainedByTwo(t, 2)
	path := c.Servers[1].Checkpoint
	for name, test := range map[string]struct {
		file, previous string
		step           uint64 // of the file
		want           []uint64
	}{
		"same training":                  {"a", "a", steps[0], steps},
		"another training":               {"a", "b", steps[0], steps[:1]},
		"put back beside a newer one":    {"a", "a", steps[1] - 1, []uint64{steps[1] - 1, 0}},
		"of the same step":               {"a", "a", steps[1], []uint64{steps[1], 0}},
		"of a release without":           {"", "", steps[0], steps},
		"the first of this release":      {"a", "", steps[0], steps},
		"older file beside one of today": {"", "a", steps[0], steps[:1]},
	} {
		t.Run(name, func(t *testing.T) {
			setTraining(t, c, path, test.file)
			setTraining(t, c, path+previousSuffix, test.previous)
			relabel(t, c, 1, test.step)
			s := newServer(t, true)
			one, err := c.ForServer(1)
			if err != nil {
				t.Fatal(err)
			}
			s.env.Config, s.env.Server = one, 1
			hot, err := loadHotSet(one, 4)
			if err != nil {
				t.Fatal(err)
			}
			s.hot = hot
			cfg, err := StoreConfig(one)
			if err == nil {
				err = s.openStore(cfg)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.startSteps(); !slices.Equal(got, test.want) {
				t.Errorf("steps %v, want %v", got, test.want)
			}
			// What is offered is taken, and nothing else.
			for _, step := range []uint64{steps[0], steps[1], steps[1] - 1} {
				s.env.Step = &step
				before, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				err = s.goBack(cfg)
				if offered := slices.Contains(test.want, step); offered != (err == nil) {
					t.Errorf("offered %v, and --step %d: %v", test.want, step, err)
				}
				if err := os.WriteFile(path, before, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := s.openStore(cfg); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Servers whose checkpoints are of the same step, but of different trainings, do not train.
func TestServersOfDifferentTrainings(t *testing.T) {
	c, _, _ := trainedByTwo(t, 2)
	path := c.Servers[1].Checkpoint
	setTraining(t, c, path, "another")
	c.Model.Epochs++
	ids := []string{trainingOf(t, c, c.Servers[0].Checkpoint), "another"}
	want := fmt.Sprintf("the checkpoints of the servers are of different trainings: %v, by index: put files there that belong together, or remove all to start over", ids)
	if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs[2:]...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	// The remedy.
	for _, s := range c.Servers {
		if err := os.Remove(s.Checkpoint); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs...); err != nil {
		t.Fatal(err)
	}
	if want, got := hash(reference(t, c)), hash(merged(t, c)); got != want {
		t.Errorf("weights %s, those of the training alone %s", got, want)
	}
}

// Checkpoints of an earlier release, which have no identity, are continued, and get one.
func TestOldCheckpointsGetAnIdentity(t *testing.T) {
	c, _, _ := trainedByTwo(t, 2)
	for _, s := range c.Servers {
		setTraining(t, c, s.Checkpoint, "")
		setTraining(t, c, s.Checkpoint+previousSuffix, "")
	}
	c.Model.Epochs++
	if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs...); err != nil {
		t.Fatal(err)
	}
	if want, got := hash(reference(t, c)), hash(merged(t, c)); got != want {
		t.Errorf("weights %s, want %s", got, want)
	}
	one, two := trainingOf(t, c, c.Servers[0].Checkpoint), trainingOf(t, c, c.Servers[1].Checkpoint)
	if one == "" || one != two {
		t.Errorf("identities %q and %q", one, two)
	}
}

// One server keeps the identity of its training, and begins another without its checkpoint.
func TestIdentityOfOneServer(t *testing.T) {
	for _, sync := range []bool{true, false} {
		c := newCluster(t, 2)
		c.Job.Sync = sync
		startSwitch(t, c)
		mustTrain(t, c)
		first := trainingOf(t, c, c.Server.Checkpoint)
		c.Model.Epochs++
		mustTrain(t, c)
		if again := trainingOf(t, c, c.Server.Checkpoint); again != first || first == "" {
			t.Errorf("sync %v: training %q continues as %q", sync, first, again)
		}
		if err := os.Remove(c.Server.Checkpoint); err != nil {
			t.Fatal(err)
		}
		mustTrain(t, c)
		if other := trainingOf(t, c, c.Server.Checkpoint); other == first || other == "" {
			t.Errorf("sync %v: training %q, and without its checkpoint %q", sync, first, other)
		}
	}
}

// Without barriers, too, a server whose file is gone does not begin anew beside others that
// continue: the weights would be those of two trainings. So a forgotten file ends a new beginning,
// and a lost one a continuation; and servers write their first checkpoints soon, so that few
// crashes leave none.
func TestServersOfWhichOneBeginsAnew(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
	shard(t, c, 2)
	startSwitch(t, c)
	mustTrainAll := func(what string) {
		t.Helper()
		if err := errors.Join(trainSharded(t.Context(), t, c, nil, nil).errs...); err != nil {
			t.Fatal(what, err)
		}
	}
	mustTrainAll("at first: ")
	c.Model.Epochs++
	for i, s := range c.Servers {
		kept, err := os.ReadFile(s.Checkpoint)
		if err == nil {
			err = os.Remove(s.Checkpoint)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("servers %v (by index, from 0) have no checkpoint of the training that the others continue", []int{i})
		for range 2 { // the server's own file of the first attempt changes nothing
			ctx, cancel := context.WithCancel(t.Context())
			var servers sync.WaitGroup
			for i := range c.Servers {
				servers.Go(func() { _, _ = RunServer(ctx, Env{Config: c, Server: i, Log: testLog(t)}) })
			}
			_, err := RunWorker(ctx, Env{Config: c, Log: testLog(t)}, WorkerOptions{ID: c.Workers[0].ID})
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "remove those of the others to start over") {
				t.Errorf("without the file of server %d: %v, want %q", i, err, want)
			}
			cancel()
			servers.Wait()
		}
		if err := os.WriteFile(s.Checkpoint, kept, 0o600); err != nil { // the first remedy
			t.Fatal(err)
		}
	}
	mustTrainAll("with the file: ")
	for _, s := range c.Servers { // the second one
		if err := os.Remove(s.Checkpoint); err != nil {
			t.Fatal(err)
		}
	}
	mustTrainAll("without files: ")
}

// A server of several writes its first checkpoint when the first worker reports, and not after a
// minute.
func TestFirstCheckpointOfSeveral(t *testing.T) {
	s := newServer(t, false)
	s.saveFirst()
	if len(s.due) != 0 {
		t.Error("a single server's is due")
	}
	s.env.Config.Servers = make([]cluster.Server, 2)
	s.saveFirst()
	if len(s.due) != 1 {
		t.Fatal("none is due")
	}
	<-s.due
	s.saveFirst()
	if len(s.due) != 0 {
		t.Error("another one is due")
	}
}

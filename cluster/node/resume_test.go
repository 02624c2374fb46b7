// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// saved reads a cluster's checkpoint.
func saved(t *testing.T, c *cluster.Config) (*ps.Store, savedProgress) {
	t.Helper()
	cfg, err := StoreConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return restored(t, c.Server.Checkpoint, cfg)
}

// restored reads a checkpoint.
func restored(t *testing.T, path string, cfg ps.Config) (*ps.Store, savedProgress) {
	t.Helper()
	store, attachment, err := ps.Restore(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var p savedProgress
	if err := json.Unmarshal(attachment, &p); err != nil {
		t.Fatal(err)
	}
	return store, p
}

// One epoch, and one more resumed from its checkpoint, are two epochs, bit for bit.
// The harvests of the second job count from 1 again, and are applied.
func TestResumedEpochEqualsTwoEpochs(t *testing.T) {
	c := newCluster(t, 2)
	startSwitch(t, c)
	one := hash(reference(t, c))
	first := mustTrain(t, c)
	if first.server.WeightsSHA256 != one {
		t.Fatalf("weights %s, the reference's %s", first.server.WeightsSHA256, one)
	}
	c.Model.Epochs = 2 // the total
	second := mustTrain(t, c)
	if want := hash(reference(t, c)); second.server.WeightsSHA256 != want {
		t.Errorf("weights %s, the reference's %s", second.server.WeightsSHA256, want)
	}
	if second.server.HotPairs == 0 {
		t.Error("no harvest of the second job was applied")
	}
	for i, w := range second.workers {
		if w.Samples != first.workers[i].Samples {
			t.Errorf("worker %d trained %d samples in the first run, %d in the second", w.Worker, first.workers[i].Samples, w.Samples)
		}
	}
	// A training that is complete stays as it is.
	third := mustTrain(t, c)
	if third.server.WeightsSHA256 != second.server.WeightsSHA256 || third.workers[0].Samples != 0 || third.workers[1].Samples != 0 {
		t.Errorf("a complete training: %+v, %+v", third.server, third.workers[0])
	}
	if store, p := saved(t, c); hash(store) != third.server.WeightsSHA256 || p.Complete != 2 || p.Step != 22 {
		t.Errorf("the checkpoint says %+v", p)
	}
	// And fewer epochs than there were are refused.
	c.Model.Epochs = 1
	if _, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "model.epochs") || !strings.Contains(err.Error(), c.Server.Checkpoint) {
		t.Errorf("fewer epochs: %v", err)
	}
}

// Workers that hold a window of their rows in memory train what the reference does, bit for
// bit, also from the middle on.
func TestWindowsOfRows(t *testing.T) {
	c := newCluster(t, 2)
	all := hash(reference(t, c))
	c.Data.Window, c.Model.Epochs = 70, 2
	want := hash(reference(t, c))
	startSwitch(t, c)
	out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, endServer func()) {
		if id == 1 && p.Steps == 15 {
			endServer()
		}
	}})
	if out.serverErr == nil {
		t.Fatal("the server was not interrupted")
	}
	other := *c
	other.Data.Window = 60
	if _, err := RunServer(soon(t), Env{Config: &other, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "data.window was 70 and is 60") {
		t.Errorf("another window: %v", err)
	}
	if got := mustTrain(t, c).server.WeightsSHA256; got != want || got == all {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
}

// However a synchronous run ends in the middle, the next one goes on from the last
// step that was committed, with the weights of a run that never ended.
func TestInterruptedRunGoesOn(t *testing.T) {
	errNone := errors.New("no error")
	for name, stop := range map[string]struct {
		end  func(endWorker, endServer func())
		want string // of the server's error
	}{
		"server is told to end": {func(_, endServer func()) { endServer() }, "context canceled"},
		"worker is lost":        {func(endWorker, _ func()) { endWorker() }, "worker 2"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			c.Model.Epochs = 2
			want := hash(reference(t, c))
			startSwitch(t, c)
			// At several steps, one after the other, then to the end.
			var last uint64
			for _, at := range []uint64{3, 2, 4} {
				out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, endWorker, endServer func()) {
					if id == 2 && p.Steps == at {
						stop.end(endWorker, endServer)
					}
				}})
				if err := errors.Join(out.serverErr, errNone); out.serverErr == nil || !strings.Contains(err.Error(), stop.want) {
					t.Fatalf("the server ends with %v, want %q", out.serverErr, stop.want)
				}
				_, p := saved(t, c)
				if p.Step < last+at-1 || p.Step > last+at || p.Complete != 0 {
					t.Fatalf("stopped after %d more steps than %d, the checkpoint says %+v", at, last, p)
				}
				last = p.Step
			}
			out := mustTrain(t, c)
			if out.server.WeightsSHA256 != want {
				t.Errorf("weights %s, the reference's %s", out.server.WeightsSHA256, want)
			}
			if out.workers[1].Steps+last != 14 {
				t.Errorf("%d steps and then %d, of 14", last, out.workers[1].Steps)
			}
		})
	}
}

// While training runs, checkpoints are written by steps and by time, and each is the
// state after some step.
func TestCheckpointsWhileTraining(t *testing.T) {
	for name, set := range map[string]func(*cluster.Server){
		"by steps": func(s *cluster.Server) { s.CheckpointSteps = 2 },
		"by time":  func(s *cluster.Server) { *s.CheckpointEvery = time.Millisecond },
		"never":    func(*cluster.Server) {},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			off := time.Duration(0)
			c.Server.CheckpointEvery = &off
			set(&c.Server)
			startSwitch(t, c)
			// After every step, wait for a checkpoint of it, if there is to be
			// one: then each is seen.
			var steps []uint64
			out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, _ func()) {
				done := p.Steps - 1 // the barrier of this one is to come
				if id != 1 || done == 0 || name == "never" || name == "by steps" && done%2 != 0 {
					return
				}
				for deadline := time.Now().Add(eventLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
					if _, err := os.Stat(c.Server.Checkpoint); err != nil {
						continue
					}
					if _, p := saved(t, c); p.Step == done {
						steps = append(steps, done)
						return
					}
				}
				t.Errorf("no checkpoint of step %d", done)
			}})
			if err := out.err(); err != nil {
				t.Fatal(err)
			}
			if name != "never" && len(steps) < 4 {
				t.Errorf("checkpoints of steps %v", steps)
			}
			if _, p := saved(t, c); p.Complete != 1 {
				t.Errorf("the last says %+v", p)
			}
			if files, _ := filepath.Glob(filepath.Dir(c.Server.Checkpoint) + "/*"); len(files) != 2 {
				t.Errorf("files %v", files)
			}
		})
	}
}

// What a killed server left of a checkpoint goes away at the next start.
func TestTemporaryCheckpointIsRemoved(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	left := c.Server.Checkpoint + ".tmp"
	if err := os.WriteFile(left, []byte("libra-ps, in part"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, c)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// A checkpoint that cannot be written is found before training, where that is
// possible, and does not end it otherwise; at the end it is an error.
func TestCheckpointThatCannotBeWritten(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.CheckpointSteps = 1
	startSwitch(t, c)
	good := c.Server.Checkpoint
	c.Server.Checkpoint = filepath.Join(t.TempDir(), "absent", "weights.libra")
	if _, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "server.checkpoint") {
		t.Errorf("absent folder: %v", err)
	}
	c.Server.Checkpoint = good
	out := trainCluster(t.Context(), t, c, hooks{step: func(_ uint16, p train.Progress, _, _ func()) {
		if p.Steps == 1 { // a folder is where the file is to be
			if err := os.MkdirAll(filepath.Join(good+".tmp", "full"), 0o700); err != nil {
				t.Error(err)
			}
		}
	}})
	if out.errs[0] != nil || out.workers[0].Steps != 21 {
		t.Errorf("the worker: %v", out.errs[0])
	}
	if out.serverErr == nil || !strings.Contains(out.serverErr.Error(), "writing checkpoint") {
		t.Errorf("the server: %v", out.serverErr)
	}
}

// Asynchronous workers go on with their own steps.
func TestAsynchronousRunGoesOn(t *testing.T) {
	c := newCluster(t, 2)
	c.Job.Sync, c.Job.Harvest = false, 5*time.Millisecond
	startSwitch(t, c)
	first := mustTrain(t, c)
	_, p := saved(t, c)
	if p.Complete != 1 || p.Step != 0 || p.Steps[1] != first.workers[0].Steps || p.Steps[2] != first.workers[1].Steps || p.Steps[1] == 0 {
		t.Fatalf("the checkpoint says %+v; the workers took %d and %d steps", p, first.workers[0].Steps, first.workers[1].Steps)
	}
	c.Model.Epochs = 3
	second := mustTrain(t, c)
	for i, w := range second.workers {
		if w.Steps != 2*first.workers[i].Steps {
			t.Errorf("worker %d took %d steps in one epoch, then %d in two", w.Worker, first.workers[i].Steps, w.Steps)
		}
	}
	if second.server.WeightsSHA256 == first.server.WeightsSHA256 || second.server.HotPairs < first.server.HotPairs {
		t.Errorf("%+v after %+v", second.server, first.server)
	}
}

// A checkpoint of another training is not continued.
func TestResumeComparesConfigurations(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	mustTrain(t, c)
	before, err := os.ReadFile(c.Server.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*cluster.Config){
		"model.batch was 20 and is 10": func(c *cluster.Config) { c.Model.Batch = 10 },
		"model.l2 was 0 and is 0.5":    func(c *cluster.Config) { c.Model.L2 = 0.5 },
		"job.sync was true and is false": func(c *cluster.Config) {
			c.Job.Sync, c.Job.Harvest = false, time.Millisecond
		},
		"workers was [1] and is [4]": func(c *cluster.Config) {
			c.Workers = []cluster.Worker{{ID: 4, Host: c.Workers[0].Host}}
		},
		"data was synthetic, rows 403": func(c *cluster.Config) {
			s := *c.Data.Synthetic
			s.Rows++
			c.Data.Synthetic = &s
		},
	} {
		other := *c
		change(&other)
		_, err := RunServer(soon(t), Env{Config: &other, Log: testLog(t)})
		if err == nil || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "remove the checkpoint") || !strings.Contains(err.Error(), c.Server.Checkpoint) {
			t.Errorf("error %v, want %q and the remedy", err, field)
		}
	}
	if after, err := os.ReadFile(c.Server.Checkpoint); err != nil || string(after) != string(before) {
		t.Errorf("the checkpoint has changed, %v", err)
	}
	// The pace may change.
	c.Model.Epochs, c.Model.LearningRate, c.Model.InitialAccumulator = 2, 0.1, 0.5
	mustTrain(t, c)
	// Weights without a word on how far they are trained are no training.
	store, _ := saved(t, c)
	if err := store.Checkpoint(c.Server.Checkpoint, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "does not record the progress") {
		t.Errorf("no attachment: %v", err)
	}
}

// A checkpoint may be continued as another job and with another hot set: where a
// gradient is added does not change exact sums.
func TestCheckpointContinuesInAnotherJob(t *testing.T) {
	c := newCluster(t, 2)
	startSwitch(t, c)
	first := mustTrain(t, c)
	src, err := OpenSource(c, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	hot, err := BuildHotSet(src, HotSetOptions{Rate: 0.5, Seed: 3, Dim: 4, Rows: 7})
	if err != nil {
		t.Fatal(err)
	}
	c.Job.ID, c.Job.HotSet = c.Job.ID+1, filepath.Join(t.TempDir(), "hot.libra")
	if err := packer.SaveHotSet(c.Job.HotSet, hot); err != nil {
		t.Fatal(err)
	}
	c.Model.Epochs = 2
	second := mustTrain(t, c)
	if want := hash(reference(t, c)); second.server.WeightsSHA256 != want {
		t.Errorf("weights %s, the reference's %s", second.server.WeightsSHA256, want)
	}
	if hot, was := second.server.HotPairs, first.server.HotPairs; hot == 0 || hot >= was {
		t.Errorf("%d pairs of 7 hot rows, %d of 500", hot, was)
	}
}

// Hosts that disagree on the training are told so before it begins.
func TestHostsMustAgree(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	for name, test := range map[string]struct {
		change func(*cluster.Config)
		want   []string
	}{
		"sync":       {func(w *cluster.Config) { w.Job.Sync, w.Job.Harvest = false, time.Millisecond }, []string{"job.sync"}},
		"port":       {func(w *cluster.Config) { w.Port++ }, []string{"port"}},
		"two fields": {func(w *cluster.Config) { w.Model.Epochs, w.Model.Batch = 7, 33 }, []string{"model.epochs", "model.batch", "7", "33", "20"}},
		"data": {func(w *cluster.Config) {
			s := *w.Data.Synthetic
			s.Seed++
			w.Data.Synthetic = &s
		}, []string{"data", "seed 10", "seed 9"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := trainCluster(t.Context(), t, c, hooks{
				change: func(_ uint16, w *cluster.Config) { test.change(w) },
			})
			for _, want := range test.want {
				if out.errs[0] == nil || !strings.Contains(out.errs[0].Error(), want) {
					t.Errorf("the worker's error %v does not name %q", out.errs[0], want)
				}
			}
		})
	}
}

// Training files are compared by their contents, among workers and with those of
// the run before.
func TestTrainingFilesMustAgree(t *testing.T) {
	write := func(name string, rows int) string {
		var b strings.Builder
		for i := range rows {
			fmt.Fprintf(&b, "%d %d:1 %d:1\n", i%2, i%7, 10+i%50)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := newCluster(t, 1)
	c.Data = cluster.Data{Train: write("train.libfm", 100)}
	buildHotSet(t, c)
	startSwitch(t, c)
	want := hash(reference(t, c))
	if got := mustTrain(t, c).server.WeightsSHA256; got != want {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
	c.Model.Epochs = 2
	other := write("other.libfm", 101)
	out := trainCluster(t.Context(), t, c, hooks{change: func(_ uint16, w *cluster.Config) { w.Data.Train = other }})
	if err := out.errs[0]; err == nil || !strings.Contains(err.Error(), "data: ") {
		t.Errorf("another file in the second run: %v", err)
	}
	// The same rows elsewhere are the same.
	same := write("same.libfm", 100)
	out = trainCluster(t.Context(), t, c, hooks{change: func(_ uint16, w *cluster.Config) { w.Data.Train = same }})
	if err := out.err(); err != nil {
		t.Error(err)
	}
}

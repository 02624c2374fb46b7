// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/train"
)

// outlive trains, and breaks the server's connections for ever in the middle, so that it dies for
// its workers. Another server is started then, with a configuration that again may change.
func outlive(t *testing.T, c *cluster.Config, again func(c *cluster.Config)) (out outcome, server func() (*ServerResult, error)) {
	t.Helper()
	first, end := context.WithCancel(t.Context())
	defer end()
	control, middle, over := &breakable{}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_, _ = RunServer(first, Env{Config: c, Log: testLog(t), Machine: Machine{Listen: control.listen}})
	}()
	out = outcome{workers: make([]*WorkerResult, len(c.Workers)), errs: make([]error, len(c.Workers))}
	var workers sync.WaitGroup
	reached := sync.OnceFunc(func() { close(middle) })
	for i, w := range c.Workers {
		workers.Go(func() {
			out.workers[i], out.errs[i] = RunWorker(t.Context(), Env{Config: c, Log: testLog(t)}, WorkerOptions{ID: w.ID,
				Progress: func(p train.Progress) {
					if p.Steps == 3 {
						reached()
						<-over // the training does not end before
					}
				}})
		})
	}
	<-middle
	control.breakAll()
	end()
	<-over
	next := *c
	again(&next)
	ended := make(chan struct{})
	var result *ServerResult
	var err error
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		result, err = RunServer(ctx, Env{Config: &next, Log: testLog(t)})
	}()
	workers.Wait()
	return out, func() (*ServerResult, error) { <-ended; return result, err }
}

// Workers wait for a server that has died, and train to the weights of a training that was not
// disturbed, whether it has a checkpoint or begins anew.
func TestWorkersOutliveTheirServer(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, c *cluster.Config){
		"from its checkpoint": func(*testing.T, *cluster.Config) {},
		"without a checkpoint": func(t *testing.T, c *cluster.Config) {
			if err := os.Remove(c.Server.Checkpoint); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2)
			startSwitch(t, c)
			out, server := outlive(t, c, func(c *cluster.Config) { again(t, c) })
			result, err := server()
			if err := errors.Join(out.err(), err); err != nil {
				t.Fatal(err)
			}
			if want := hash(reference(t, c)); result.WeightsSHA256 != want {
				t.Errorf("weights %s, the reference's %s", result.WeightsSHA256, want)
			}
			for _, w := range out.workers {
				if w.Rewinds != 1 {
					t.Errorf("worker %d has joined again %d times", w.Worker, w.Rewinds)
				}
			}
		})
	}
}

// Workers do not go on when the server has come back with another training, until they are started
// again.
func TestWorkersRefuseAnotherTraining(t *testing.T) {
	c := newCluster(t, 2)
	startSwitch(t, c)
	other := *c
	other.Server.Checkpoint = filepath.Join(t.TempDir(), "other.libra")
	trainCluster(t.Context(), t, &other, hooks{step: func(_ uint16, p train.Progress, _, endServer func()) {
		if p.Steps == 3 {
			endServer()
		}
	}})
	out, server := outlive(t, c, func(c *cluster.Config) { c.Server.Checkpoint = other.Server.Checkpoint })
	for i, err := range out.errs {
		if err == nil || !strings.Contains(err.Error(), "the server has come back with the checkpoint of another training") ||
			!strings.Contains(err.Error(), "start this worker again") {
			t.Errorf("worker %d: %v", i+1, err)
		}
	}
	var workers sync.WaitGroup
	for i, w := range c.Workers {
		workers.Go(func() {
			_, out.errs[i] = RunWorker(t.Context(), Env{Config: c, Log: testLog(t)}, WorkerOptions{ID: w.ID})
		})
	}
	workers.Wait()
	result, err := server()
	if err := errors.Join(out.err(), err); err != nil || result.WeightsSHA256 != hash(reference(t, c)) {
		t.Errorf("started again: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/cluster"
)

// A server that is to begin with step 0 gives its checkpoint up if that may be the first one, and no later one; nor for another step.
func TestFirstCheckpointIsGivenUp(t *testing.T) {
	const every = 5
	for _, c := range []struct {
		at, begin uint64
		gives     bool
	}{{1, 0, true}, {every, 0, true}, {every + 1, 0, false}, {every, 1, false}, {every + 1, 1, false}} {
		s := newServer(t, true)
		cfg := *s.env.Config
		cfg.Servers, cfg.Server.CheckpointSteps = make([]cluster.Server, 2), every
		s.env.Config, s.env.Step = &cfg, &c.begin
		s.hot = smallHotSet(t)
		path := cfg.Server.Checkpoint
		if err := os.WriteFile(path, []byte("the checkpoint"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.progress.commit(c.at)
		err := s.goBack(s.store.Config())
		_, stat := os.Stat(path)
		if gone := errors.Is(stat, fs.ErrNotExist); gone != c.gives {
			t.Errorf("a checkpoint of step %d for step %d is given up: %v", c.at, c.begin, gone)
		}
		if c.gives && (err != nil || s.progress.first(1) != 0) || !c.gives && (err == nil || !strings.HasSuffix(err.Error(), ", and there is none before it")) {
			t.Errorf("a checkpoint of step %d for step %d: %v, then step %d", c.at, c.begin, err, s.progress.first(1))
		}
	}
}

// One server, which has one checkpoint alone, takes no step to begin with, whether it has a file or not.
func TestOneServerTakesNoStep(t *testing.T) {
	step := uint64(3)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c := newCluster(t, 1)
	for _, path := range []string{c.Server.Checkpoint, ""} {
		theirs := *c
		theirs.Server.Checkpoint = path
		_, err := RunServer(ctx, Env{Config: &theirs, Step: &step, Log: testLog(t)})
		if err == nil || err.Error() != "--step 3: only several servers of a job with job.sync keep checkpoints of the same steps: leave it out" {
			t.Errorf("checkpoint %q: %v", path, err)
		}
	}
}

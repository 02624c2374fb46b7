// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// isDivergence reports whether a training has ended because gradients became too large.
func isDivergence(err error) bool {
	if refusal := (wire.Refusal{}); errors.As(err, &refusal) {
		return refusal.Code == wire.CodeOverflow || refusal.Code == wire.CodeNotFinite
	}
	var here *packer.NotFiniteError
	return errors.As(err, &here)
}

// departureFor returns how a worker leaves whose training ends with an error.
func departureFor(ctx context.Context, err error) control.Departure {
	if ctx.Err() != nil { // it is told to end, or has lost its job
		return control.Departure{}
	}
	return control.Departure{Reason: err.Error(), Diverged: isDivergence(err)}
}

// withCheckpoint adds to the remedy of a training that has diverged what the checkpoints need: to
// continue from one that has begun to diverge would end in the same way. There is none if the
// training has not continued from one, and servers write one only at its end.
func withCheckpoint(err error, how control.Departure, c *cluster.Config, resumed bool) error {
	var files []string
	for _, s := range c.AllServers() {
		meanwhile := s.CheckpointSteps > 0 || s.CheckpointEvery == nil || *s.CheckpointEvery > 0
		if s.Checkpoint != "" && (resumed || meanwhile) {
			files = append(files, s.Checkpoint)
		}
	}
	if !how.Diverged || files == nil {
		return err
	}
	noun, object := "checkpoint", "it"
	if len(files) > 1 {
		noun, object = "checkpoints", "them"
	}
	return fmt.Errorf("%w; then start without the server's %s %s, if there is one, because its weights may have begun to diverge: remove %s, or put an earlier copy there",
		err, noun, strings.Join(files, ", "), object)
}

// divergedSuffix is added to the name of a checkpoint for one that is written after the training
// has diverged.
const divergedSuffix = ".diverged"

// keepGood keeps the checkpoint that the server has, because the training has diverged: weights of
// later steps, and probably of the last ones before, make gradients too large again. They go to
// another file, for those who want to look at them. The remedy is what makes gradients smaller.
func (s *server) keepGood(why, remedy string) {
	if s.diverged.Swap(true) {
		return
	}
	path := s.env.Config.Server.Checkpoint
	if _, err := s.checkpointDisk().Stat(path); path == "" || err != nil { // there is none to be kept, or removed
		s.env.Log.Error("training has diverged", "because", why, "remedy", remedy+", and start again")
		return
	}
	s.env.Log.Error("training has diverged: the checkpoint is kept as it is", "because", why, "checkpoint", path,
		"later_weights_go_to", path+divergedSuffix,
		"remedy", remedy+", and remove the checkpoint to start over, or put an earlier copy there")
}

// withDivergence returns why the server ends, for those that follow it: they are to keep their
// checkpoints, too.
func (s *server) withDivergence(err error) error {
	if err == nil || !s.diverged.Load() {
		return err
	}
	return fmt.Errorf("%w: %w", control.ErrDiverged, err)
}

// finishNevertheless makes the next checkpoint replace the one that was kept: the training has
// finished, although gradients were too large for a while, and the checkpoint is its result.
func (s *server) finishNevertheless() {
	if !s.diverged.Swap(false) {
		return
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.saved = 0 // in the file of later weights
	s.env.Log.Warn("training has finished nevertheless: its weights replace the checkpoint")
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/ps"
)

// Several servers of a synchronous job can only continue from checkpoints of the same step. So they
// write one after every checkpoint_steps steps, before the workers continue, and keep the previous
// one. When any of them has committed a later step, all have that checkpoint; until a server has
// committed one, it has not given up the previous one. Whenever servers end, or are killed, there
// is a step of which each has a checkpoint.
//
// A file may be of another life: the previous checkpoint of a training that was given up, by
// removing its file, or one beside which an older file was put back. So checkpoints carry the
// identity of their training, and the previous one counts only if it is of the same training, and
// of an earlier step.

// savesSteps reports whether the server keeps checkpoints of the same steps as other servers.
func (s *server) savesSteps() bool { return s.hasSeveral() && s.env.Config.Job.Sync }

// hotSetField is the name of the hot set's fingerprint in the checkpoints of several servers.
const hotSetField = "job.hot_set"

// previousSuffix is added to the name of a checkpoint for the previous one.
const previousSuffix = ".previous"

// saveStep writes the checkpoint of a step that all servers keep.
func (s *server) saveStep(ctx context.Context) {
	err := s.saveCheckpoint(func(f func()) error { return s.loop.Do(ctx, f) })
	if err != nil && ctx.Err() == nil {
		s.env.Log.Error("no checkpoint was written; training goes on, and cannot be continued if the other servers have gone further when it ends", "error", err)
	}
}

// keepPrevious keeps the checkpoint that is about to be replaced, if there is one. Otherwise the
// previous one is of a training that was given up.
func (s *server) keepPrevious() error {
	path := s.env.Config.Server.Checkpoint
	if _, err := s.checkpointDisk().Stat(path); errors.Is(err, fs.ErrNotExist) {
		return s.removePrevious()
	}
	return s.copyCheckpoint(path, path+previousSuffix)
}

// removePrevious removes a previous checkpoint that is of no use, if there is one.
func (s *server) removePrevious() error {
	path := s.checkpointDisk().Resolve(s.env.Config.Server.Checkpoint + previousSuffix)
	err := s.checkpointDisk().Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, s.checkpointDisk().SyncDir(filepath.Dir(path)))
}

// isOfThisTraining reports whether a previous checkpoint is of the training that the server
// continues. An earlier release may have written it, without an identity.
func (s *server) isOfThisTraining(previous *savedProgress) bool {
	id := previous.Agreed[control.TrainingField]
	return id == "" || id == s.agreement[control.TrainingField]
}

// copyCheckpoint replaces the file to by a copy of from.
func (s *server) copyCheckpoint(from, to string) error {
	return file.ReplaceOn(s.checkpointDisk(), to, temporary, func(w io.Writer) error {
		f, err := s.checkpointDisk().Open(from)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}

// checkStep refuses a start step that no checkpoint can have.
func (s *server) checkStep() error {
	switch {
	case s.env.Step == nil || s.savesSteps() && s.env.Config.Server.Checkpoint != "":
		return nil
	case s.savesSteps():
		return fmt.Errorf("--step %d: %s.checkpoint names no file: leave --step out", *s.env.Step, s.configField())
	}
	return fmt.Errorf("--step %d: only several servers of a job with job.sync keep checkpoints of the same steps: leave it out", *s.env.Step)
}

// goBack makes the previous checkpoint the server's, if the server must start from it. Before the
// first checkpoint the server had none. Later progress is given up.
func (s *server) goBack(cfg ps.Config) error {
	if s.env.Step == nil || s.progress.step == *s.env.Step {
		return nil
	}
	path := s.env.Config.Server.Checkpoint
	if _, err := s.checkpointDisk().Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--step %d: there is no checkpoint %s (%s.checkpoint): put one of that step there, which may be %s%s",
			*s.env.Step, path, s.configField(), path, previousSuffix)
	}
	has := fmt.Errorf("--step %d: the checkpoint %s (%s.checkpoint) is of step %d",
		*s.env.Step, path, s.configField(), s.progress.step)
	_, attachment, err := s.readCheckpoint(path+previousSuffix, cfg)
	var saved savedProgress
	none := errors.Is(err, fs.ErrNotExist)
	if err == nil && json.Unmarshal(attachment, &saved) == nil && !s.isOfThisTraining(&saved) {
		none = true
		has = fmt.Errorf("%w (that of %s%s is of another training)", has, path, previousSuffix)
	}
	earlier := newProgress(s.progress.sync, s.progress.server)
	if err == nil && !none {
		if _, err := earlier.resumeFrom(attachment, s.agreement, s.env.Config.Model.Epochs); err != nil {
			return fmt.Errorf("checkpoint %s: %w", path+previousSuffix, err)
		}
		if earlier.step >= s.progress.step { // an older file was put back beside it
			none = true
			has = fmt.Errorf("%w (that of %s%s, of step %d, is not earlier)", has, path, previousSuffix, earlier.step)
		}
	}
	switch {
	case none && *s.env.Step == 0 && s.mayBeFirst():
		return s.beginAnew(cfg)
	case none:
		return fmt.Errorf("%w, and there is none before it", has)
	case err != nil:
		return fmt.Errorf("%w, and the one before it cannot be read: %w", has, err)
	case earlier.step != *s.env.Step:
		return fmt.Errorf("%w, and the one before it of step %d: start all servers with a step of which each has a checkpoint", has, earlier.step)
	}
	if err := s.copyCheckpoint(path+previousSuffix, path); err != nil {
		return err
	}
	return s.openStore(cfg)
}

// mayBeFirst reports whether the checkpoint may be the first one, before which another server had
// none.
func (s *server) mayBeFirst() bool { return s.progress.step <= s.env.Config.Server.CheckpointSteps }

// startSteps returns the steps from which the server could start: the values that --step accepts.
func (s *server) startSteps() []uint64 {
	steps := []uint64{s.progress.step}
	saved, err := s.readPreviousProgress()
	switch {
	case err == nil:
		return append(steps, saved.Step)
	case errors.Is(err, fs.ErrNotExist) && s.mayBeFirst():
		return append(steps, 0)
	}
	return steps
}

// readPreviousProgress reads which step the previous checkpoint is of. One that is not of this
// training, or not of an earlier step, does not exist.
func (s *server) readPreviousProgress() (*savedProgress, error) {
	if _, err := s.checkpointDisk().Stat(s.env.Config.Server.Checkpoint); err != nil { // the operator has started over
		return nil, fs.ErrNotExist
	}
	f, err := s.checkpointDisk().Open(s.env.Config.Server.Checkpoint + previousSuffix)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var saved savedProgress
	attachment, err := ps.ReadAttachment(f)
	if err == nil {
		err = json.Unmarshal(attachment, &saved)
	}
	if err == nil && (!s.isOfThisTraining(&saved) || saved.Step >= s.progress.step) {
		err = fs.ErrNotExist
	}
	return &saved, err
}

// beginAnew gives up the first checkpoint.
func (s *server) beginAnew(cfg ps.Config) error {
	path := s.checkpointDisk().Resolve(s.env.Config.Server.Checkpoint)
	if err := errors.Join(s.checkpointDisk().Remove(path), s.checkpointDisk().SyncDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("--step 0: giving up the checkpoint: %w", err)
	}
	return s.openStore(cfg)
}

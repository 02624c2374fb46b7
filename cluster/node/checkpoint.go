// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/ps"
)

// openStore creates the server's store: from the checkpoint if there is one.
func (s *server) openStore(cfg ps.Config) (err error) {
	c := s.env.Config
	s.progress = newProgress(c.Job.Sync, s.env.Server)
	s.agreement = c.Agreement()
	if s.hasSeveral() { // the hot set determines which server owns a row
		s.agreement[hotSetField] = fmt.Sprintf("%x", s.hot.Fingerprint())
	}
	path := c.Server.Checkpoint
	if path == "" {
		s.store, err = ps.New(cfg)
		return err
	}
	if _, err := s.checkpointDisk().Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf(s.configField()+".checkpoint: the folder of the file: %w", err)
	}
	if s.restored, err = s.checkpointDisk().Stat(path); errors.Is(err, fs.ErrNotExist) {
		s.restored = nil
		s.store, err = ps.New(cfg)
		return err
	}
	if err != nil {
		return fmt.Errorf(s.configField()+".checkpoint: %w", err)
	}
	store, attachment, err := s.readCheckpoint(path, cfg)
	switch {
	case errors.Is(err, ps.ErrMismatch):
		return fmt.Errorf(s.configField()+".checkpoint: %w; "+
			"restore the configuration that it was trained with, or remove it to start over", err)
	case errors.Is(err, ps.ErrNotCheckpoint): // a file of data, perhaps, of which there is no other copy
		return fmt.Errorf(s.configField()+".checkpoint: %w; if it is another file, name one of the server's own there, "+
			"and otherwise replace it by an intact copy, or remove it to start over", err)
	case errors.Is(err, ps.ErrCorrupt):
		return fmt.Errorf(s.configField()+".checkpoint: %w; replace it by an intact copy, or remove it to start over", err)
	case errors.Is(err, ps.ErrVersion):
		return fmt.Errorf(s.configField()+".checkpoint: %w; "+
			"continue with the version of Libra that wrote it, or remove it to start over", err)
	case err != nil:
		return fmt.Errorf(s.configField()+".checkpoint: %w", err)
	}
	if s.agreement, err = s.progress.resumeFrom(attachment, s.agreement, c.Model.Epochs); err != nil {
		return fmt.Errorf("checkpoint %s (%s.checkpoint): %w", path, s.configField(), err)
	}
	s.store = store
	return nil
}

func (s *server) checkpointDisk() Disk { return s.env.Machine.disk() }

// temporary is the suffix of a checkpoint that is being written.
const temporary = ".tmp"

// readCheckpoint is [ps.Restore] on the machine's disk.
func (s *server) readCheckpoint(path string, cfg ps.Config) (*ps.Store, []byte, error) {
	f, err := s.checkpointDisk().Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("opening checkpoint: %w", err)
	}
	defer f.Close()
	store, attachment, err := ps.ReadCheckpoint(f, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return store, attachment, nil
}

// takeCheckpoint makes the checkpoint this server's, which now owns the job, until release is
// called. The job's previous server, which removed the job when it had ended, may have written
// another checkpoint since open read it. A server that was stopped until its lease had ended, or
// that belongs to another job or switch, still has the checkpoint.
func (s *server) takeCheckpoint(cfg ps.Config) (release func() error, err error) {
	path := s.env.Config.Server.Checkpoint
	if path == "" {
		return func() error { return nil }, nil
	}
	// Fail now and not after hours of training.
	release, err = s.checkpointDisk().Lock(path, ".lock")
	switch {
	case errors.Is(err, file.ErrLocked):
		return nil, fmt.Errorf(s.configField()+".checkpoint: %w: end that server, or give this one a file of its own", err)
	case err != nil:
		return nil, fmt.Errorf(s.configField()+".checkpoint: a checkpoint cannot be written: %w", err)
	}
	err = file.PrepareOn(s.checkpointDisk(), path, temporary)
	if err == nil && s.savesSteps() {
		err = file.PrepareOn(s.checkpointDisk(), path+previousSuffix, temporary)
	}
	if err != nil {
		err = fmt.Errorf(s.configField()+".checkpoint: a checkpoint cannot be written: %w", err)
	} else {
		err = s.reopenStore(cfg)
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// reopenStore reads the checkpoint again if it was replaced, and logs where training starts.
func (s *server) reopenStore(cfg ps.Config) error {
	path := s.env.Config.Server.Checkpoint
	if now, err := s.checkpointDisk().Stat(path); err == nil && !sameFile(s.restored, now) {
		if err := s.openStore(cfg); err != nil {
			return err
		}
	}
	if err := s.goBack(cfg); err != nil {
		return err
	}
	if s.restored == nil {
		return nil
	}
	log := s.env.Log.With("file", path, "rows", s.store.Len())
	if s.progress.complete > 0 {
		log.Info("the checkpoint's training is complete: raise model.epochs, the total, to train on", "epochs",
			s.progress.complete)
		return nil
	}
	if s.progress.sync {
		log = log.With("step", s.progress.step)
	}
	log.Info("continues from a checkpoint")
	return nil
}

// sameFile reports whether a file has not been replaced.
func sameFile(was, now fs.FileInfo) bool {
	return was != nil && os.SameFile(was, now) && was.ModTime().Equal(now.ModTime()) && was.Size() == now.Size()
}

// saveAgain is how long the server continues training after a failed checkpoint: the reason, such
// as a full disk, seldom disappears by itself.
const saveAgain = 10 * time.Second

// saveRegularly writes checkpoints periodically, and whenever one is due after a step, until ctx
// ends.
func (s *server) saveRegularly(ctx context.Context) {
	var tick <-chan time.Time
	every := cluster.DefaultCheckpointEvery
	if p := s.env.Config.Server.CheckpointEvery; p != nil {
		every = *p
	}
	if every > 0 {
		tick = time.Tick(every)
	}
	for {
		select {
		case <-ctx.Done():
		case <-tick:
		case <-s.due:
		}
		s.env.Machine.turn("is to write a checkpoint, or to end")
		if ctx.Err() != nil {
			return // RunServer writes the last one
		}
		err := s.saveCheckpoint(func(f func()) error { return s.loop.Do(ctx, f) })
		if err != nil && ctx.Err() == nil {
			s.env.Log.Error("no checkpoint was written; training goes on", "error", err, "next_try_in", saveAgain)
			select {
			case <-ctx.Done():
			case <-time.After(saveAgain):
			}
		}
	}
}

// saveCheckpoint writes a checkpoint of the weights of the last commit, unless the last checkpoint
// has them. turn runs a function in the goroutine that owns the store.
func (s *server) saveCheckpoint(turn func(func()) error) error {
	path := s.env.Config.Server.Checkpoint
	if path == "" {
		return nil
	}
	s.saving.Lock() // a step may end while the server does, and the training may finish nevertheless
	defer s.saving.Unlock()
	diverged := s.diverged.Load()
	if diverged {
		path += divergedSuffix
	}
	var (
		snapshot *ps.Snapshot
		version  uint64
		failed   error
	)
	saved := s.saved
	if s.savesSteps() && !diverged {
		if err := turn(func() { version = s.version }); err != nil || version == saved {
			return err
		}
		if err := s.keepPrevious(); err != nil {
			return err
		}
	}
	err := turn(func() {
		version = s.version
		if version == saved {
			return
		}
		var attachment []byte
		if attachment, failed = s.progress.encodeAttachment(); failed == nil {
			snapshot = s.store.Snapshot(attachment)
		}
	})
	if err := errors.Join(err, failed); err != nil || snapshot == nil {
		return err
	}
	begin := time.Now()
	if err := file.ReplaceOn(s.checkpointDisk(), path, temporary, func(w io.Writer) error {
		return snapshot.Write(w, turn)
	}); err != nil {
		return fmt.Errorf("writing checkpoint: %w", err)
	}
	s.saved = version
	s.env.Log.Debug("checkpoint written", "file", path, "took", time.Since(begin))
	return nil
}

// waitForRoom bounds how long the last checkpoint is tried again while the disk is full. An
// operator can make room meanwhile, and no other file has the weights.
const waitForRoom = 10 * time.Minute

// ErrNotSaved is in the error of [RunServer] if the last checkpoint was not written.
var ErrNotSaved = errors.New("the last checkpoint was not written")

// saveAtEnd writes the last checkpoint, when nothing else uses the store any more. The error may be
// one of many, so it is logged, too.
func (s *server) saveAtEnd() error {
	var err error
	for end := time.Now().Add(waitForRoom); ; {
		err = s.saveCheckpoint(func(f func()) error { f(); return nil })
		full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
		if !full || !time.Now().Add(saveAgain).Before(end) {
			break
		}
		s.env.Log.Error("the last checkpoint was not written: make room on its disk, or end this process by a second Ctrl-C or a kill",
			"error", err, "next_try_in", saveAgain, "until", end.Format(time.RFC3339))
		time.Sleep(saveAgain)
	}
	if err == nil {
		return nil
	}
	s.env.Log.Error(ErrNotSaved.Error(), "error", err)
	return fmt.Errorf("%w: %w", ErrNotSaved, err)
}

// checkpointAfter reports whether a checkpoint is due after a step.
func (s *server) checkpointAfter(step uint64) bool {
	every := s.env.Config.Server.CheckpointSteps
	return every > 0 && (step+1)%every == 0
}

// saveAfter makes a checkpoint due if a step requires it.
func (s *server) saveAfter(step uint64) {
	if s.checkpointAfter(step) {
		s.saveSoon()
	}
}

// saveFirst makes the first checkpoint due when the first worker reports, if there are several
// servers: one that ends without a checkpoint cannot continue beside others that have theirs.
func (s *server) saveFirst() {
	if s.hasSeveral() {
		s.first.Do(s.saveSoon)
	}
}

// saveSoon makes a checkpoint due.
func (s *server) saveSoon() {
	select {
	case s.due <- struct{}{}:
	default: // one is due already
	}
}

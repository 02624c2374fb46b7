// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/libra-ina/libra/ps"
)

// fileAccount is a completely written checkpoint: it has the weights of a commit.
type fileAccount struct {
	data    []byte
	store   *storeAccount
	version int
}

func readCheckpoint(data []byte, cfg ps.Config) (*ps.Store, []byte, error) {
	return ps.ReadCheckpoint(bytes.NewReader(data), cfg)
}

// checkWritten checks a checkpoint that gets its name: it has the weights of a commit and the
// matching progress of the training.
func (a *accounts) checkWritten(data []byte) {
	s, st := a.c, a.store
	if st == nil || s.Failed() {
		return
	}
	store, attachment, err := readCheckpoint(data, a.cfg)
	if err != nil {
		s.Fail("a checkpoint that cannot be read gets the name of the last one: %v", err)
		return
	}
	// Commits without changes have the same weights.
	oldest := slices.Index(st.hashes, store.Hash())
	version := oldest
	for version >= 0 && version+1 < len(st.hashes) && st.hashes[version+1] == st.hashes[oldest] {
		version++
	}
	if version < 0 {
		s.Fail("a checkpoint has weights that no commit had")
		return
	}
	a.files = append(a.files, fileAccount{slices.Clone(data), st, version})
	var saved struct {
		Step  uint64
		Steps map[uint16]uint64
	}
	if err := json.Unmarshal(attachment, &saved); err != nil {
		s.Fail("a checkpoint's attachment: %v", err)
		return
	}
	stepsOf := func(worker uint16) uint64 {
		if a.c.cfg.Job.Sync {
			return saved.Step
		}
		return saved.Steps[worker]
	}
	a.checkTaken(st, version, stepsOf)
	for _, e := range a.order {
		steps := stepsOf(e.worker)
		if e.claim > 0 && e.claim <= steps && !st.holdsAt(e, version) {
			s.Fail("a checkpoint counts %d steps of worker %d, but frame %d to %s, of the first %d, is not in its weights",
				steps, e.worker, e.id.seq, e.id.to.Name(), e.claim)
			return
		}
		if a.c.cfg.Job.Sync && e.claim > steps && !e.idle && st.holdsAt(e, oldest) {
			s.Fail("a checkpoint counts %d steps, but holds frame %d of worker %d, of step %d",
				steps, e.id.seq, e.worker, e.claim)
			return
		}
	}
}

// leaves a checkpoint: a server that ends by itself has written its last commit.
func (a *accounts) checkLeft(p *process) {
	s, st := a.c, a.store
	if st == nil || st.of != p || st.version == 0 || s.Failed() {
		return
	}
	for _, name := range a.c.disk.Names() {
		if name != checkpointPath {
			s.Fail("%s ends and leaves %s", p.Name(), name)
		}
	}
	data, ok := a.c.disk.Data(checkpointPath)
	if !ok {
		s.Fail("%s ends and leaves no checkpoint", p.Name())
		return
	}
	if store, _, err := readCheckpoint(data, a.cfg); err != nil || store.Hash() != st.hashes[st.version] {
		s.Fail("%s ends and leaves a checkpoint that is older than its last commit: %v", p.Name(), err)
	}
	if !a.c.disk.Durable(checkpointPath) {
		s.Fail("%s ends and leaves a checkpoint that a loss of power may take back", p.Name())
	}
}

// saving is how long a due checkpoint may take: its writes, and the turns of others.
const saving = 200 * time.Millisecond

// planCheckpoint records a commit of the open step, and checks later whether a checkpoint has it:
// by time, one begins in each period, and by steps, one after each checkpoint_steps.
func (a *accounts) planCheckpoint() {
	server := &a.c.cfg.Server
	within := 2*(*server.CheckpointEvery) + saving
	var steps uint64
	for _, e := range a.store.pending {
		steps = max(steps, e.claim)
	}
	if n := server.CheckpointSteps; n > 0 && steps > 0 && steps%n == 0 {
		within = saving
	}
	a.expectCheckpoint(a.store, a.store.version, within)
}

func (a *accounts) expectCheckpoint(st *storeAccount, version int, within time.Duration) {
	c, since := a.c, time.Now()
	c.After(within, func() {
		at := st.of.Host()
		switch {
		case c.procs[theServer] != st.of || st.of.Dead() || !c.conns.Listens(c.cfg.Server.Control):
			return // one that ends writes another
		case slices.ContainsFunc(a.files, func(f fileAccount) bool { return f.store == st && f.version >= version }):
			return
		case at.Paused() || at.ResumedAt().After(since):
			a.expectCheckpoint(st, version, within)
			return
		}
		c.Fail("%s has committed %d times, and %v later no checkpoint has that", st.of.Name(), version, within)
	})
}

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

// written checks a checkpoint that gets its name: it has the weights of a commit and the matching
// progress of the training.
func (a *accounts) written(data []byte) {
	s, st := a.c.s, a.store
	if st == nil || s.failure != nil {
		return
	}
	store, attachment, err := readCheckpoint(data, a.cfg)
	if err != nil {
		s.fail("a checkpoint that cannot be read gets the name of the last one: %v", err)
		return
	}
	// Commits without changes have the same weights.
	oldest := slices.Index(st.hashes, store.Hash())
	version := oldest
	for version >= 0 && version+1 < len(st.hashes) && st.hashes[version+1] == st.hashes[oldest] {
		version++
	}
	if version < 0 {
		s.fail("a checkpoint has weights that no commit had")
		return
	}
	a.files = append(a.files, fileAccount{slices.Clone(data), st, version})
	var saved struct {
		Step  uint64
		Steps map[uint16]uint64
	}
	if err := json.Unmarshal(attachment, &saved); err != nil {
		s.fail("a checkpoint's attachment: %v", err)
		return
	}
	for _, e := range a.order {
		steps := saved.Steps[e.worker]
		if a.c.cfg.Job.Sync {
			steps = saved.Step
		}
		if e.claim > 0 && e.claim <= steps && !st.holdsAt(e, version) {
			s.fail("a checkpoint counts %d steps of worker %d, but frame %d to %s, of the first %d, is not in its weights", steps, e.worker, e.id.seq, e.id.to.name, e.claim)
			return
		}
		if a.c.cfg.Job.Sync && e.claim > steps && !e.idle && st.holdsAt(e, oldest) {
			s.fail("a checkpoint counts %d steps, but holds frame %d of worker %d, of step %d", steps, e.id.seq, e.worker, e.claim)
			return
		}
	}
}

// leaves a checkpoint: a server that ends by itself has written its last commit.
func (a *accounts) left(p *process) {
	s, st := a.c.s, a.store
	if st == nil || st.of != p || st.version == 0 || s.failure != nil {
		return
	}
	for name := range a.c.disk.names {
		if name != checkpointPath {
			s.fail("%s ends and leaves %s", p.name, name)
		}
	}
	f := a.c.disk.names[checkpointPath]
	if f == nil {
		s.fail("%s ends and leaves no checkpoint", p.name)
		return
	}
	if store, _, err := readCheckpoint(f.data, a.cfg); err != nil || store.Hash() != st.hashes[st.version] {
		s.fail("%s ends and leaves a checkpoint that is older than its last commit: %v", p.name, err)
	}
	if a.c.disk.synced[checkpointPath] != f || !bytes.Equal(f.synced, f.data) {
		s.fail("%s ends and leaves a checkpoint that a loss of power may take back", p.name)
	}
}

// saving is how long a due checkpoint may take: its writes, and the turns of others.
const saving = 200 * time.Millisecond

// due records a commit of the open step, and checks later whether a checkpoint has it: by time, one
// begins in each period, and by steps, one after each checkpoint_steps.
func (a *accounts) due() {
	server := &a.c.cfg.Server
	within := 2*(*server.CheckpointEvery) + saving
	var steps uint64
	for _, e := range a.store.pending {
		steps = max(steps, e.claim)
	}
	if n := server.CheckpointSteps; n > 0 && steps > 0 && steps%n == 0 {
		within = saving
	}
	a.lookFor(a.store, a.store.version, within)
}

func (a *accounts) lookFor(st *storeAccount, version int, within time.Duration) {
	c, since := a.c, time.Now()
	c.s.after(within, func() {
		at := st.of.host
		switch {
		case c.procs[theServer] != st.of || st.of.dead.Load() || c.tcp.listeners[c.cfg.Server.Control] == nil:
			return // one that ends writes another
		case slices.ContainsFunc(a.files, func(f fileAccount) bool { return f.store == st && f.version >= version }):
			return
		case at.paused || at.resumed.After(since):
			a.lookFor(st, version, within)
			return
		}
		c.s.fail("%s has committed %d times, and %v later no checkpoint has that", st.of.name, version, within)
	})
}

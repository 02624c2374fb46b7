package simulation

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/libra-ina/libra/ps"
)

// fileAccount is a checkpoint that was written whole: it has the weights of a commit.
type fileAccount struct {
	data    []byte
	store   *storeAccount
	version int
}

func readCheckpoint(data []byte, cfg ps.Config) (*ps.Store, []byte, error) {
	return ps.ReadCheckpoint(bytes.NewReader(data), cfg)
}

// written checks a checkpoint that gets its name: it has the weights of a commit, and what
// it tells of the training's progress is true of them.
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
	// Commits that change nothing have the same weights.
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
		if a.c.cfg.Job.Sync && e.claim > steps && st.holdsAt(e, oldest) {
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
	f := a.c.disk.names[checkpointPath]
	if f == nil {
		s.fail("%s ends and leaves no checkpoint", p.name)
		return
	}
	if store, _, err := readCheckpoint(f.data, a.cfg); err != nil || store.Hash() != st.hashes[st.version] {
		s.fail("%s ends and leaves a checkpoint that is older than its last commit: %v", p.name, err)
	}
}

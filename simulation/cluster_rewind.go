// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"maps"
	"slices"
	"strings"

	"github.com/libra-ina/libra/wire"
)

// planRewinds plans that workers or the server vanish, up to six times, in one life of four, or in
// all if it is the only kind.
func (c *clusterLife) planRewinds() {
	rng := c.options.named("rewinds")
	some := rng.IntN(4) == 0 || c.options.Kinds == Rewind
	if c.options.Kinds&Rewind == 0 || !some {
		return
	}
	c.delayServer()
	for range 1 + rng.IntN(6) {
		moment, clock := 1+rng.IntN(1+rng.IntN(900)), byFrames
		if rng.IntN(2) == 0 {
			clock = byMessages
		}
		role := theServer
		if i := rng.IntN(len(c.cfg.Workers) + 1); i < len(c.cfg.Workers) {
			role = workerName(c.cfg.Workers[i].ID)
		}
		c.planned[clock] = append(c.planned[clock], planned{moment, func() {
			if !c.Healed() {
				c.noteLoss(role)
				c.Tell("%s vanishes\n", role)
				c.crashRole(role, false)
			}
		}})
	}
}

// noteLoss notes that a worker or the server vanishes. That explains the end of a process only if
// the job cannot rewind, or if the server had not begun to serve: others may have waited for it for
// too long. A process whose configuration is wrong may not know that the job can.
func (c *clusterLife) noteLoss(role string) {
	p := c.procs[role]
	serves := p != nil && p.ready && c.cfg.Job.Sync
	wrong := slices.ContainsFunc(slices.Collect(maps.Values(c.procs)), func(p *process) bool { return p.wrong != "" })
	if c.guest != 0 || role == theServer && (!serves || wrong) {
		c.happened |= Crash
	}
	if role == theServer && serves && !p.Dead() {
		c.result.Restarts++
	}
}

// noteServed notes that a server has answered a process. It may be another one than that with which
// the process has begun.
func (p *process) noteServed(method string, err error) {
	if err == nil && strings.Contains(method, "ParameterServer/") {
		p.c.Mu.Lock()
		p.serving = p.c.serving
		p.c.Mu.Unlock()
	}
}

// rewindServer records that a server drops its open step and ends its generation. Nothing of what
// was sent before may count after it. The server's goroutine calls it.
func (a *accounts) rewindServer(p *process) {
	s := a.c
	s.Mu.Lock()
	defer s.Mu.Unlock()
	st := a.store
	if p.Dead() || st == nil || st.of != p {
		return
	}
	a.compareStore() // what it has done before in the same turn
	s.result.Rewinds++
	s.Tell("%s drops the open step\n", p.Name())
	st.shadow.Drop()
	st.pending, a.news = nil, true
	if !st.fenced {
		a.dropped, a.plane, a.next = a.plane, a.next, nil
	}
	st.fenced, st.taken, st.settled = true, map[*process][]*entry{}, map[*process]bool{}
	clear(a.owed)
	a.endFlows()
	a.forgetFrames(func(e *entry) bool { return !st.holdsFrame(e) })
}

// sentFlow is a flow of one process. Another process of its worker may get the same epoch from a
// restarted receiver.
type sentFlow struct {
	from *process
	flowID
}

func (e *entry) sentFlow() sentFlow { return sentFlow{e.from, e.id.flowID} }

// endFlows makes the accounts expect nothing of what is still sent in the flows so far. Their
// senders may not know of the end yet, and send also frames again that the accounts have forgotten.
func (a *accounts) endFlows() {
	for _, e := range a.order {
		a.former[e.sentFlow()] = true
	}
}

// forgetFrames makes the accounts expect nothing of frames.
func (a *accounts) forgetFrames(lost func(*entry) bool) {
	maps.DeleteFunc(a.frames, func(_ frameID, e *entry) bool { return lost(e) })
	a.order = slices.DeleteFunc(a.order, lost)
	for p, sent := range a.sent {
		a.sent[p] = slices.DeleteFunc(sent, lost)
	}
}

// reopenLink records that a process has opened its link again, because it joins again. What it has
// sent after the rewind, of which it did not know, is lost.
func (a *accounts) reopenLink(p *process) {
	a.c.Mu.Lock()
	defer a.c.Mu.Unlock()
	delete(a.owed, p)
	maps.DeleteFunc(a.former, func(f sentFlow, _ bool) bool { return f.from == p })
	a.forgetFrames(func(e *entry) bool { return e.from == p && !e.applied })
}

// rewindsStep drops the open step of a server, with the life's fault.
func (p *process) rewindsStep(drop func()) {
	late := p.c.accounts.latestRows(p)
	p.c.accounts.rewindServer(p)
	drop()
	switch p.c.options.fault {
	case harvestsLate:
		p.applyLate()
	case keepsAdmissions:
		if late == nil {
			return
		}
		if err := p.c.accounts.store.store.Accumulate(*late); err != nil {
			p.c.Fail("a frame after a rewind: %v", err)
		}
	}
}

// latestRows returns the rows of the newest frame in the open step of a server, nil if there are
// none.
func (a *accounts) latestRows(p *process) *wire.Rows {
	a.c.Mu.Lock()
	defer a.c.Mu.Unlock()
	if a.store == nil || a.store.of != p {
		return nil
	}
	for _, e := range slices.Backward(a.store.pending) {
		if h, err := wire.ParseHeader(e.payload); err == nil && h.Type == wire.TypeCold {
			if rows, err := coldRows(e.payload, h, a.c.cfg.Codec.Config()); err == nil {
				return &rows
			}
		}
	}
	return nil
}

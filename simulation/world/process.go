// SPDX-License-Identifier: Apache-2.0

package world

import (
	"sync/atomic"
	"time"
)

// Process is one run of a program on a host. Its goroutines need not be actors.
type Process struct {
	w    *World
	name string
	host *Host
	link *Link // nil: it has opened none
	dead atomic.Bool
}

// NewProcess makes a process.
func (w *World) NewProcess(name string, h *Host) *Process {
	return &Process{w: w, name: name, host: h}
}

// Name returns the process's name in the trace.
func (p *Process) Name() string { return p.name }

// Host returns the process's host.
func (p *Process) Host() *Host { return p.host }

// Link returns the process's link, nil if it has opened none.
func (p *Process) Link() *Link { return p.link }

// Dead reports whether the process was killed.
func (p *Process) Dead() bool { return p.dead.Load() }

// Open opens the process's link.
func (p *Process) Open(watch Watcher) (*Link, error) {
	if p.Dead() {
		return nil, ErrGone
	}
	p.link = p.w.Open(p.host, p.name, watch)
	return p.link, nil
}

// Kill ends the process at once: its connections, its link and its access to a disk. With silence
// its machine loses power, too: its peers are not notified until they send something.
func (p *Process) Kill(silence bool) {
	p.dead.Store(true)
	p.w.conns.kill(p, silence)
	p.host.Resume()
	if p.link != nil {
		p.link.Crash()
	}
	p.host.down = silence
}

// Turn parks a goroutine of the process that is not an actor until the schedule chooses it, which
// it does only when ready or, unless it is zero, at until.
func (p *Process) Turn(where string, ready func() bool, until time.Time) {
	a := p.w.NewActor(p.name+" "+where, p.host)
	a.Park("turn", ready, until)
	a.Leave()
}

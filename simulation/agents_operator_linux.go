// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"time"
)

// Collect processes everything since the last call. All goroutines are blocked.
func (l *agentsLife) Collect() {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.conns.Collect()
	for _, role := range l.roles {
		if p := l.procs[role]; p != nil && p.ended {
			delete(l.procs, role)
			l.handleEnd(p)
		}
	}
}

// handleEnd is the operator's reaction to a process that has ended by itself, or was killed.
func (l *agentsLife) handleEnd(p *agentRun) {
	if l.Over() {
		return
	}
	l.Tell("%s ends, killed %v, with an error %v\n", p.Name(), p.Dead(), p.err != nil)
	if out := l.LogOf(p.Name()); out != nil && p.err != nil {
		_, _ = fmt.Fprintf(out, "%v\n", p.err)
	}
	switch {
	case p.Dead() || p.stopped:
	case p.err == nil:
		l.Fail("%s ends as if its work were done, while parties take steps", p.Name())
	case l.happened&(ended|cut) == 0:
		l.Fail("%s ends, which %v does not explain: %v", p.Name(), l.happened, p.err)
	}
	switch p.role {
	case theServer:
		l.result.Restarts++
	case theSwitch:
	default:
		l.books.lost[l.serving]++
	}
	l.After(time.Duration(10+l.Draw(500))*time.Millisecond, func() { l.startRole(p.role) })
}

// noteBreak notes that a connection breaks. That may cost an agent that joins an admission of which
// it has not heard: the server takes the agent for lost, and the next step is dropped.
func (l *agentsLife) noteBreak() {
	l.happened |= Reset
	for role, p := range l.procs {
		if role != theServer && role != theSwitch && p != nil && !p.ready && !p.ended {
			l.books.lost[l.serving]++
		}
	}
}

// allReached reports whether all parties have taken all their steps.
func (l *agentsLife) allReached() bool {
	return !slices.ContainsFunc(l.parties, func(p *party) bool { return !p.reached })
}

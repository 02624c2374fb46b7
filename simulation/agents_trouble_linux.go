// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"time"

	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/simulation/world"
)

// planTrouble plans the trouble of a life of agents, and its end.
func (l *agentsLife) planTrouble() {
	p, rng := &l.plan, l.options.random(streamTrouble)
	gentle := rng.IntN(2) == 0 // only parties die
	for n := range 2 + rng.IntN(most-2) {
		at := time.Duration(float64(p.trouble) * rng.Float64())
		clock, moment := rng.IntN(clocks), rng.IntN(1+rng.IntN(160))
		if early := settled + time.Duration(float64(10*l.of.pace)*rng.Float64()); rng.IntN(3) > 0 {
			at = early
		}
		lasts := time.Duration(float64(time.Millisecond) * portable.Pow(5_000, rng.Float64()))
		a, b := l.roles[rng.IntN(len(l.roles))], l.roles[rng.IntN(len(l.roles))]
		victim, ofParty := l.parties[rng.IntN(len(l.parties))], rng.IntN(2) == 0
		which, how := rng.IntN(64), rng.IntN(3)
		kind := [...]Kinds{Partition, Pause, Crash, Crash, Crash, Reset, Stop, Stop, Stop}[rng.IntN(9)]
		if p.kinds&kind == 0 || slices.Contains(l.options.Cut.Without, n) {
			continue
		}
		if gentle {
			ofParty = true
		}
		begin := func() { l.beginTrouble(kind, a, b, victim, ofParty, lasts, world.Breakage{Which: which, How: how}) }
		switch {
		case clock == byTime:
			l.After(at, begin)
		case clock == byMessages && kind == Reset:
			l.breaks[moment] = world.Breakage{Which: which, How: how}
		default:
			l.planned[clock] = append(l.planned[clock], planned{moment, begin})
		}
	}
	l.planFence()
	l.planRewinds()
	l.After(settled+p.trouble, l.Heal)
}

// planFence plans that the switch vanishes or is told to end while parties push, in one life of
// four, or in all if there are only crashes, stops and late copies besides; and that an agent is
// told to end at the same time, or is killed soon after, in some of them. The end of the switch
// alone explains no end of a process or request, unless an agent has not joined yet.
func (l *agentsLife) planFence() {
	rng := l.options.named("fence")
	some := rng.IntN(4) == 0 || l.options.Kinds&^(Crash|Stop|Late) == Fence
	if l.options.Kinds&Fence == 0 || !some {
		return
	}
	moment, told := 1+rng.IntN(1+rng.IntN(100)), rng.IntN(2) == 0
	agent := l.roles[2+rng.IntN(len(l.roles)-2)]
	dies, after := rng.IntN(2) == 0, time.Duration(float64(time.Millisecond)*portable.Pow(1_000, rng.Float64()))
	leaves := rng.IntN(3) == 0
	l.planned[byFrames] = append(l.planned[byFrames], planned{moment, func() {
		if l.Healed() {
			return
		}
		if leaves && l.options.Kinds&Stop != 0 {
			l.happened |= Stop
			l.stopRole(agent)
		}
		l.noteUnready()
		l.Tell("fence\n")
		if told {
			l.stopRole(theSwitch)
		} else {
			l.killRole(theSwitch)
		}
		if dies && l.options.Kinds&Crash != 0 {
			l.After(after, func() {
				l.happened |= Crash
				l.killRole(agent)
			})
		}
	}})
}

// noteUnready notes that a process is killed while not all are ready: then the job may end. Only
// when all workers have joined does the server know that it can go on without an aggregator, or
// without one of them.
func (l *agentsLife) noteUnready() {
	if slices.ContainsFunc(l.roles, func(role string) bool { return l.procs[role] == nil || !l.procs[role].ready }) {
		l.happened |= Crash
	}
}

// planRewinds plans that agents vanish while parties take steps, up to three times, in one life of
// four, or in all if it is the only kind. It explains that requests of their clients fail, and no
// end of another process if all are ready.
func (l *agentsLife) planRewinds() {
	rng := l.options.named("rewinds")
	some := rng.IntN(4) == 0 || l.options.Kinds == Rewind
	if l.options.Kinds&Rewind == 0 || !some || !l.of.sync {
		return
	}
	for range 1 + rng.IntN(3) {
		moment, agent := 1+rng.IntN(1+rng.IntN(160)), l.roles[2+rng.IntN(len(l.roles)-2)]
		l.planned[byFrames] = append(l.planned[byFrames], planned{moment, func() {
			if !l.Healed() {
				l.noteUnready()
				l.happened |= Rewind
				l.result.Rewinds++
				l.killRole(agent)
			}
		}})
	}
}

// killRole kills the process of a role.
func (l *agentsLife) killRole(role string) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if p := l.procs[role]; p != nil && !p.Dead() {
		l.Tell("kill %s\n", role)
		l.killProcess(p, false)
		l.result.Kills++
	}
}

// settled is when most parties have sessions.
const settled = 100 * time.Millisecond

// beginTrouble begins one trouble, unless all has ended.
func (l *agentsLife) beginTrouble(kind Kinds, a, b string, victim *party, ofParty bool, lasts time.Duration,
	how world.Breakage) {
	if l.Healed() {
		return
	}
	at, other := l.Net.HostOf(l.addressOf(a)), l.Net.HostOf(l.addressOf(b))
	switch kind {
	case Partition:
		l.Tell("partition of %s and %s\n", a, b)
		l.happened |= kind
		l.Net.Partition(at, other)
		l.After(lasts, func() { l.Net.Rejoin(at, other) })
	case Pause:
		l.Tell("pause of %s\n", a)
		l.happened |= kind
		l.result.Pauses++
		at.Pause()
		l.After(lasts, at.Resume)
	case Reset:
		l.happened |= kind
		l.conns.Break(how)
	case Stop:
		if ofParty {
			victim.stopProgram()
			return
		}
		l.happened |= kind
		l.stopRole(a)
	case Crash:
		if ofParty {
			victim.killProgram()
			return
		}
		l.happened |= kind
		l.killRole(a)
	}
}

// stopRole tells a process to end, and checks that it does.
func (l *agentsLife) stopRole(role string) {
	p := l.procs[role]
	if p == nil {
		return
	}
	l.Tell("stop %s\n", role)
	l.result.Stops++
	p.stopped = true
	p.cancel()
	l.After(stopLimit, func() {
		if l.procs[role] == p && !p.Dead() && !p.Host().Paused() {
			l.Fail("%s was told to end %v ago, and does not: %s", p.Name(), stopLimit, l.State())
		}
	})
}

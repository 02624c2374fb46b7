// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/simulation/world"
)

// party is the place of a client that takes part in the steps of its host. A launcher starts its
// program, and again whenever it has ended.
type party struct {
	l       *agentsLife
	host    string
	number  int
	of      int // parties of the host
	runs    int
	now     *program // nil: none runs
	reached bool     // it has taken all its steps
}

// program is one run of a party's program.
type program struct {
	p       *party
	l       *agentsLife
	name    string
	rng     *rand.Rand
	s       *ring // nil: it has none yet
	dead    bool  // killed
	leave   bool  // told to end
	ends    bool  // its threads end
	threads int   // that run beside the main one
}

func (p *party) startProgram() {
	if p.now != nil || p.l.Over() {
		return
	}
	p.runs++
	name := fmt.Sprintf("%s party %d@%d", p.host, p.number, p.runs)
	r := &program{p: p, l: p.l, name: name, rng: p.l.options.named(name)}
	p.now, p.reached = r, false
	act := p.l.NewActor(name, p.l.hostNamed(p.host))
	act.Start(func() {
		r.runMain(act)
		r.endProgram()
	})
}

func (l *agentsLife) hostNamed(role string) *world.Host { return l.Net.HostOf(l.addressOf(role)) }

// endProgram ends the program; the launcher ends those that shared steps with it, and starts all
// again.
func (r *program) endProgram() {
	p, l := r.p, r.l
	r.ends = true
	if p.now == r {
		p.now, p.reached = nil, false
	}
	if r.s != nil && !r.s.closed {
		r.s.closeSocket()
	}
	if l.Over() {
		return
	}
	l.Tell("%s ends\n", r.name)
	for _, mate := range l.parties {
		if one := mate.now; mate.host == p.host && one != nil {
			l.After(time.Duration(1+l.Draw(100))*time.Millisecond, func() { one.leave = one.leave || one.s != nil })
		}
	}
	l.After(time.Duration(1+l.Draw(200))*time.Millisecond, p.startProgram)
}

// killProgram kills the party's program.
func (p *party) killProgram() {
	if r := p.now; r != nil {
		p.l.Tell("kill %s\n", r.name)
		p.l.result.Kills++
		r.dead = true
		if r.s != nil {
			r.s.closeSocket()
		}
	}
}

// stopProgram tells the party's program to end.
func (p *party) stopProgram() {
	if r := p.now; r != nil {
		p.l.Tell("stop %s\n", r.name)
		p.l.result.Stops++
		r.leave = true
	}
}

// isOver reports whether a thread has nothing more to do.
func (r *program) isOver() bool { return r.dead || r.l.Over() || r.s.isOver() }

// pauseUpTo lets up to a time pass.
func (r *program) pauseUpTo(act *world.Actor, most time.Duration) {
	act.Sleep("pauses", time.Duration(r.rng.Int64N(int64(most))))
}

// runMain is the program's main thread.
func (r *program) runMain(act *world.Actor) {
	for r.s == nil {
		if r.dead || r.leave || r.l.Over() {
			return
		}
		if r.s = r.l.openSession(act, r.l.procs[r.p.host], r.name, r.p.of); r.s == nil {
			r.pauseUpTo(act, 300*time.Millisecond)
		}
	}
	if r.dead {
		return
	}
	for n := range r.l.of.helpers {
		r.threads++
		helper := r.l.NewActor(fmt.Sprintf("%s thread %d", r.name, n), r.l.hostNamed(r.p.host))
		helper.Start(func() {
			r.helpMain(helper)
			r.threads--
		})
	}
	step := r.s.next
	for step < r.l.of.goal && r.takeStep(act, step) {
		step++
	}
	r.p.reached = step >= r.l.of.goal && !r.isOver()
	for !r.isOver() && !r.leave { // others of the host may have to take steps again
		r.pauseUpTo(act, 20*time.Millisecond)
	}
	r.ends = true
	for r.threads > 0 {
		r.pauseUpTo(act, time.Millisecond)
	}
	if !r.isOver() && r.rng.IntN(2) == 0 {
		r.callAgent(act, &asked{Entry: agentproto.Entry{Op: agentproto.Flush}})
	}
}

// takeStep pushes, ends a step and checks it. It returns false if the program ends.
func (r *program) takeStep(act *world.Actor, step uint64) bool {
	for range r.rng.IntN(1 + r.l.of.most) {
		if !r.workOnce(act) || r.leave {
			return false
		}
	}
	for !r.leave {
		e := &asked{Entry: agentproto.Entry{Op: agentproto.Barrier, Step: step}}
		if r.l.of.sync && r.rng.IntN(3) > 0 {
			e.Op = agentproto.Reduce
			e.N = uint32(r.rng.IntN(2) * r.rng.IntN(slotRows))
		}
		if !r.callAgent(act, e) {
			return false
		}
		switch e.c.Status {
		case agentproto.OK:
			if e.Op == agentproto.Reduce && !r.fetchSums(act, e) {
				return false
			}
			return r.lookAtWeights(act, step+1)
		case agentproto.Dropped:
			return r.lookAtWeights(act, step+1)
		case agentproto.PartyGone:
			r.l.result.Gone++
			r.l.books.checkGone(e)
			return false
		case agentproto.JobEnded, agentproto.AgentClosed:
			return false
		case agentproto.Refused:
			if e.c.Peer != agentproto.Server || e.c.Refusal != 0 || r.l.happened == 0 {
				r.l.Fail("%s: step %d: %+v", r.name, step, e.c)
			}
			r.pauseUpTo(act, 200*time.Millisecond)
		default:
			r.l.Fail("%s: step %d: %v, %+v", r.name, step, e.c.Status, e.c)
			return false
		}
	}
	return false
}

// fetchSums gets the rows that a REDUCE has left, and compares all.
func (r *program) fetchSums(act *world.Actor, e *asked) bool {
	keys, rows := e.gotKeys, e.gotRows
	for uint64(len(keys)) < e.c.Detail {
		n := min(slotRows, e.c.Detail-uint64(len(keys)))
		more := &asked{Entry: agentproto.Entry{Op: agentproto.Sums, Step: uint64(len(keys)), N: uint32(n)}}
		if !r.callAgent(act, more) {
			return false
		}
		if more.c.Status != agentproto.OK {
			r.l.Fail("%s: rows from %d on of step %d: %v", r.name, len(keys), e.Step, more.c.Status)
			return false
		}
		keys, rows = append(keys, more.gotKeys...), append(rows, more.gotRows...)
	}
	r.l.result.Reduced++
	r.l.books.compareSums(e, keys, rows)
	return true
}

// lookAtWeights pulls some rows after the end of a step, and compares them with the weights of
// then.
func (r *program) lookAtWeights(act *world.Actor, steps uint64) bool {
	if r.rng.IntN(2) > 0 || r.leave {
		return true
	}
	e := &asked{Entry: agentproto.Entry{Op: agentproto.Pull}, keys: r.drawKeys(slotRows)}
	if !r.callAgent(act, e) {
		return false
	}
	r.l.books.comparePulled(e, steps)
	return true
}

// drawKeys draws some of the job's keys, each at most once.
func (r *program) drawKeys(most int) (keys []uint64) {
	all := r.l.of.keys
	from, n := r.rng.IntN(len(all)), 1+r.rng.IntN(min(most, len(all)))
	for i := range n {
		keys = append(keys, all[(from+i)%len(all)])
	}
	return keys
}

// workOnce is one push, or another request between two ends of steps.
func (r *program) workOnce(act *world.Actor) bool {
	r.pauseUpTo(act, r.l.of.pace)
	e := &asked{}
	switch r.rng.IntN(12) {
	case 0:
		e.Op = agentproto.Flush
	case 1:
		e.Op = agentproto.Stats
	case 2:
		return r.pushPrepared(act)
	default:
		e.Op = agentproto.Push
		r.drawPush(e, r.drawKeys(8))
		if n := r.l.of.wrong; n > 0 && r.rng.IntN(n) == 0 {
			r.spoilPush(e)
		}
	}
	if !r.submitEntry(act, e) {
		return false
	}
	return r.rng.IntN(2) > 0 || r.waitFor(act, e)
}

// drawPush draws the gradients of a push.
func (r *program) drawPush(e *asked, keys []uint64) {
	e.keys = keys
	for range len(keys) * r.l.plan.dim {
		e.grads = append(e.grads, float32(1+r.rng.IntN(100))*r.l.of.gradientUnit())
	}
}

// spoilPush makes a push one that is refused as a whole.
func (r *program) spoilPush(e *asked) {
	switch r.rng.IntN(3) {
	case 0:
		e.Op = agentproto.PushSums // the job's mode has none
	case 1:
		e.grads[r.rng.IntN(len(e.grads))] = float32(math.NaN())
	case 2:
		e.grads[r.rng.IntN(len(e.grads))] = r.l.of.tooLarge()
	}
}

// pushPrepared pushes a prepared batch, and releases it.
func (r *program) pushPrepared(act *world.Actor) bool {
	keys := r.drawKeys(8)
	prepare := &asked{Entry: agentproto.Entry{Op: agentproto.Prepare}, keys: keys}
	if !r.callAgent(act, prepare) {
		return false
	}
	if prepare.c.Status != agentproto.OK {
		r.l.books.checkStatus(prepare)
		return false
	}
	push := &asked{Entry: agentproto.Entry{Op: agentproto.Push, Batch: prepare.c.Detail}}
	r.drawPush(push, keys)
	return r.submitEntry(act, push) &&
		r.submitEntry(act, &asked{Entry: agentproto.Entry{Op: agentproto.Release, Batch: prepare.c.Detail}})
}

// helpMain is another thread of the program: it pushes whatever the main one does.
func (r *program) helpMain(act *world.Actor) {
	for range r.l.of.most * int(r.l.of.goal) {
		r.pauseUpTo(act, 4*r.l.of.pace)
		if r.isOver() || r.ends || r.leave || !r.workOnce(act) {
			return
		}
	}
}

// submitEntry submits an entry as soon as there is room. It returns false if the session is over.
func (r *program) submitEntry(act *world.Actor, e *asked) bool {
	s := r.s
	if r.l.options.fault == overtakes && e.Op == agentproto.Push && e.Batch == 0 && r.s.endsUnanswered() {
		if s = r.l.openSession(act, r.s.at, r.name+" aside", 0); s == nil {
			return false
		}
	}
	for s.collectCompletions(); !s.hasRoom(); s.collectCompletions() {
		if r.isOver() {
			return false
		}
		s.sleepUntil(act, s.hasRoom)
	}
	if r.isOver() || s.isOver() {
		return false
	}
	r.l.Tell("%s submits %d: operation %d, step %d\n", s.name, s.tail, e.Op, e.Step)
	s.submitEntry(e)
	r.l.passMoment(byWrites)
	act.Yield("submitted")
	return !r.dead
}

// waitFor waits for the completion of an entry. It returns false if there will be none.
func (r *program) waitFor(act *world.Actor, e *asked) bool {
	for e.s.collectCompletions(); !e.done; e.s.collectCompletions() {
		if r.isOver() || e.s.isOver() {
			return false
		}
		e.s.sleepUntil(act, func() bool { return e.done })
	}
	return !r.dead
}

// callAgent submits an entry, and waits for it.
func (r *program) callAgent(act *world.Actor, e *asked) bool {
	return r.submitEntry(act, e) && r.waitFor(act, e)
}

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
		r.run(act)
		r.end()
	})
}

func (l *agentsLife) hostNamed(role string) *world.Host { return l.Net.HostOf(l.addressOf(role)) }

// end ends the program; the launcher ends those that shared steps with it, and starts all again.
func (r *program) end() {
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

// over reports whether a thread has nothing more to do.
func (r *program) over() bool { return r.dead || r.l.Over() || r.s.over() }

// pause lets up to a time pass.
func (r *program) pause(act *world.Actor, most time.Duration) {
	act.Sleep("pauses", time.Duration(r.rng.Int64N(int64(most))))
}

// run is the program's main thread.
func (r *program) run(act *world.Actor) {
	for r.s == nil {
		if r.dead || r.leave || r.l.Over() {
			return
		}
		if r.s = r.l.openSession(act, r.l.procs[r.p.host], r.name, r.p.of); r.s == nil {
			r.pause(act, 300*time.Millisecond)
		}
	}
	if r.dead {
		return
	}
	for n := range r.l.of.helpers {
		r.threads++
		helper := r.l.NewActor(fmt.Sprintf("%s thread %d", r.name, n), r.l.hostNamed(r.p.host))
		helper.Start(func() {
			r.help(helper)
			r.threads--
		})
	}
	step := r.s.next
	for step < r.l.of.goal && r.takeStep(act, step) {
		step++
	}
	r.p.reached = step >= r.l.of.goal && !r.over()
	for !r.over() && !r.leave { // others of the host may have to take steps again
		r.pause(act, 20*time.Millisecond)
	}
	r.ends = true
	for r.threads > 0 {
		r.pause(act, time.Millisecond)
	}
	if !r.over() && r.rng.IntN(2) == 0 {
		r.call(act, &asked{Entry: agentproto.Entry{Op: agentproto.Flush}})
	}
}

// takeStep pushes, ends a step and checks it. It returns false if the program ends.
func (r *program) takeStep(act *world.Actor, step uint64) bool {
	for range r.rng.IntN(1 + r.l.of.most) {
		if !r.work(act) || r.leave {
			return false
		}
	}
	for !r.leave {
		e := &asked{Entry: agentproto.Entry{Op: agentproto.Barrier, Step: step}}
		if r.l.of.sync && r.rng.IntN(3) > 0 {
			e.Op = agentproto.Reduce
			e.N = uint32(r.rng.IntN(2) * r.rng.IntN(slotRows))
		}
		if !r.call(act, e) {
			return false
		}
		switch e.c.Status {
		case agentproto.OK:
			if e.Op == agentproto.Reduce && !r.fetch(act, e) {
				return false
			}
			return r.look(act, step+1)
		case agentproto.Dropped:
			return r.look(act, step+1)
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
			r.pause(act, 200*time.Millisecond)
		default:
			r.l.Fail("%s: step %d: %v, %+v", r.name, step, e.c.Status, e.c)
			return false
		}
	}
	return false
}

// fetch gets the rows that a REDUCE has left, and compares all.
func (r *program) fetch(act *world.Actor, e *asked) bool {
	keys, rows := e.gotKeys, e.gotRows
	for uint64(len(keys)) < e.c.Detail {
		n := min(slotRows, e.c.Detail-uint64(len(keys)))
		more := &asked{Entry: agentproto.Entry{Op: agentproto.Sums, Step: uint64(len(keys)), N: uint32(n)}}
		if !r.call(act, more) {
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

// look pulls some rows after the end of a step, and compares them with the weights of then.
func (r *program) look(act *world.Actor, steps uint64) bool {
	if r.rng.IntN(2) > 0 || r.leave {
		return true
	}
	e := &asked{Entry: agentproto.Entry{Op: agentproto.Pull}, keys: r.drawKeys(slotRows)}
	if !r.call(act, e) {
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

// work is one push, or another request between two ends of steps.
func (r *program) work(act *world.Actor) bool {
	r.pause(act, r.l.of.pace)
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
			r.spoil(e)
		}
	}
	if !r.submit(act, e) {
		return false
	}
	return r.rng.IntN(2) > 0 || r.wait(act, e)
}

// drawPush draws the gradients of a push.
func (r *program) drawPush(e *asked, keys []uint64) {
	e.keys = keys
	for range len(keys) * r.l.plan.dim {
		e.grads = append(e.grads, float32(1+r.rng.IntN(100))*r.l.of.unit())
	}
}

// spoil makes a push one that is refused as a whole.
func (r *program) spoil(e *asked) {
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
	if !r.call(act, prepare) {
		return false
	}
	if prepare.c.Status != agentproto.OK {
		r.l.books.checkStatus(prepare)
		return false
	}
	push := &asked{Entry: agentproto.Entry{Op: agentproto.Push, Batch: prepare.c.Detail}}
	r.drawPush(push, keys)
	return r.submit(act, push) &&
		r.submit(act, &asked{Entry: agentproto.Entry{Op: agentproto.Release, Batch: prepare.c.Detail}})
}

// help is another thread of the program: it pushes whatever the main one does.
func (r *program) help(act *world.Actor) {
	for range r.l.of.most * int(r.l.of.goal) {
		r.pause(act, 4*r.l.of.pace)
		if r.over() || r.ends || r.leave || !r.work(act) {
			return
		}
	}
}

// submit submits an entry as soon as there is room. It returns false if the session is over.
func (r *program) submit(act *world.Actor, e *asked) bool {
	s := r.s
	if r.l.options.fault == overtakes && e.Op == agentproto.Push && e.Batch == 0 && r.s.ends() {
		if s = r.l.openSession(act, r.s.at, r.name+" aside", 0); s == nil {
			return false
		}
	}
	for s.collect(); !s.room(); s.collect() {
		if r.over() {
			return false
		}
		s.sleep(act, s.room)
	}
	if r.over() || s.over() {
		return false
	}
	r.l.Tell("%s submits %d: operation %d, step %d\n", s.name, s.tail, e.Op, e.Step)
	s.submit(e)
	r.l.passMoment(byWrites)
	act.Yield("submitted")
	return !r.dead
}

// wait waits for the completion of an entry. It returns false if there will be none.
func (r *program) wait(act *world.Actor, e *asked) bool {
	for e.s.collect(); !e.done; e.s.collect() {
		if r.over() || e.s.over() {
			return false
		}
		e.s.sleep(act, func() bool { return e.done })
	}
	return !r.dead
}

// call submits an entry, and waits for it.
func (r *program) call(act *world.Actor, e *asked) bool { return r.submit(act, e) && r.wait(act, e) }

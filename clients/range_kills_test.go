// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"syscall"
	"testing"
)

// ownAnew checks that another owner may have the job hot/0, with sums that begin anew.
func (b *rangeBed) ownAnew(ownerHost, pusherHost int) {
	b.t.Helper()
	const pushes = 50
	owner, pusher := b.own(ownerHost, "hot/0"), b.push(pusherHost, "hot/0", 3, pushes)
	b.await(pusher, pushes)
	var want [rangeRows][dim]float64
	added(&want, 3, pushes)
	if got := b.sums(owner); got != want {
		b.t.Errorf("the next owner has the sums %v, want %v", got, want)
	}
}

// A pusher that is killed is in the sums with all of its acknowledged pushes and perhaps some that
// follow, each wholly; others are not affected, and its agent keeps nothing of it.
func TestKilledPusher(t *testing.T) {
	t.Parallel()
	const pushes = 3000
	b := newRangeBed(t, 2, 1)
	owner := b.own(0, "hot/0")
	other := b.push(1, "hot/0", 1<<12, pushes)
	for kill := range 5 {
		p := b.push(kill%2, "hot/0", 1, 1<<30)
		before, _ := p.acknowledged(8 + 40*kill)
		_ = p.cmd.Process.Kill()
		more, _ := p.acknowledged(1 << 30)
		_ = p.cmd.Wait()
		t.Logf("%d pushes were acknowledged", max(before, more))
	}
	b.await(other, pushes)
	sums := b.sums(owner)
	// The other's part of a sum is a multiple of 1<<12, and known.
	var want [rangeRows][dim]float64
	added(&want, 1<<12, pushes)
	whole := 0.
	for i := range sums {
		whole += sums[i][0] - want[i][0]
	}
	if whole <= 0 || int(whole)%40 != 0 {
		t.Errorf("%v rows of killed pushers are in the sums: want whole pushes of 40", whole)
	}
	for host := range 2 {
		b.noClients(host)
	}
}

// With its owner, killed or not, a job ends for all, and another owner may have it at once, with
// sums that begin anew.
func TestKilledOwner(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, 1)
	for _, host := range []int{0, 0, 1} {
		owner := b.own(host, "hot/0")
		pushers := []*rangeProgram{b.push(0, "hot/0", 1, 1<<30), b.push(1, "hot/0", 1, 1<<30)}
		for _, p := range pushers {
			b.await(p, 16)
		}
		_ = owner.cmd.Process.Kill()
		for _, p := range pushers {
			if _, last := p.acknowledged(1 << 30); last != "JOB_ENDED" {
				t.Errorf("when the owner was killed, a pusher has printed %q\n%s", last, p.log.String())
			}
		}
	}
	b.ownAnew(1, 0)
}

// The job of an owner whose agent is killed ends with its lease. A pusher whose agent is killed has
// lost nothing that was acknowledged, and its host comes back.
func TestKilledAgentOfRange(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, 1)
	owner := b.own(0, "hot/0")
	kill := func(host int) {
		_ = b.agents[host].Process.Kill()
		_ = b.agents[host].Wait()
		b.startAgent(host)
	}
	first := b.push(1, "hot/0", 1, 1<<30)
	before, _ := first.acknowledged(80)
	kill(1)
	more, last := first.acknowledged(1 << 30)
	if last != "AGENT_DIED" {
		t.Errorf("when its agent was killed, a pusher has printed %q\n%s", last, first.log.String())
	}
	const pushes = 100
	second := b.push(1, "hot/0", 1<<20, pushes)
	b.await(second, pushes)
	b.harvestNow(owner)
	sums := b.sums(owner)
	var least, later [rangeRows][dim]float64
	added(&least, 1, max(before, more))
	added(&later, 1<<20, pushes)
	for i := range sums {
		if sums[i][0] < least[i][0]+later[i][0] {
			t.Errorf("row %d has the sum %v; %v and %v were acknowledged", i, sums[i][0], least[i][0], later[i][0])
		}
	}

	owner = b.own(0, "hot/0")
	pusher := b.push(1, "hot/0", 1, 1<<30)
	b.await(pusher, 16)
	kill(0)
	if !owner.out.Scan() || owner.out.Text() != "AGENT_DIED" {
		t.Errorf("when its agent was killed, the owner has printed %q\n%s", owner.out.Text(), owner.log.String())
	}
	if _, last := pusher.acknowledged(1 << 30); last != "JOB_ENDED" {
		t.Errorf("when the owner's agent was killed, a pusher has printed %q\n%s", last, pusher.log.String())
	}
	b.ownAnew(0, 1) // once the lease has ended
	for _, a := range b.agents {
		if err := a.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := a.Wait(); err != nil {
			t.Errorf("an interrupted agent has ended with %v", err)
		}
	}
}

// The death of the switch ends all sessions of its jobs, and not as that of an owner does, whether
// or not another switch comes soon. The agents go on, for other owners.
func TestKilledSwitchOfRange(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, 1)
	for _, soon := range []bool{true, false} {
		owner := b.own(0, "hot/0")
		programs := []*rangeProgram{b.push(0, "hot/0", 1, 1<<30), b.push(1, "hot/0", 1, 1<<30)}
		for _, p := range programs {
			b.await(p, 16)
		}
		_ = b.sw.Process.Kill()
		_ = b.sw.Wait()
		if soon {
			b.startSwitch()
		}
		for _, p := range append(programs, owner) {
			_, last := p.acknowledged(1 << 30)
			if last != "AGGREGATOR_LOST" && (!soon || last != "JOB_ENDED" || p == owner) { // the new aggregator may refuse a push first
				t.Errorf("when the switch was killed, a program has printed %q\n%s", last, p.log.String())
			}
		}
		if !soon {
			b.startSwitch()
		}
		b.ownAnew(1, 0)
		for host := range b.agents {
			b.noClients(host)
		}
	}
}

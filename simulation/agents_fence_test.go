// SPDX-License-Identifier: Apache-2.0

//go:build linux

package simulation

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/simulation/world"
)

// Jobs without steps go on without their switch. What it has acknowledged is lost only with the
// agent that keeps it.
func TestAgentsOutliveSwitches(t *testing.T) {
	var total AgentsResult
	for seed := uint64(1); seed <= 300 && (total.Fences < 20 || total.Lost == 0); seed++ {
		r, err := RunAgents(InTest(t), Options{Seed: seed, Kinds: Fence | Crash})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		total.Add(r)
	}
	t.Logf("%d fences, %d pushes lost by two deaths", total.Fences, total.Lost)
	if total.Fences < 20 || total.Lost == 0 {
		t.Error("too few")
	}
}

// The checks excuse a push that is missing only by the deaths of both the switch and the agent that
// have its gradients.
func TestOnlyTwoDeathsLosePushes(t *testing.T) {
	for name, c := range map[string]struct {
		fenced, killed, settled bool
		doneAt                  int64
		barrier                 bool // was answered OK
		lost                    bool
	}{
		"both":                            {fenced: true, killed: true, doneAt: 101, lost: true},
		"the switch alone":                {fenced: true, doneAt: 101},
		"the agent alone":                 {killed: true, doneAt: 101},
		"the agent, after it had settled": {fenced: true, killed: true, settled: true, doneAt: 101},
		"both, after a harvest":           {fenced: true, killed: true, doneAt: 100},
		"both, after a BARRIER":           {fenced: true, killed: true, doneAt: 101, barrier: true},
	} {
		t.Run(name, func(t *testing.T) {
			InTest(t)(func() {
				l := &agentsLife{}
				l.World = world.New(world.Options{Life: l, Bound: time.Second})
				at := &agentRun{Process: l.NewProcess("agent", l.NewHost("agent", netip.AddrPort{})), l: l, settled: c.settled}
				if c.killed {
					at.Kill(false)
				}
				b := &stepBooks{l: l, fence: fenceBook{fenced: c.fenced, harvested: 100}}
				end := &asked{Entry: agentproto.Entry{Op: agentproto.Barrier}, done: true}
				if !c.barrier {
					end.c.Status = agentproto.AgentClosed
				}
				if is := b.isLost(&ring{at: at, entries: []*asked{{doneAt: c.doneAt}, end}}, 0); is != c.lost {
					t.Errorf("excused: %v", is)
				}
			})
		})
	}
}

// The checks notice an agent that settles by a wrong mark: in steps, and without.
func TestFaultySettlementsOfAgentsAreFound(t *testing.T) {
	var found [2]bool // without steps, with them
	for seed := uint64(1); seed <= 200 && !(found[0] && found[1]); seed++ {
		if _, err := RunAgents(InTest(t), Options{Seed: seed, Kinds: Fence, fault: marksUnsummed}); err != nil {
			t.Logf("found: %v", err)
			if !strings.Contains(err.Error(), "of it that count") {
				found[1] = true
				continue
			}
			found[0] = true
		}
	}
	if !found[0] || !found[1] {
		t.Errorf("200 lives have shown it without steps: %v, with steps: %v", found[0], found[1])
	}
}

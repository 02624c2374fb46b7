// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var psLiteKills = flag.Int("pslite-kills", 2, "how often a server, a worker, an agent and the switch of ps-lite's programs are killed")

// killed runs a program on the hosts 0 and 1 and calls kill in its middle, again and again. Then
// the agents have nothing of the killed programs any more, and a program that follows has exact
// sums. If `others` is set, a program on host 2, which no kill concerns, runs through all of that.
func killed(t *testing.T, others bool, kill func(b *rangeBed, j *psLiteJob, number int)) {
	t.Parallel()
	b := newPSLiteBed(t, 3, "other")
	whole := func() { b.startRunning().finish() }
	whole() // descriptors of later programs are those of the first
	b.noClients(0)
	before := b.settled()
	var other *psLiteJob
	if others {
		other = b.startPSLite("other", []int{2}, []int{2})
	}
	for number := range *psLiteKills {
		j := b.startRunning()
		for i, w := range j.workers {
			j.awaitLines(w, 1+(3*number+5*i)%11)
		}
		kill(b, j, number)
		j.kill()
		for host := range 2 {
			b.noClients(host)
		}
	}
	if others {
		if n := other.finish(); n == 0 {
			t.Error("the other program has pushed nothing")
		}
		b.noClients(2)
	}
	whole()
	for host := range b.agents {
		b.noClients(host)
	}
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		after := b.held()
		if !slices.ContainsFunc(after, func(h held) bool { return h.more(before[h.process]) }) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("agents and switch have\n%+v\nand had before\n%+v", after, before)
		}
	}
}

// startRunning starts a program with two servers and two workers, and waits until all of them run.
func (b *rangeBed) startRunning() *psLiteJob {
	b.t.Helper()
	j := b.startPSLite("hot", []int{0, 1}, []int{0, 1})
	for _, p := range append(j.servers, j.workers...) {
		j.awaitLines(p, 0)
	}
	return j
}

// held is what a process, an agent or, last, the switch, has open.
type held struct {
	process     int
	descriptors int
	memories    int // mappings of clients' memory
}

func (h held) more(than held) bool {
	return h.descriptors > than.descriptors || h.memories > than.memories
}

// held returns what the agents and the switch have open.
func (b *rangeBed) held() []held {
	b.t.Helper()
	var all []held
	for i, cmd := range append(b.agents, b.sw) {
		dir := filepath.Join("/proc", fmt.Sprint(cmd.Process.Pid))
		open, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			b.t.Fatal(err)
		}
		maps, err := os.ReadFile(filepath.Join(dir, "maps"))
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, held{process: i, descriptors: len(open), memories: strings.Count(string(maps), "memfd:")})
	}
	return all
}

// settled returns what the agents and the switch have open when that does not change any more:
// connections of ended jobs, and that of a question to an agent, close soon after.
func (b *rangeBed) settled() []held {
	b.t.Helper()
	last := b.held()
	for same := 0; same < 20; time.Sleep(10 * time.Millisecond) {
		now := b.held()
		if same++; !slices.Equal(now, last) {
			last, same = now, 0
		}
	}
	return last
}

// die kills a process.
func (j *psLiteJob) die(p *psLiteProcess) {
	j.t.Helper()
	_ = p.cmd.Process.Kill()
	j.awaitEnd(p)
}

// endsWith waits until a process ends with status 1 and an error, and logs how long that took.
func (j *psLiteJob) endsWith(p *psLiteProcess, since time.Time, want ...string) {
	j.t.Helper()
	status, log := j.awaitEnd(p)
	j.t.Logf("%s has ended after %.1f s", p.name, p.at.Sub(since).Seconds())
	for _, text := range want {
		if status == 1 && strings.Contains(log, text) {
			return
		}
	}
	j.t.Errorf("%s on host %d ends with status %d and says\n%s\nwant one of %q", p.name, p.host, status, log, want)
}

// goesOn checks that a process lives, and that it makes progress if it is a worker.
func (j *psLiteJob) goesOn(p *psLiteProcess) {
	j.t.Helper()
	lines, _ := p.said()
	if strings.HasPrefix(p.name, "worker") {
		j.awaitLines(p, len(lines)+1)
	}
	select {
	case <-p.ended:
		j.t.Errorf("%s has ended: %v", p.name, p.err)
	default:
	}
}

// dead is what a worker says when a server has died.
func (j *psLiteJob) dead(server *psLiteProcess) string {
	var rank int
	if _, err := fmt.Sscanf(j.awaitSaid(server), "server %d", &rank); err != nil {
		j.t.Fatal(err)
	}
	return fmt.Sprintf("server %d (node %d) has ended, and LIBRA_PS_DEAD is exit", rank, 8+2*rank)
}

// awaitSaid returns the first line of a process that may have ended.
func (j *psLiteJob) awaitSaid(p *psLiteProcess) string {
	lines, _ := p.said()
	return strings.Join(lines[:min(1, len(lines))], "")
}

// When a server is killed, all workers end and name it; the other server and the scheduler do not
// learn of it.
func TestPSLiteKilledServers(t *testing.T) {
	killed(t, true, func(_ *rangeBed, j *psLiteJob, number int) {
		victim, other := j.servers[number%2], j.servers[1-number%2]
		j.die(victim)
		since := time.Now()
		for _, w := range j.workers {
			j.endsWith(w, since, j.dead(victim))
		}
		j.goesOn(other)
		j.goesOn(j.scheduler)
	})
}

// When a worker is killed, all others go on.
func TestPSLiteKilledWorkers(t *testing.T) {
	killed(t, true, func(_ *rangeBed, j *psLiteJob, number int) {
		victim, other := j.workers[number%2], j.workers[1-number%2]
		j.die(victim)
		j.goesOn(other)
		for _, p := range append(j.servers, j.scheduler) {
			j.goesOn(p)
		}
	})
}

// When an agent is killed, the servers and workers of its host end with an error, and the workers
// of other hosts when the lease of the servers has passed.
func TestPSLiteKilledAgents(t *testing.T) {
	killed(t, true, func(b *rangeBed, j *psLiteJob, number int) {
		victim := number % 2
		_ = b.agents[victim].Process.Kill()
		_ = b.agents[victim].Wait()
		since := time.Now()
		for _, p := range append(j.workers, j.servers...) {
			switch {
			case p.host == victim:
				j.endsWith(p, since, "the agent at "+b.socket(victim))
			case p == j.workers[p.host]:
				j.endsWith(p, since, j.dead(j.servers[victim]))
			default:
				j.goesOn(p)
			}
		}
		b.startAgent(victim)
	})
}

// When the switch is killed, all servers and workers end with an error.
func TestPSLiteKilledSwitches(t *testing.T) {
	killed(t, false, func(b *rangeBed, j *psLiteJob, _ int) {
		_ = b.sw.Process.Kill()
		_ = b.sw.Wait()
		since := time.Now()
		for _, p := range append(j.workers, j.servers...) {
			j.endsWith(p, since, "aggregator")
		}
		b.startSwitch()
	})
}

// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// withoutHot removes the times of hot frames.
func (s *Scrape) withoutHot() {
	maps.DeleteFunc(s.Times, func(k Series, _ Sum) bool { return k.Op == "hot" })
}

// since10 makes parts slow from the tenth second on, by 3 ms.
func since10(s *Scrape, second int, op string, parts ...string) {
	late := time.Duration(max(0, second-10))
	for k, n := range maps.Clone(s.Times) {
		for _, part := range parts {
			if k.Part == part && (op == "" || k.Op == op) {
				n.Total += 100 * late * 3 * ms
				s.Times[k] = n
			}
		}
	}
}

// Of several causes that could be named, the one that explains the others is; and the largest part
// of all is named whichever it is.
func TestVerdictsOfFew(t *testing.T) {
	isWorker := func(name string) bool { return strings.HasPrefix(name, "worker") }
	for name, test := range map[string]struct {
		workers, servers int
		change           func(name string, second int, s *Scrape)
		want             []string
	}{
		"the only link of a worker, to a server and the switch": {1, 1, func(name string, second int, s *Scrape) {
			if isWorker(name) {
				since10(s, second, "", "total")
			}
		}, []string{"link of worker 1 slow: 3.2 ms to all peers (others 0.2), 0.0 % repeated"}},
		"the only link of a worker, to a server alone": {1, 1, func(name string, second int, s *Scrape) {
			s.withoutHot()
			if isWorker(name) {
				since10(s, second, "", "total")
			}
		}, []string{"link of worker 1 slow: 3.2 ms to server 0 (others 0.2), 0.0 % repeated"}},
		"hot frames of one worker of three": {3, 1, func(name string, _ int, s *Scrape) {
			if name == "worker 1" || name == "worker 2" {
				s.withoutHot()
			}
			if name == "worker 3" {
				s.more(3*ms, "hot", "total")
			}
		}, []string{"switch slow: hot frames 3.2 ms, cold 0.2; its program 1.0 µs, so before it"}},
		"hot frames alone": {2, 0, func(name string, second int, s *Scrape) {
			if isWorker(name) {
				since10(s, second, "hot", "total")
			}
		}, []string{"switch slow: hot frames 3.2 ms, lowest 0.2; its program 1.0 µs, so before it"}},
		"late because of its link": {4, 1, func(name string, second int, s *Scrape) {
			n := uint64(40 * second)
			switch name {
			case "server 0":
				for w := 1; w <= 4; w++ {
					s.Steps[fmt.Sprint(w)] = Steps{Count: n, After: time.Duration(n) * 400 * µs}
				}
				s.Steps["3"] = Steps{Count: n, Last: n, After: time.Duration(n) * 11200 * µs}
			case "worker 3":
				s.more(3*ms, "", "total")
			}
		}, []string{"link of worker 3 slow: 3.2 ms to all peers (others 0.2), 0.0 % repeated",
			"worker 3 slow: last at 100 % of 200 steps, by 11.2 ms (median 0.4)"}},
		"two are slow": {4, 1, func(name string, second int, s *Scrape) {
			switch name {
			case "worker 1":
				s.more(2*ms, "", "worker process", "total")
			case "worker 3":
				s.more(3*ms, "", "worker queue", "total")
			}
		}, []string{"worker 3 slow: 3.0 of 3.4 ms are its queue", "worker 1 slow: 2.0 of 2.4 ms it processes answers"}},
		"a server that does not tell what its loop does": {3, 2, func(name string, _ int, s *Scrape) {
			if name == "server 1" {
				s.Loop = Loop{}
				s.more(3*ms, "", "server process")
			}
			for k, n := range s.Times {
				if k.Peer == "server 1" && k.Part == "total" {
					n.Total += time.Duration(n.Count) * 3 * ms
					s.Times[k] = n
				}
			}
		}, []string{"server 1 slow: 3.0 of 3.6 ms it processes frames"}},
		"mostly queues of workers": {2, 1, func(name string, _ int, s *Scrape) {
			if isWorker(name) {
				s.more(2*ms, "", "worker queue", "total")
			}
		}, []string{"nothing stands out; largest: worker queue, 2.0 of 2.4 ms"}},
		"mostly the switch's program": {1, 0, func(_ string, _ int, s *Scrape) {
			s.more(2*ms, "hot", "aggregator process", "total")
		}, []string{"nothing stands out; largest: aggregator process, 2.0 of 2.2 ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := &made{workers: test.workers, servers: test.servers, frame: quietParts(), change: test.change}
			all, _ := m.run(20)
			if diff := cmp.Diff(test.want, all[len(all)-1]); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// What a server was at for a worker's frames is of that worker and operation, or of the others that
// have series in common.
func TestServerParts(t *testing.T) {
	at := func(worker, op, part, peer string, mean time.Duration) (Series, Sum) {
		return Series{worker, op, "server " + part, peer}, Sum{2, 2 * mean}
	}
	s := &Scrape{Times: map[Series]Sum{}}
	for _, of := range []struct {
		worker, op, part, peer string
		mean                   time.Duration
	}{
		{"1", "cold", "process", "worker 1", 10 * µs}, {"1", "cold", "queue", "worker 1", 100 * µs},
		{"1", "pull", "process", "worker 1", 5000 * µs}, {"2", "cold", "process", "worker 2", 2000 * µs},
		{"", "cold", "process", "other", 300 * µs}, {"", "cold", "queue", "other", 3000 * µs},
	} {
		k, n := at(of.worker, of.op, of.part, of.peer, of.mean)
		s.Times[k] = n
	}
	c := &comparison{servers: []*followed{{Process: Process{Role: Server}, window: s}}}
	for _, test := range []struct {
		worker, op, server string
		want               time.Duration // 0: unknown
	}{
		{"1", "cold", "server 0", 110 * µs}, {"1", "pull", "server 0", 5000 * µs}, {"2", "cold", "server 0", 2000 * µs},
		{"3", "cold", "server 0", 3300 * µs}, {"3", "pull", "server 0", 0}, {"1", "cold", "server 1", 0},
	} {
		d, ok := c.serverParts(Series{test.worker, test.op, "total", test.server})
		if d != test.want || ok != (test.want > 0) {
			t.Errorf("worker %s, %s, %s: %v, %v; want %v", test.worker, test.op, test.server, d, ok, test.want)
		}
	}
}

// Any counter that is lower than before shows another life; then nothing is counted.
func TestSince(t *testing.T) {
	series := Series{"1", "cold", "total", "server 0"}
	whole := func() *Scrape {
		return &Scrape{Pushes: 5, Frames: Frames{Sent: 5}, Times: map[Series]Sum{series: {5, 5 * ms}, {Op: "hot"}: {5, 5 * ms}},
			Loop: Loop{Waiting: 3 * ms, Frames: 2 * ms}, Steps: map[string]Steps{"1": {5, 5, 5 * ms}, "2": {5, 5, 5 * ms}}}
	}
	if d, ok := whole().since(whole()); !ok || len(d.Times)+len(d.Steps) > 0 || d.Pushes != 0 {
		t.Errorf("the same: %+v, %v", d, ok)
	}
	for name, change := range map[string]func(*Scrape){
		"pushes": func(s *Scrape) { s.Pushes = 4 },
		"frames": func(s *Scrape) { s.Frames.Sent = 4 },
		"times":  func(s *Scrape) { s.Times[series] = Sum{4, 4 * ms} },
		"steps":  func(s *Scrape) { s.Steps["1"] = Steps{4, 5, 0} },
		"last":   func(s *Scrape) { s.Steps["1"] = Steps{5, 4, 0} },
		"loop":   func(s *Scrape) { s.Loop = Loop{Frames: 3 * ms} },
		// A server or switch that has been started again has no series until its first frame.
		"no times": func(s *Scrape) { delete(s.Times, series) },
		"no steps": func(s *Scrape) { delete(s.Steps, "2") },
	} {
		s := whole()
		change(s)
		if d, ok := s.since(whole()); ok {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Of processes for which no other waits, the one that is silent longest comes first, and of equals
// the first by name. One that was heard telemetrySilent ago is not silent yet.
func TestSilentOrder(t *testing.T) {
	m := &made{workers: 4, servers: 1, frame: quietParts()}
	j := NewJudge(m.processes(), begin)
	for second := range 11 {
		for _, p := range m.processes() {
			if p == (Process{Role: Worker, ID: 4}) && second > 3 || (p == Process{Role: Worker, ID: 3} || p == Process{Role: Worker, ID: 2}) && second > 6 {
				continue
			}
			j.Note(p, begin.Add(time.Duration(second)*time.Second), m.scrape(p, second))
		}
	}
	names := func(at time.Duration) (all []string) {
		for _, f := range j.Report(begin.Add(at)).Verdict {
			all = append(all, f.Name)
		}
		return all
	}
	if diff := cmp.Diff([]string{"worker 4", "worker 2", "worker 3"}, names(10*time.Second)); diff != "" {
		t.Errorf("silent (-want +got):\n%s", diff)
	}
	first := names(12 * time.Second)
	later := names(12*time.Second + ms)
	if len(first) != 3 || len(later) != 6 {
		t.Errorf("after 2 s: %v, then %v", first, later)
	}
}

// A switch that has died, whose job goes on without it, hides nothing that is slow.
func TestSilentSwitchHidesNothing(t *testing.T) {
	m := &made{workers: 3, servers: 1, frame: quietParts(), stopped: map[string]bool{"switch": true}, stopAt: 6,
		change: func(name string, second int, s *Scrape) {
			switch {
			case name == "worker 2":
				since10(s, second, "cold", "worker queue", "total")
			case second > 5 && second < 8 && name == "worker 1":
				s.Silent["aggregator"] = 2 * time.Second
			}
		}}
	all, _ := m.run(20)
	for second, want := range map[int][]string{
		7:  {"switch silent for 2.1 s: worker 1 waits; its telemetry does not answer either"},
		9:  {"switch silent for 4.1 s: its telemetry does not answer"},
		20: {"worker 2 slow: 1.5 of 1.9 ms are its queue", "switch silent for 15.1 s: its telemetry does not answer"},
	} {
		if diff := cmp.Diff(want, all[second]); diff != "" {
			t.Errorf("after %d s (-want +got):\n%s", second, diff)
		}
	}
}

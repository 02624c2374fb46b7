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

const (
	µs = time.Microsecond
	ms = time.Millisecond
)

var begin = time.Unix(1_000_000_000, 0)

// made is a cluster whose processes go on evenly: per second, each worker sends 100 frames to each
// server and to the switch. A test changes what one of them shows.
type made struct {
	workers, servers int
	frame            map[string]time.Duration // parts of a frame, by part; "hot" is the network to the switch
	change           func(name string, second int, s *Scrape)
	stopped          map[string]bool // they do not answer from second stopAt on
	stopAt           int
}

func quietParts() map[string]time.Duration {
	return map[string]time.Duration{"network": 200 * µs, "hot": 200 * µs, "worker queue": 20 * µs, "worker process": 10 * µs,
		"server queue": 300 * µs, "server process": 30 * µs, "aggregator process": 1 * µs}
}

func (m *made) processes() []Process {
	all := []Process{{Role: Switch}}
	for i := range m.servers {
		all = append(all, Process{Role: Server, ID: i})
	}
	for i := range m.workers {
		all = append(all, Process{Role: Worker, ID: i + 1})
	}
	return all
}

// processNamed is the process of a name that [Process.Name] returns.
func processNamed(name string) (p Process) {
	var role string
	_, _ = fmt.Sscan(name, &role, &p.ID)
	p.Role = Role(role)
	return p
}

// scrape is what a process shows after some seconds.
func (m *made) scrape(p Process, second int) *Scrape {
	n := uint64(100 * second)
	s := &Scrape{Sample: 64, Times: map[Series]Sum{}, Silent: map[string]time.Duration{}, Steps: map[string]Steps{}}
	s.Loop = Loop{Waiting: time.Duration(second) * 800 * ms, Frames: time.Duration(second) * 200 * ms}
	add := func(worker, op, part, peer string, d time.Duration) {
		s.Times[Series{worker, op, part, peer}] = Sum{n, time.Duration(n) * d}
	}
	f := m.frame
	switch p.Role {
	case Switch, Standby:
		add("", "hot", "aggregator process", "all", f["aggregator process"])
	case Server:
		for w := range m.workers {
			id := fmt.Sprint(w + 1)
			add(id, "cold", "server queue", "worker "+id, f["server queue"])
			add(id, "cold", "server process", "worker "+id, f["server process"])
		}
	case Worker:
		id := fmt.Sprint(p.ID)
		own := f["worker queue"] + f["worker process"]
		for i := range m.servers {
			peer := fmt.Sprint("server ", i)
			add(id, "cold", "total", peer, own+f["network"]+f["server queue"]+f["server process"])
			add(id, "cold", "worker queue", peer, f["worker queue"])
			add(id, "cold", "worker process", peer, f["worker process"])
		}
		add(id, "hot", "total", "aggregator", own+f["hot"]+f["aggregator process"])
		add(id, "hot", "worker queue", "aggregator", f["worker queue"])
		add(id, "hot", "worker process", "aggregator", f["worker process"])
		add(id, "push", "submit", "all", 50*µs)
		add(id, "push", "send", "all", 100*µs)
		add(id, "push", "answer", "all", 500*µs)
		s.Frames.Sent = 1000 * uint64(second)
		s.Pushes = 160 * uint64(second)
		s.Own = time.Duration(second) * 500 * ms
	}
	if m.change != nil {
		m.change(p.Name(), second, s)
	}
	return s
}

// run follows the cluster for some seconds and returns all verdicts, the last one last.
func (m *made) run(seconds int) (all [][]string, last Report) {
	j := NewJudge(m.processes(), begin)
	for second := range seconds + 1 {
		at := begin.Add(time.Duration(second) * time.Second)
		for _, p := range m.processes() {
			if !m.stopped[p.Name()] || second < m.stopAt {
				j.Note(p, at, m.scrape(p, second))
			}
		}
		last = j.Report(at.Add(100 * ms))
		var texts []string
		for _, f := range last.Verdict {
			texts = append(texts, f.Text)
		}
		all = append(all, texts)
	}
	return all, last
}

// more adds time to all times of a part, of the operations op if it is not empty, and to the totals
// of which it is a part.
func (s *Scrape) more(d time.Duration, op string, names ...string) {
	for k, n := range maps.Clone(s.Times) {
		for _, name := range names {
			if k.Part == name && (op == "" || k.Op == op) {
				n.Total += time.Duration(n.Count) * d
				s.Times[k] = n
			}
		}
	}
}

// Each line of a verdict has its cause: it is named, and nothing else is.
func TestVerdicts(t *testing.T) {
	for name, test := range map[string]struct {
		workers, servers int
		change           func(name string, second int, s *Scrape)
		want             string
	}{
		"nothing": {4, 2, nil, "nothing stands out; largest: server queue, 0.2 of 0.5 ms"},
		"late at steps": {4, 1, func(name string, second int, s *Scrape) {
			if name == "server 0" {
				n := uint64(40 * second)
				for w := 1; w <= 4; w++ {
					s.Steps[fmt.Sprint(w)] = Steps{Count: n, After: time.Duration(n) * 400 * µs}
				}
				s.Steps["3"] = Steps{Count: n, Last: n * 97 / 100, After: time.Duration(n) * 11200 * µs}
			}
		}, "worker 3 slow: last at 97 % of 200 steps, by 11.2 ms (median 0.4)"},
		"between pushes": {4, 1, func(name string, second int, s *Scrape) {
			if name == "worker 3" {
				s.Pushes, s.Own = 40*uint64(second), time.Duration(second)*960*ms
			}
		}, "worker 3 slow: 40 steps/s (median 160), 24.0 of 25.0 ms between pushes are its own"},
		"awaited at a step": {4, 1, func(name string, second int, s *Scrape) {
			went := min(second, 14) // until then all is well
			*s = *(&made{workers: 4, servers: 1, frame: quietParts()}).scrape(processNamed(name), went)
			switch {
			case name == "server 0":
				s.Awaited = map[string]time.Duration{"1": 0, "2": 0, "3": time.Duration(second-went) * time.Second, "4": 0}
			case name == "worker 3":
				s.Own += time.Duration(second-went) * time.Second
			}
		}, "worker 3 slow: others have waited for it at the end of a step for 6.0 s"},
		"awaited for a moment": {4, 1, func(name string, _ int, s *Scrape) {
			if name == "server 0" { // when it was asked
				s.Awaited = map[string]time.Duration{"1": 0, "2": 950 * ms, "3": 0, "4": 0}
			}
		}, "nothing stands out; largest: network, 0.2 of 0.4 ms"},
		"no push at all": {4, 1, func(name string, second int, s *Scrape) {
			if name == "worker 3" {
				s.Pushes, s.Own = 160*uint64(min(second, 14)), time.Duration(max(0, second-14))*time.Second
			}
		}, "worker 3 slow: 0 steps/s (median 160), 5000.0 of 5000.0 ms between pushes are its own"},
		"no client": {4, 1, func(name string, second int, s *Scrape) {
			if name == "worker 3" {
				s.Pushes, s.Own = 160*uint64(min(second, 14)), time.Duration(max(0, second-14))*time.Second
				s.NoClients = second > 14
			}
		}, "nothing stands out; largest: network, 0.2 of 0.4 ms"},
		"submit": {3, 1, func(name string, _ int, s *Scrape) {
			if name == "worker 2" {
				s.more(3*ms, "push", "submit")
			}
		}, "worker 2 slow: 3.0 of 3.6 ms are between its pushes and their first frames"},
		"worker queue": {3, 1, func(name string, second int, s *Scrape) {
			if name == "worker 2" {
				s.more(3*ms, "", "worker queue", "total")
				s.Loop = Loop{Waiting: time.Duration(second) * 20 * ms, Frames: time.Duration(second) * 980 * ms}
			}
		}, "worker 2 slow: 3.0 of 3.4 ms are its queue; loop 98 % busy"},
		"worker process": {3, 1, func(name string, _ int, s *Scrape) {
			if name == "worker 2" {
				s.more(3*ms, "", "worker process", "total")
			}
		}, "worker 2 slow: 3.0 of 3.4 ms it processes answers"},
		"server queue": {3, 2, func(name string, second int, s *Scrape) {
			switch {
			case name == "server 1":
				s.more(2600*µs, "", "server queue")
				s.more(10*µs, "", "server process")
				d := time.Duration(second) * ms
				s.Loop = Loop{Waiting: 20 * d, Calls: 180 * d, Sums: 120 * d, Frames: 680 * d}
				for w := 1; w <= 3; w++ {
					id := fmt.Sprint(w)
					s.Times[Series{id, "pull", "server process", "worker " + id}] = Sum{10, 40 * 10 * µs}
				}
			case strings.HasPrefix(name, "worker"):
				for k, n := range s.Times {
					if k.Peer == "server 1" && k.Part == "total" {
						n.Total += time.Duration(n.Count) * 2610 * µs
						s.Times[k] = n
					}
				}
			}
		}, "server 1 slow: 2.9 of 3.2 ms are its queue; loop 98 % busy (apply 68, commit 18, sums 12, pulls 0)"},
		"server process": {3, 2, func(name string, _ int, s *Scrape) {
			switch {
			case name == "server 1":
				s.more(3*ms, "", "server process")
			case strings.HasPrefix(name, "worker"):
				for k, n := range s.Times {
					if k.Peer == "server 1" && k.Part == "total" {
						n.Total += time.Duration(n.Count) * 3 * ms
						s.Times[k] = n
					}
				}
			}
		}, "server 1 slow: 3.0 of 3.6 ms it processes frames; loop 20 % busy (apply 20, commit 0, pulls 0)"},
		"before a server that is always busy": {3, 2, func(name string, second int, s *Scrape) {
			switch {
			case name == "server 1":
				s.Loop = Loop{Waiting: time.Duration(second) * 10 * ms, Frames: time.Duration(second) * 990 * ms}
			case strings.HasPrefix(name, "worker"):
				for k, n := range s.Times {
					if k.Peer == "server 1" && k.Part == "total" {
						n.Total += time.Duration(n.Count) * 3 * ms
						s.Times[k] = n
					}
				}
			}
		}, "server 1 slow: frames wait 3.2 of 3.6 ms before it receives them; loop 99 % busy (apply 99, commit 0, pulls 0)"},
		"switch's program": {3, 2, func(name string, _ int, s *Scrape) {
			s.more(3*ms, "hot", "aggregator process", "total")
		}, "switch slow: hot frames 3.2 ms, cold 0.2; its program 3.0"},
		"before the switch's program": {3, 2, func(name string, _ int, s *Scrape) {
			if strings.HasPrefix(name, "worker") {
				s.more(3*ms, "hot", "total")
			}
		}, "switch slow: hot frames 3.2 ms, cold 0.2; its program 1.0 µs, so before it"},
		"link of a worker": {4, 2, func(name string, second int, s *Scrape) {
			if name == "worker 2" {
				s.more(2900*µs, "", "total")
				s.Frames.Repeated = 8 * uint64(second)
			}
		}, "link of worker 2 slow: 3.1 ms to all peers (others 0.2), 0.8 % repeated"},
		"link of a server": {4, 2, func(name string, _ int, s *Scrape) {
			for k, n := range s.Times {
				if k.Peer == "server 1" && k.Part == "total" {
					n.Total += time.Duration(n.Count) * 3 * ms
					s.Times[k] = n
				}
			}
		}, "link of server 1 slow: 3.2 ms to all peers (others 0.2), 0.0 % repeated"},
		"repeats are in no part": {3, 1, func(name string, _ int, s *Scrape) {
			if name == "worker 2" {
				s.more(3*ms, "", "total")
				for k, n := range maps.Clone(s.Times) {
					if k.Part == "total" {
						k.Part = "repeat"
						s.Times[k] = Sum{n.Count, time.Duration(n.Count) * 3 * ms}
					}
				}
			}
		}, "nothing stands out; largest: network, 0.2 of 1.4 ms"},
		"little": {4, 2, func(name string, _ int, s *Scrape) {
			if name == "worker 2" {
				s.more(90*µs, "", "worker queue", "total")
			}
		}, "nothing stands out; largest: server queue, 0.2 of 0.5 ms"},
		"no frames": {2, 1, func(_ string, _ int, s *Scrape) { clear(s.Times); s.Pushes, s.Own = 0, 0 },
			"nothing stands out; no frame was measured in the last seconds"},
		"another job": {2, 1, func(_ string, _ int, s *Scrape) { clear(s.Times); s.Pushes, s.Own, s.OfOthers = 0, 0, true },
			"no process shows the job of this cluster file, and some show others: is its job.id right?"},
		"a job among others": {2, 1, func(name string, _ int, s *Scrape) {
			clear(s.Times)
			s.Pushes, s.Own, s.OfOthers, s.OfJob = 0, 0, true, name == "switch"
		}, "nothing stands out; no frame was measured in the last seconds"},
		"the only worker, once it is slower than before": {1, 1, func(name string, second int, s *Scrape) {
			if late := second - 10; late > 0 && name == "worker 1" {
				for k, n := range s.Times {
					if k.Part == "total" || k.Part == "worker process" {
						n.Total += time.Duration(100*late) * 3 * ms
						s.Times[k] = n
					}
				}
			}
		}, "worker 1 slow: 3.0 of 3.4 ms it processes answers"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &made{workers: test.workers, servers: test.servers, frame: quietParts(), change: test.change}
			all, _ := m.run(20)
			if diff := cmp.Diff([]string{test.want}, all[len(all)-1]); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// Silence is named within five seconds, comes before all that is slow, and ends when there is an
// answer.
func TestSilenceComesFirst(t *testing.T) {
	waits := func(second int, s *Scrape, peer string) {
		if second > 5 {
			s.Silent[peer] = min(time.Duration(second-5)*time.Second, 2*time.Second)
		}
	}
	for name, test := range map[string]struct {
		stopped string
		change  func(name string, second int, s *Scrape)
		want    string
	}{
		"server": {"server 0", func(name string, second int, s *Scrape) {
			if strings.HasPrefix(name, "worker") {
				waits(second, s, "server 0")
				s.more(3*ms, "hot", "total")
			}
		}, "server 0 silent for %.1f s: workers 1-4 wait; its telemetry does not answer either"},
		"switch": {"switch", func(name string, second int, s *Scrape) {
			if name == "worker 2" {
				waits(second, s, "aggregator")
			}
		}, "switch silent for %.1f s: worker 2 waits; its telemetry does not answer either"},
		"worker": {"worker 3", nil, "worker 3 silent for %.1f s: its telemetry does not answer"},
		"worker at a step": {"worker 3", func(name string, second int, s *Scrape) {
			if name == "server 0" {
				s.Awaited = map[string]time.Duration{"1": 0, "3": time.Duration(max(0, second-5)) * time.Second}
			}
		}, "worker 3 silent for %.1f s: others wait at the end of a step; its telemetry does not answer"},
		"frames only": {"", func(name string, second int, s *Scrape) {
			if name == "worker 1" || name == "worker 2" || name == "worker 4" {
				waits(second, s, "server 0")
			}
		}, "server 0 silent for 2.1 s: workers 1, 2, 4 wait; its telemetry answers"},
		"loop only": {"", func(name string, second int, s *Scrape) {
			if name == "server 0" && second > 5 {
				s.Age = time.Duration(second-5) * time.Second
			}
		}, "server 0 silent for %.1f s: its telemetry answers, its loop does not"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &made{workers: 4, servers: 1, frame: quietParts(), change: test.change, stopped: map[string]bool{test.stopped: true},
				stopAt: 6}
			all, _ := m.run(10)
			for second, texts := range all {
				silent := len(texts) == 1 && strings.Contains(texts[0], "silent")
				if second <= 5 && silent || second > 9 && !silent {
					t.Errorf("after %d s: %q", second, texts)
				}
			}
			want := test.want
			if strings.Contains(want, "%") {
				want = fmt.Sprintf(want, 5.1)
			}
			if diff := cmp.Diff([]string{want}, all[10]); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

// Why a process has never answered is said.
func TestNeverAnswered(t *testing.T) {
	all := []Process{{Role: Switch}, {Role: Server}}
	j := NewJudge(all, begin)
	j.Fail(all[0], "nothing listens there")
	for second := range 4 {
		j.Note(all[1], begin.Add(time.Duration(second)*time.Second), (&made{workers: 1, frame: quietParts()}).scrape(all[1], second))
	}
	r := j.Report(begin.Add(3 * time.Second))
	want := "switch silent for 3.0 s: its telemetry has not answered yet (nothing listens there)"
	if len(r.Verdict) != 1 || r.Verdict[0].Text != want || r.Verdict[0].Kind != "silent" {
		t.Errorf("%+v", r.Verdict)
	}
}

// Of a process that does not answer nothing is shown that it did before.
func TestNothingOfTheSilentIsShown(t *testing.T) {
	m := &made{workers: 2, servers: 1, frame: quietParts(), stopped: map[string]bool{"worker 1": true}, stopAt: 6}
	_, r := m.run(10)
	if diff := cmp.Diff(Line{Name: "worker 1", Silent: 5100 * ms}, r.Processes[2]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A process that is started again counts from zero: nothing of its earlier life is in its window.
func TestStartedAgain(t *testing.T) {
	m := &made{workers: 2, servers: 1, frame: quietParts()}
	j := NewJudge(m.processes(), begin)
	for second := range 12 {
		for _, p := range m.processes() {
			shown := second
			if p.Role == Worker && second >= 6 {
				shown = second - 6
			}
			j.Note(p, begin.Add(time.Duration(second)*time.Second), m.scrape(p, shown))
		}
		r := j.Report(begin.Add(time.Duration(second) * time.Second))
		if len(r.Verdict) != 1 || r.Verdict[0].Kind != "none" {
			t.Errorf("after %d s: %+v", second, r.Verdict)
		}
		if rate := r.Processes[2].Rate; rate != 160 && rate != 0 {
			t.Errorf("after %d s: %v pushes a second", second, rate)
		}
	}
}

// The lines have the means of the last seconds.
func TestLines(t *testing.T) {
	m := &made{workers: 2, servers: 1, frame: quietParts()}
	_, r := m.run(20)
	want := []Line{
		{Name: "switch", Silent: 100 * ms, Rate: 6400, Process: 1 * µs, Busy: 0.2},
		{Name: "server 0", Silent: 100 * ms, Rate: 12800, Queue: 300 * µs, Process: 30 * µs, Busy: 0.2},
	}
	for i := range 2 {
		want = append(want, Line{Name: fmt.Sprint("worker ", i+1), Silent: 100 * ms, Rate: 160, Total: 395500, Queue: 20 * µs,
			Process: 10 * µs, Network: 200 * µs, Busy: 0.2})
	}
	near := cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })
	if diff := cmp.Diff(want, r.Processes, near); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// The lowest value of ten minutes is forgotten after them.
func TestLowest(t *testing.T) {
	var l lowest
	at := begin
	for minute, step := range []struct{ value, want time.Duration }{
		{5, 5}, {3, 3}, {7, 3}, {7, 3}, {7, 3}, {7, 3}, {7, 3}, {7, 3}, {7, 3}, {7, 3}, {7, 3}, {8, 7},
	} {
		if got := l.note(at, step.value); got != step.want {
			t.Errorf("minute %d: %v, want %v", minute, got, step.want)
		}
		at = at.Add(time.Minute)
	}
	if got := l.note(at.Add(time.Hour), 9); got != 9 {
		t.Errorf("after an hour: %v", got)
	}
}

// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"io"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Scrape is what a process has shown of one job. Counters run since the start of the process; other
// fields, marked "at present", are as at the moment of the scrape.
type Scrape struct {
	Age    time.Duration // of the counters, at present; Times and Loop have none
	Sample int           // one of this number of frames is in Times; at present
	Times  map[Series]Sum
	Loop   Loop
	Frames Frames // of a worker

	Gradients   Gradients // of a worker
	HotSetShare float64   // of the updates in the log from which a worker's hot set was made; at present

	Pushes uint64
	Own    time.Duration // in which no call of the worker's program was under way
	// OfJob reports whether the process shows the job, OfOthers whether it shows other jobs; at
	// present.
	OfJob, OfOthers bool
	// NoClients reports whether a host agent has no clients; at present.
	NoClients bool
	// Silent is for how long a worker's peers have not answered, at present.
	Silent map[string]time.Duration
	// Steps are, at a server, the arrivals at the ends of steps by worker.
	Steps map[string]Steps
	// Awaited is, at a server, for how long others have waited for a worker at the end of the open
	// step, at present: 0 of those for which no other waits. It is nil if the job has no steps.
	Awaited map[string]time.Duration
}

// Series identifies times. Worker is empty at a switch; Peer is the other end.
type Series struct{ Worker, Op, Part, Peer string }

// Sum is a number of times and their sum.
type Sum struct {
	Count uint64
	Total time.Duration
}

// Loop is how an endpoint's loop has spent its time.
type Loop struct{ Waiting, Calls, Sums, Frames time.Duration }

func (l Loop) total() time.Duration { return l.Waiting + l.Calls + l.Sums + l.Frames }

// Gradients counts those of a worker's pushes that are of hot rows, and the others.
type Gradients struct{ Hot, Cold uint64 }

// Frames counts a worker's frames.
type Frames struct{ Sent, Repeated uint64 }

// Steps are a worker's arrivals at the ends of steps.
type Steps struct {
	Count, Last uint64
	After       time.Duration // sum of the times since the first arrival
}

// maxScrape bounds a response: 2,000 series take some hundred kilobytes.
const maxScrape = 16 << 20

// Parse reads a response of /metrics, and adds up what concerns the jobs: those that sum the shares
// of one hot set.
func Parse(r io.Reader, jobs ...uint16) (*Scrape, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(r, maxScrape))
	if err != nil {
		return nil, fmt.Errorf("this is not what a process of libra shows: does another program listen there? %w", err)
	}
	if families["libra_counters_age_seconds"] == nil {
		return nil, fmt.Errorf("libra_counters_age_seconds is missing: does another program listen there?")
	}
	s := &Scrape{Times: map[Series]Sum{}, Silent: map[string]time.Duration{}, Steps: map[string]Steps{}}
	wanted := map[string]bool{}
	for _, job := range jobs {
		wanted[fmt.Sprint(job)] = true
	}
	for name, take := range s.takers() {
		for _, m := range families[name].GetMetric() {
			l := map[string]string{}
			for _, p := range m.Label {
				l[p.GetName()] = p.GetValue()
			}
			if of, ok := l["job"]; ok && !wanted[of] {
				s.OfOthers = true
				continue
			} else if ok {
				s.OfJob = true
			}
			take(l, m)
		}
	}
	return s, nil
}

// takers returns what to do with each metric.
func (s *Scrape) takers() map[string]func(l map[string]string, m *dto.Metric) {
	steps := func(l map[string]string, change func(*Steps)) {
		of := s.Steps[l["worker"]]
		change(&of)
		s.Steps[l["worker"]] = of
	}
	return map[string]func(l map[string]string, m *dto.Metric){
		"libra_counters_age_seconds": func(_ map[string]string, m *dto.Metric) { s.Age = seconds(m.GetGauge().GetValue()) },
		"libra_telemetry_sample_frames": func(_ map[string]string, m *dto.Metric) {
			s.Sample = int(m.GetGauge().GetValue())
		},
		"libra_latency_seconds": func(l map[string]string, m *dto.Metric) {
			h := m.GetHistogram()
			k := Series{l["worker"], l["op"], l["part"], l["peer"]}
			s.Times[k] = s.Times[k].plus(Sum{h.GetSampleCount(), seconds(h.GetSampleSum())})
		},
		"libra_loop_seconds_total": func(l map[string]string, m *dto.Metric) {
			d := seconds(m.GetCounter().GetValue())
			switch l["part"] {
			case "waiting":
				s.Loop.Waiting += d
			case "calls":
				s.Loop.Calls += d
			case "sums":
				s.Loop.Sums += d
			case "frames":
				s.Loop.Frames += d
			}
		},
		"libra_worker_sent_frames_total": func(_ map[string]string, m *dto.Metric) {
			s.Frames.Sent += uint64(m.GetCounter().GetValue())
		},
		"libra_worker_repeated_frames_total": func(_ map[string]string, m *dto.Metric) {
			s.Frames.Repeated += uint64(m.GetCounter().GetValue())
		},
		"libra_worker_pushed_hot_pairs_total": func(_ map[string]string, m *dto.Metric) {
			s.Gradients.Hot += uint64(m.GetCounter().GetValue())
		},
		"libra_worker_cold_pairs_total": func(_ map[string]string, m *dto.Metric) {
			s.Gradients.Cold += uint64(m.GetCounter().GetValue())
		},
		"libra_worker_hot_set_share": func(_ map[string]string, m *dto.Metric) { s.HotSetShare = m.GetGauge().GetValue() },
		"libra_worker_pushes_total": func(_ map[string]string, m *dto.Metric) {
			s.Pushes += uint64(m.GetCounter().GetValue())
		},
		"libra_worker_own_seconds_total": func(_ map[string]string, m *dto.Metric) {
			s.Own += seconds(m.GetCounter().GetValue())
		},
		"libra_worker_peer_silence_seconds": func(l map[string]string, m *dto.Metric) {
			if d := seconds(m.GetGauge().GetValue()); d > 0 {
				s.Silent[l["peer"]] = d
			}
		},
		"libra_server_step_arrival_seconds": func(l map[string]string, m *dto.Metric) {
			steps(l, func(of *Steps) {
				of.Count, of.After = m.GetSummary().GetSampleCount(), seconds(m.GetSummary().GetSampleSum())
			})
		},
		"libra_server_last_arrivals_total": func(l map[string]string, m *dto.Metric) {
			steps(l, func(of *Steps) { of.Last = uint64(m.GetCounter().GetValue()) })
		},
		"libra_server_awaited_seconds": func(l map[string]string, m *dto.Metric) {
			if s.Awaited == nil {
				s.Awaited = map[string]time.Duration{}
			}
			s.Awaited[l["worker"]] = seconds(m.GetGauge().GetValue())
		},
		"libra_agent_clients": func(_ map[string]string, m *dto.Metric) { s.NoClients = m.GetGauge().GetValue() == 0 },
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// since returns what was counted since an earlier scrape, or false if the process was started again
// meanwhile. What is as at present is that of s.
func (s *Scrape) since(old *Scrape) (*Scrape, bool) {
	d := &Scrape{Age: s.Age, Sample: s.Sample, Silent: s.Silent, HotSetShare: s.HotSetShare, NoClients: s.NoClients,
		Awaited: s.Awaited, Times: map[Series]Sum{}, Steps: map[string]Steps{}}
	same := s.Pushes >= old.Pushes && s.Frames.Sent >= old.Frames.Sent &&
		s.Gradients.Hot >= old.Gradients.Hot && s.Gradients.Cold >= old.Gradients.Cold &&
		s.Loop.total() >= old.Loop.total()
	for k := range old.Times {
		_, ok := s.Times[k]
		same = same && ok
	}
	for k := range old.Steps {
		_, ok := s.Steps[k]
		same = same && ok
	}
	for k, n := range s.Times {
		o := old.Times[k]
		same = same && n.Count >= o.Count
		if n.Count > o.Count {
			d.Times[k] = Sum{n.Count - o.Count, max(0, n.Total-o.Total)}
		}
	}
	for k, n := range s.Steps {
		o := old.Steps[k]
		same = same && n.Count >= o.Count && n.Last >= o.Last
		if n.Count > o.Count {
			d.Steps[k] = Steps{n.Count - o.Count, n.Last - o.Last, max(0, n.After-o.After)}
		}
	}
	if !same {
		return nil, false
	}
	d.Loop = Loop{max(0, s.Loop.Waiting-old.Loop.Waiting), max(0, s.Loop.Calls-old.Loop.Calls),
		max(0, s.Loop.Sums-old.Loop.Sums), max(0, s.Loop.Frames-old.Loop.Frames)}
	d.Gradients = Gradients{s.Gradients.Hot - old.Gradients.Hot, s.Gradients.Cold - old.Gradients.Cold}
	d.Frames = Frames{s.Frames.Sent - old.Frames.Sent, s.Frames.Repeated - old.Frames.Repeated}
	d.Pushes, d.Own = s.Pushes-old.Pushes, max(0, s.Own-old.Own)
	return d, true
}

// mean returns the mean time, 0 if there is none.
func (s Sum) mean() time.Duration {
	if s.Count == 0 {
		return 0
	}
	return s.Total / time.Duration(s.Count)
}

func (s Sum) plus(o Sum) Sum { return Sum{s.Count + o.Count, s.Total + o.Total} }

// sum adds up all times of which the series are wanted.
func (s *Scrape) sum(wanted func(Series) bool) (all Sum) {
	for k, n := range s.Times {
		if wanted(k) {
			all = all.plus(n)
		}
	}
	return all
}

// part adds up the times of frames, of one part.
func (s *Scrape) part(name string) Sum { return s.sum(func(k Series) bool { return k.Part == name }) }

// busy returns the share of the time in which the loop did not wait, 0 if it does not say.
func (l Loop) busy() float64 {
	total := l.total()
	if total <= 0 {
		return 0
	}
	return 1 - float64(l.Waiting)/float64(total)
}

// peerName is the name in verdicts of the other end of a flow.
func peerName(peer string) string {
	if peer == "aggregator" {
		return "switch"
	}
	return peer
}

// isServer reports whether the other end is a parameter server.
func isServer(peer string) bool { return strings.HasPrefix(peer, "server ") }

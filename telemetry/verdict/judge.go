// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Role is what a process does.
type Role string

// Roles.
const (
	Switch  Role = "switch"
	Standby Role = "standby"
	Server  Role = "server"
	Worker  Role = "worker"
)

// Process is a process that is followed. ID is a worker's number, or a server's index. Of is the
// name of one of several switches, "" of the first.
type Process struct {
	Role Role
	ID   int
	Of   string
}

// Name returns the name of the process in verdicts: "switch", "switch left", "server 0".
func (p Process) Name() string {
	switch {
	case p.Role == Switch && p.Of != "":
		return fmt.Sprintf("%s %s", p.Role, p.Of)
	case p.Role == Switch:
		return string(Switch)
	}
	return fmt.Sprintf("%s %d", p.Role, p.ID)
}

const (
	// window is the time over which is averaged.
	window = 5 * time.Second
	// minExcess and minShare of the total are what makes something slow.
	minExcess = 100 * time.Microsecond
	minShare  = 0.3
	// A process is silent that does not answer workers for framesSilent, or shows no telemetry for
	// telemetrySilent, or whose loop does not answer the process itself for loopSilent.
	framesSilent    = time.Second
	telemetrySilent = 2 * time.Second
	loopSilent      = 3 * time.Second
	// fullLoop is the share of time from which on a loop is the reason of the queue before it.
	fullLoop = 0.9
)

// Judge follows the processes of a cluster in a job.
type Judge struct {
	followed []*followed
	started  time.Time
	lowest   map[string]*lowest
}

// followed is what is known of a process.
type followed struct {
	Process
	scrapes []scraped // of the last seconds, the oldest first
	reason  string    // why it did not answer last

	// Of the current report:
	window  *Scrape       // what was counted in the last seconds; nil if too little is known
	over    time.Duration // how long that was, by the scrapes
	counted time.Duration // and by the counters in them
	silent  time.Duration // since it has answered
}

type scraped struct {
	at time.Time
	*Scrape
}

// NewJudge returns a judge that begins to follow processes now.
func NewJudge(processes []Process, now time.Time) *Judge {
	j := &Judge{started: now, lowest: map[string]*lowest{}}
	for _, p := range processes {
		j.followed = append(j.followed, &followed{Process: p})
	}
	return j
}

// Note takes what a process has shown at a time.
func (j *Judge) Note(p Process, at time.Time, s *Scrape) {
	f := j.find(p)
	f.reason = ""
	if n := len(f.scrapes); n > 0 {
		if _, ok := s.since(f.scrapes[n-1].Scrape); !ok {
			f.scrapes = nil // another life
		}
	}
	f.scrapes = append(f.scrapes, scraped{at, s})
	for len(f.scrapes) > 2 && at.Sub(f.scrapes[1].at) >= window {
		f.scrapes = f.scrapes[1:]
	}
}

// Fail takes why a process did not answer; empty if it just does not.
func (j *Judge) Fail(p Process, reason string) { j.find(p).reason = reason }

func (j *Judge) find(p Process) *followed {
	return j.followed[slices.IndexFunc(j.followed, func(f *followed) bool { return f.Process == p })]
}

// Report is what a [Judge] says at one time.
type Report struct {
	Processes []Line `json:"processes"`
	// Verdict has the slow or silent processes, the one that costs most first. If none is, it has one
	// finding, of the kind "none".
	Verdict []Finding `json:"verdict"`
}

// Finding is a line of a verdict.
type Finding struct {
	Kind   string        `json:"kind"` // silent, worker, server, switch, link or none
	Name   string        `json:"name"` // the process, or that at the end of the link
	Excess time.Duration `json:"excess_ns"`
	Text   string        `json:"text"`

	late   bool // the worker arrives late, for whatever reason
	waited int  // workers that wait for the process
	spare  bool // it is an aggregator: the job may be at another one, or at none
}

// hinders reports whether a process that is silent may be what all wait for.
func (f Finding) hinders() bool { return !f.spare || f.waited > 0 }

// Line describes a process over the last seconds. What is not known is 0.
type Line struct {
	Name     string        `json:"name"`
	Silent   time.Duration `json:"silent_ns"` // since it has shown anything
	Rate     float64       `json:"rate"`      // per second: a worker's pushes; frames of the others, from the sample
	Total    time.Duration `json:"total_ns"`  // of a worker's frame, in the mean
	Queue    time.Duration `json:"queue_ns"`
	Process  time.Duration `json:"process_ns"`
	Network  time.Duration `json:"network_ns"` // of a worker's frames
	Repeated float64       `json:"repeated"`   // share of a worker's frames
	Busy     float64       `json:"busy"`       // share of the time in which the loop does not wait
	// Hot is the share of the gradients of a worker's pushes that are of hot rows, and HotSet the one
	// that the hot set had in the log from which it was made; both are 0 if nothing was pushed.
	Hot    float64 `json:"hot"`
	HotSet float64 `json:"hot_set"`
}

// Report says what the processes do, and which of them makes the others wait.
func (j *Judge) Report(now time.Time) Report {
	for _, f := range j.followed {
		f.look(now, j.started)
	}
	c := j.newComparison(now)
	silent := j.silences()
	r := Report{Verdict: silent}
	for _, f := range j.followed {
		r.Processes = append(r.Processes, c.describeProcess(f))
	}
	slow := c.findings() // which remembers the lowest values, in any case
	if !slices.ContainsFunc(silent, Finding.hinders) {
		r.Verdict = slices.Concat(slow, silent)
	}
	if len(r.Verdict) == 0 {
		r.Verdict = []Finding{c.none()}
	}
	return r
}

// look makes the window of a process.
func (f *followed) look(now, started time.Time) {
	f.window, f.silent = nil, now.Sub(started)
	n := len(f.scrapes)
	if n == 0 {
		return
	}
	last, first := f.scrapes[n-1], f.scrapes[0]
	f.silent = now.Sub(last.at)
	if n < 2 || f.mute() {
		return
	}
	f.over = last.at.Sub(first.at)
	f.counted = f.over - last.Age + first.Age
	f.window, _ = last.since(first.Scrape)
}

// lowest keeps the lowest value of the last ten minutes.
type lowest struct {
	minutes [10]time.Duration
	minute  int64
}

// note takes a value and returns the lowest.
func (l *lowest) note(now time.Time, d time.Duration) time.Duration {
	minute := now.Unix() / 60
	if l.minute == 0 || minute-l.minute >= int64(len(l.minutes)) {
		for i := range l.minutes {
			l.minutes[i] = math.MaxInt64
		}
		l.minute = minute
	}
	for ; l.minute < minute; l.minute++ {
		l.minutes[(l.minute+1)%int64(len(l.minutes))] = math.MaxInt64
	}
	at := &l.minutes[minute%int64(len(l.minutes))]
	*at = min(*at, d)
	return slices.Min(l.minutes[:])
}

// usual returns what a value would be if nothing were slow: the median of the others of its kind,
// or if there are none, its own lowest in ten minutes.
func (j *Judge) usual(now time.Time, what string, value time.Duration, others []time.Duration) time.Duration {
	l := j.lowest[what]
	if l == nil {
		l = &lowest{}
		j.lowest[what] = l
	}
	least := l.note(now, value)
	if len(others) == 0 {
		return least
	}
	return median(others)
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	n := len(all)
	return (all[(n-1)/2] + all[n/2]) / 2
}

// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// comparison has what the last seconds say of all processes and of the pairs between them.
type comparison struct {
	*Judge
	now      time.Time
	workers  []*followed // with a window
	servers  []*followed
	pairs    []*pair
	program  Sum // the aggregator's, of hot frames
	measured Sum // frames of workers, with their totals
}

// pair is the frames of a worker to one peer.
type pair struct {
	worker *followed
	peer   string // as in verdicts: "server 0", "switch"
	frames uint64
	total  time.Duration // means of a frame
	net    time.Duration // what is in no part of either end
}

// ops are the operations of frames.
var ops = []string{"hot", "cold", "pull", "find"}

func (j *Judge) newComparison(now time.Time) *comparison {
	c := &comparison{Judge: j, now: now}
	for _, f := range j.followed {
		switch {
		case f.window == nil:
		case f.Role == Worker:
			c.workers = append(c.workers, f)
			c.measured = c.measured.plus(f.window.part("total"))
		case f.Role == Server:
			c.servers = append(c.servers, f)
		default:
			c.program = c.program.plus(f.window.part("aggregator process"))
		}
	}
	for _, w := range c.workers {
		c.addPairs(w)
	}
	return c
}

// addPairs adds the pairs of a worker. Of a frame that was sent more than once, only the time since
// the last copy counts: which one was answered is a guess, and the time before it is in no part.
func (c *comparison) addPairs(w *followed) {
	byPeer := map[string]*pair{}
	for k, total := range w.window.Times {
		if k.Part != "total" || !slices.Contains(ops, k.Op) || k.Peer == "other" {
			continue
		}
		own := func(part string) Sum { return w.window.Times[Series{k.Worker, k.Op, part, k.Peer}] }
		last := Sum{total.Count, total.Total - own("repeat").Total}.mean()
		net := last - own("worker queue").mean() - own("worker process").mean()
		if isServer(k.Peer) {
			parts, ok := c.serverParts(k)
			if !ok {
				continue
			}
			net -= parts
		} else {
			net -= c.program.mean()
		}
		p := byPeer[k.Peer]
		if p == nil {
			p = &pair{worker: w, peer: peerName(k.Peer)}
			byPeer[k.Peer] = p
			c.pairs = append(c.pairs, p)
		}
		n := p.frames + total.Count
		weighted := func(old, d time.Duration) time.Duration {
			return (old*time.Duration(p.frames) + d*time.Duration(total.Count)) / time.Duration(n)
		}
		p.total, p.net = weighted(p.total, last), weighted(p.net, max(0, net))
		p.frames = n
	}
	slices.SortFunc(c.pairs, func(a, b *pair) int {
		return cmp.Or(cmp.Compare(a.worker.ID, b.worker.ID), cmp.Compare(a.peer, b.peer))
	})
}

// serverParts returns how long the server was at a worker's frames, if it says so. Many workers
// have series in common, as "other".
func (c *comparison) serverParts(k Series) (d time.Duration, ok bool) {
	for _, s := range c.servers {
		if s.Name() != k.Peer {
			continue
		}
		for _, worker := range []string{k.Worker, "other"} {
			of := func(part string) Sum {
				return s.window.sum(func(at Series) bool {
					return at.Op == k.Op && at.Part == part && (at.Worker == worker || at.Peer == worker)
				})
			}
			if process := of("server process"); process.Count > 0 {
				return process.mean() + of("server queue").mean(), true
			}
		}
	}
	return 0, false
}

// pairsOf returns the pairs of a process.
func (c *comparison) pairsOf(f *followed) (all []*pair) {
	for _, p := range c.pairs {
		if p.worker == f || p.peer == f.Name() {
			all = append(all, p)
		}
	}
	return all
}

// netOf returns the mean time that the frames of some pairs were on their way, and their mean
// total.
func netOf(pairs []*pair) (net, total time.Duration) {
	var frames, nets, totals time.Duration
	for _, p := range pairs {
		n := time.Duration(p.frames)
		frames, nets, totals = frames+n, nets+n*p.net, totals+n*p.total
	}
	if frames == 0 {
		return 0, 0
	}
	return nets / frames, totals / frames
}

// describeProcess describes a process.
func (c *comparison) describeProcess(f *followed) Line {
	l := Line{Name: f.Name(), Silent: f.silent}
	if f.window == nil || f.over <= 0 {
		return l
	}
	w, per := f.window, f.over.Seconds()
	l.Busy = w.Loop.busy()
	switch f.Role {
	case Worker:
		if f.counted > 0 {
			l.Rate = float64(w.Pushes) / f.counted.Seconds()
		}
		l.Total, l.Queue, l.Process = w.part("total").mean(), w.part("worker queue").mean(), w.part("worker process").mean()
		l.Network, _ = netOf(c.pairsOf(f))
		l.Repeated = w.Frames.repeated()
		if w.Gradients != (Gradients{}) {
			l.Hot, l.HotSet = w.Gradients.hot(), w.HotSetShare
		}
	case Server:
		process := w.part("server process")
		l.Rate = float64(process.Count) * float64(w.Sample) / per
		l.Queue, l.Process = w.part("server queue").mean(), process.mean()
	default:
		process := w.part("aggregator process")
		l.Rate, l.Process = float64(process.Count)*float64(w.Sample)/per, process.mean()
	}
	return l
}

func (g Gradients) hot() float64 {
	if g.Hot+g.Cold == 0 {
		return 0
	}
	return float64(g.Hot) / float64(g.Hot+g.Cold)
}

func (f Frames) repeated() float64 {
	if f.Sent == 0 {
		return 0
	}
	return float64(f.Repeated) / float64(f.Sent)
}

// none is the finding if nothing is slow: the largest part of all.
func (c *comparison) none() Finding {
	f := Finding{Kind: "none", Text: "nothing stands out; no frame was measured in the last seconds"}
	total := c.measured.mean()
	if total == 0 {
		shows := func(is func(*Scrape) bool) bool {
			return slices.ContainsFunc(c.followed, func(f *followed) bool {
				return len(f.scrapes) > 0 && is(f.scrapes[len(f.scrapes)-1].Scrape)
			})
		}
		if shows(func(s *Scrape) bool { return s.OfOthers }) && !shows(func(s *Scrape) bool { return s.OfJob }) {
			f.Text = "no process shows the job of this cluster file, and some show others: is its job.id right?"
		}
		return f
	}
	var largest time.Duration
	name := ""
	consider := func(what string, all Sum) {
		// Of all frames: some have no such part.
		if d := all.Total / time.Duration(c.measured.Count); d > largest {
			largest, name = d, what
		}
	}
	for _, part := range []string{"worker queue", "worker process"} {
		var all Sum
		for _, w := range c.workers {
			all = all.plus(w.window.part(part))
		}
		consider(part, all)
	}
	for _, part := range []string{"server queue", "server process"} {
		var all Sum
		for _, s := range c.servers {
			all = all.plus(s.window.part(part))
		}
		consider(part, all)
	}
	consider("aggregator process", c.program)
	var network Sum
	for _, p := range c.pairs {
		network = network.plus(Sum{p.frames, p.net * time.Duration(p.frames)})
	}
	consider("network", network)
	if name == "" {
		return f
	}
	f.Name, f.Excess = name, largest
	f.Text = fmt.Sprintf("nothing stands out; largest: %s, %s of %s", name, bare(largest, total), Millis(total))
	return f
}

// Millis is a time for people: milliseconds, or microseconds if it is short.
func Millis(d time.Duration) string {
	if d < 100*time.Microsecond {
		return fmt.Sprintf("%.1f µs", float64(d)/1e3)
	}
	return fmt.Sprintf("%.1f ms", float64(d)/1e6)
}

// bare is a time without its unit, in that which Millis has for another.
func bare(d, unit time.Duration) string {
	if unit < 100*time.Microsecond {
		return fmt.Sprintf("%.1f", float64(d)/1e3)
	}
	return fmt.Sprintf("%.1f", float64(d)/1e6)
}

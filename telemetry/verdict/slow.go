// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// findings finds what is slow, that with the largest excess first.
func (c *comparison) findings() (all []Finding) {
	all = slices.Concat(c.slowWorkers(), c.slowServers(), c.slowSwitch(), c.slowLinks())
	named := map[string]bool{}
	for _, f := range all {
		named[f.Name] = named[f.Name] || !f.late
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		// That a worker is late follows from whatever else is slow there.
		effect := func(f Finding) bool { return f.late && named[f.Name] }
		if effect(a) != effect(b) {
			if effect(a) {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.Excess, a.Excess)
	})
	return all
}

// isSlow reports whether an excess is large enough to be named.
func isSlow(excess, total time.Duration) bool {
	return excess >= minExcess && float64(excess) >= minShare*float64(total)
}

// measure is one value of each process of a role, and the total of which it is a part.
type measure struct {
	name  string
	value func(*followed) (value, total time.Duration, ok bool)
}

// compared is a process whose value exceeds what is usual.
type compared struct {
	*followed
	value, usual, total time.Duration
}

// exceeding returns the processes in which a value is too large.
func (c *comparison) exceeding(among []*followed, m measure) (all []compared) {
	values := make([]time.Duration, len(among))
	totals := make([]time.Duration, len(among))
	known := make([]bool, len(among))
	for i, f := range among {
		values[i], totals[i], known[i] = m.value(f)
	}
	for i, f := range among {
		if !known[i] {
			continue
		}
		var others []time.Duration
		for o := range among {
			if o != i && known[o] {
				others = append(others, values[o])
			}
		}
		usual := c.usual(c.now, f.Name()+" "+m.name, values[i], others)
		if isSlow(values[i]-usual, totals[i]) {
			all = append(all, compared{f, values[i], usual, totals[i]})
		}
	}
	return all
}

// slowWorkers finds workers that are late at the ends of steps, that are slow between their pushes,
// and those whose own parts take long.
func (c *comparison) slowWorkers() (all []Finding) {
	steps := c.stepsOf()
	stepping := len(steps) > 0
	for _, s := range c.exceeding(c.workers, measure{"lateness", func(f *followed) (time.Duration, time.Duration, bool) {
		of, ok := steps[fmt.Sprint(f.ID)]
		if !ok {
			return 0, 0, false
		}
		return of.After / time.Duration(of.Count), f.over / time.Duration(of.Count), true
	}}) {
		of := steps[fmt.Sprint(s.ID)]
		if 2*of.Last < of.Count {
			continue
		}
		all = append(all, Finding{Kind: "worker", Name: s.Name(), Excess: s.value - s.usual, late: true,
			Text: fmt.Sprintf("%s slow: last at %.0f %% of %d steps, by %s (median %s)", s.Name(),
				100*float64(of.Last)/float64(of.Count), of.Count, Millis(s.value), bare(s.usual, s.value))})
	}
	if !stepping {
		all = append(all, c.slowBetweenPushes()...)
	}
	all = append(all, c.awaitedWorkers()...)
	for _, p := range []struct {
		part, text string
		op         string // of which the total is
	}{{"submit", "%s of %s are between its pushes and their first frames", "push"},
		{"worker queue", "%s of %s are its queue", ""}, {"worker process", "%s of %s it processes answers", ""}} {
		for _, s := range c.exceeding(c.workers, measure{p.part, func(f *followed) (time.Duration, time.Duration, bool) {
			part := f.window.part(p.part)
			total := f.window.part("total").mean()
			if p.op == "push" {
				total = part.mean() + f.window.part("send").mean() + f.window.part("answer").mean()
			}
			return part.mean(), total, part.Count > 0
		}}) {
			all = append(all, Finding{Kind: "worker", Name: s.Name(), Excess: s.value - s.usual,
				Text: fmt.Sprintf("%s slow: "+p.text, s.Name(), bare(s.value, s.total), Millis(s.total)) + s.window.Loop.worker()})
		}
	}
	return all
}

// stepsOf adds up the arrivals of workers at the ends of steps. With several servers, each has all.
func (c *comparison) stepsOf() map[string]Steps {
	all := map[string]Steps{}
	for _, s := range c.servers {
		for worker, of := range s.window.Steps {
			if of.Count > all[worker].Count {
				all[worker] = of
			}
		}
	}
	return all
}

// awaitedWorkers finds those for which others wait at the end of the open step, which perhaps never
// ends.
func (c *comparison) awaitedWorkers() (all []Finding) {
	for _, w := range c.workers {
		if d := c.awaited(w); d >= framesSilent {
			all = append(all, Finding{Kind: "worker", Name: w.Name(), Excess: d, late: true,
				Text: fmt.Sprintf("%s slow: others have waited for it at the end of a step for %.1f s", w.Name(), d.Seconds())})
		}
	}
	return all
}

// slowBetweenPushes finds workers whose programs take long between their calls. In a job with
// steps, one that does not push is awaited, or waits itself.
func (c *comparison) slowBetweenPushes() (all []Finding) {
	steps := slices.ContainsFunc(c.servers, func(s *followed) bool { return s.window.Awaited != nil })
	rate := func(f *followed) float64 {
		if f.counted <= 0 {
			return 0
		}
		return float64(f.window.Pushes) / f.counted.Seconds()
	}
	own := func(f *followed) (value, total time.Duration, ok bool) {
		before := f.scrapes[len(f.scrapes)-1].Pushes > 0 && !f.window.NoClients && !steps
		if f.counted <= 0 || f.window.Pushes == 0 && !before {
			return 0, 0, false
		}
		n := time.Duration(max(1, f.window.Pushes))
		return min(f.window.Own, f.counted) / n, f.counted / n, true
	}
	for _, s := range c.exceeding(c.workers, measure{"between pushes", own}) {
		var others []time.Duration // a push of each takes so long
		for _, f := range c.workers {
			if f != s.followed && f.window.Pushes > 0 && f.counted > 0 {
				others = append(others, f.counted/time.Duration(f.window.Pushes))
			}
		}
		usual := "lowest " + Millis(s.usual)
		if len(others) > 0 {
			usual = fmt.Sprintf("median %.0f", 1/median(others).Seconds())
		}
		all = append(all, Finding{Kind: "worker", Name: s.Name(), Excess: s.value - s.usual,
			Text: fmt.Sprintf("%s slow: %.0f steps/s (%s), %s of %s between pushes are its own", s.Name(), rate(s.followed),
				usual, bare(s.value, s.total), Millis(s.total))})
	}
	return all
}

// slowServers finds servers whose queue or processing takes long.
func (c *comparison) slowServers() (all []Finding) {
	for _, p := range []struct{ part, text string }{{"server queue", "%s of %s are its queue"},
		{"server process", "%s of %s it processes frames"}} {
		for _, s := range c.exceeding(c.servers, measure{p.part, func(f *followed) (time.Duration, time.Duration, bool) {
			part := f.window.part(p.part)
			_, total := netOf(c.pairsOf(f))
			return part.mean(), total, part.Count > 0
		}}) {
			all = append(all, Finding{Kind: "server", Name: s.Name(), Excess: s.value - s.usual,
				Text: fmt.Sprintf("%s slow: "+p.text, s.Name(), bare(s.value, s.total), Millis(s.total)) + s.window.server()})
		}
	}
	return all
}

// slowSwitch finds out whether hot frames take longer than cold ones, which go the same way: at
// most workers, since a slow worker may receive its answers late.
func (c *comparison) slowSwitch() []Finding {
	program := c.program.mean()
	var hots, colds, more, totals []time.Duration
	for _, w := range c.workers {
		var hot, cold []*pair
		for _, p := range c.pairsOf(w) {
			if p.peer == string(Switch) {
				hot = append(hot, p)
			} else {
				cold = append(cold, p)
			}
		}
		if len(hot) == 0 {
			continue
		}
		took, total := netOf(hot)
		hots, totals = append(hots, took+program), append(totals, total)
		if len(cold) > 0 {
			usual, _ := netOf(cold)
			colds, more = append(colds, usual), append(more, took+program-usual)
		}
	}
	if len(hots) == 0 {
		return nil
	}
	took, usual, excess := median(hots), median(colds), median(more)
	compared := fmt.Sprintf("cold %s", bare(usual, took))
	if len(colds) == 0 {
		usual = c.usual(c.now, "hot frames", took, nil)
		compared, excess = fmt.Sprintf("lowest %s", bare(usual, took)), took-usual
	}
	if !isSlow(excess, median(totals)) {
		return nil
	}
	text := fmt.Sprintf("switch slow: hot frames %s, %s; its program ", Millis(took), compared)
	if 2*program >= excess {
		text += bare(program, took)
	} else {
		text += Millis(program) + ", so before it"
	}
	return []Finding{{Kind: "switch", Name: string(Switch), Excess: excess, Text: text}}
}

// worker describes a worker's loop that hardly waits.
func (l Loop) worker() string {
	if l.busy() < fullLoop {
		return ""
	}
	return fmt.Sprintf("; loop %.0f %% busy", 100*l.busy())
}

// server describes how a server's loop spends its time: on frames of gradients, which it applies,
// on calls, which commit steps, on the sums of harvests, and on pulls. How frames are divided is
// known from those that are drawn.
func (s *Scrape) server() string {
	total := s.Loop.total()
	if total <= 0 {
		return ""
	}
	at := func(ops ...string) time.Duration {
		return s.sum(func(k Series) bool { return k.Part == "server process" && slices.Contains(ops, k.Op) }).Total
	}
	apply, pulls := at("cold"), at("pull", "find")
	if apply+pulls == 0 {
		apply = 1
	}
	percent := func(d time.Duration) float64 { return 100 * float64(d) / float64(total) }
	share := float64(pulls) / float64(apply+pulls)
	sums := ""
	if s.Loop.Sums > 0 {
		sums = fmt.Sprintf("sums %.0f, ", percent(s.Loop.Sums))
	}
	return fmt.Sprintf("; loop %.0f %% busy (apply %.0f, commit %.0f, %spulls %.0f)", 100*s.Loop.busy(),
		percent(s.Loop.Frames)*(1-share), percent(s.Loop.Calls), sums, percent(s.Loop.Frames)*share)
}

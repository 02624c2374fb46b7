// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"time"
)

// slowLinks finds the links that all slow pairs share. Those of hot frames are compared with each
// other: what they have in common is the switch's.
func (c *comparison) slowLinks() (all []Finding) {
	slow := map[*pair]bool{}
	usuals := map[*pair]time.Duration{}
	for _, p := range c.pairs {
		var others []time.Duration
		for _, o := range c.pairs {
			if o != p && (o.peer == string(Switch)) == (p.peer == string(Switch)) {
				others = append(others, o.net)
			}
		}
		usual := c.usual(c.now, "way of "+p.worker.Name()+" to "+p.peer, p.net, others)
		usuals[p], slow[p] = usual, isSlow(p.net-usual, p.total)
		if p.peer == string(Switch) && len(others) == 0 && slow[p] && !c.allSlow(p.worker, slow) {
			slow[p] = false // the switch, which is compared with cold frames
		}
	}
	for _, f := range c.followed {
		pairs := c.pairsOf(f)
		if f.Role != Worker && f.Role != Server || len(pairs) == 0 || !c.explains(f, pairs, slow) {
			continue
		}
		var usual []time.Duration
		for _, p := range pairs {
			usual = append(usual, usuals[p])
		}
		all = append(all, c.slowLink(f, pairs, median(usual)))
	}
	return append(all, c.onlyServer(slow)...)
}

// onlyServer compares the link of a single server with what it was: there is no other to compare it
// with, and all its pairs may be slow at once.
func (c *comparison) onlyServer(slow map[*pair]bool) []Finding {
	if len(c.servers) != 1 {
		return nil
	}
	s := c.servers[0]
	pairs := c.pairsOf(s)
	if len(pairs) == 0 {
		return nil
	}
	net, total := netOf(pairs)
	usual := c.usual(c.now, "way to "+s.Name(), net, nil)
	if !isSlow(net-usual, total) || slices.ContainsFunc(pairs, func(p *pair) bool { return slow[p] }) {
		return nil
	}
	return []Finding{c.slowLink(s, pairs, usual)}
}

// allSlow reports whether all pairs of a worker to servers are slow.
func (c *comparison) allSlow(w *followed, slow map[*pair]bool) bool {
	return !slices.ContainsFunc(c.pairsOf(w), func(p *pair) bool { return p.peer != string(Switch) && !slow[p] })
}

// explains reports whether the link of a process is what slow pairs share: all its own are slow. If
// a worker's and a server's link explain the same pairs, that with more of them counts, and of
// equals the worker's.
func (c *comparison) explains(f *followed, pairs []*pair, slow map[*pair]bool) bool {
	for _, p := range pairs {
		if !slow[p] {
			return false
		}
	}
	for _, p := range pairs {
		for _, o := range c.followed {
			if o == f || o.Name() != p.peer && o != p.worker || o.Role == Switch {
				continue
			}
			others := c.pairsOf(o)
			better := len(others) > len(pairs) || len(others) == len(pairs) && o.Role == Worker
			if better && !slices.ContainsFunc(others, func(p *pair) bool { return !slow[p] }) {
				return false
			}
		}
	}
	return true
}

// slowLink describes a slow link, or what is behind it: if the loop there is always busy, frames
// wait for it before it receives them.
func (c *comparison) slowLink(f *followed, pairs []*pair, usual time.Duration) Finding {
	net, total := netOf(pairs)
	found := Finding{Kind: "link", Name: f.Name(), Excess: net - usual}
	if f.window != nil && f.window.Loop.busy() >= fullLoop {
		found.Kind = string(f.Role)
		loop := f.window.Loop.worker()
		if f.Role == Server {
			loop = f.window.server()
		}
		found.Text = fmt.Sprintf("%s slow: frames wait %s of %s before it receives them", f.Name(), bare(net, total),
			Millis(total)) + loop
		return found
	}
	peers := pairs[0].peer
	if f.Role == Server {
		peers = pairs[0].worker.Name()
	}
	if len(pairs) > 1 {
		peers = "all peers"
	}
	var frames Frames
	for _, w := range c.workers {
		if f.Role == Server || w == f {
			frames = Frames{frames.Sent + w.window.Frames.Sent, frames.Repeated + w.window.Frames.Repeated}
		}
	}
	found.Text = fmt.Sprintf("link of %s slow: %s to %s (others %s), %.1f %% repeated", f.Name(), Millis(net), peers,
		bare(usual, net), 100*frames.repeated())
	return found
}

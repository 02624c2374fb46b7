// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/simulation/world"
)

const (
	// longestOutage is longer than an outage may be without ending anything.
	longestOutage = 15 * time.Second
	// betweenOutages is how long a link works between two outages: long enough for all connections
	// to come back.
	betweenOutages = 5 * time.Second
)

// planOutages plans outages of links, in one life of four, or in all if they are the only kind. One
// that is shorter than [access.Outage] explains no end of a process, whichever end of a connection
// notices it first.
func (c *clusterLife) planOutages(hosts []*world.Host) {
	rng := c.options.named("outages")
	some := rng.IntN(4) == 0 || c.options.Kinds == Outage
	if c.options.Kinds&Outage == 0 || !some {
		return
	}
	var free time.Time // until when the latest outage, and the time after it, last
	for range 1 + rng.IntN(4) {
		host, how := hosts[rng.IntN(len(hosts))], rng.IntN(4)
		lasts := time.Duration(rng.Int64N(int64(longestOutage)))
		if rng.IntN(4) == 0 { // just below, and just above
			lasts = access.Outage + time.Duration(rng.Int64N(int64(200*time.Millisecond))) - 100*time.Millisecond
		}
		begin := func() {
			if c.Healed() || time.Now().Before(free) {
				return
			}
			free = time.Now().Add(lasts + betweenOutages)
			if lasts >= access.Outage || c.plan.kinds&(cut|Corrupt|Queue) != 0 { // others make it longer
				c.happened |= Partition
			}
			c.result.Outages++
			c.Tell("the link of %s is down for %v, way %d\n", host.Name(), lasts, how)
			for _, other := range hosts {
				if other == host {
					continue
				}
				if how != 1 {
					c.cutFor(host, other, lasts)
				}
				if how != 2 {
					c.cutFor(other, host, lasts)
				}
			}
		}
		if clock, moment := rng.IntN(3), rng.IntN(1+rng.IntN(1500)); clock == byTime {
			c.After(time.Duration(rng.IntN(300))*time.Millisecond, begin)
		} else {
			c.planned[clock] = append(c.planned[clock], planned{moment, begin})
		}
	}
	// Trouble lasts until all have ended.
	c.plan.trouble = max(c.plan.trouble, 4*(longestOutage+betweenOutages))
}

// cutFor cuts what one host sends to another.
func (c *clusterLife) cutFor(from, to *world.Host, lasts time.Duration) {
	c.Net.Partition(from, to)
	c.After(lasts, func() { c.Net.Rejoin(from, to) })
}

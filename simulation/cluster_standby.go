// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"net/netip"

	"github.com/libra-ina/libra/cluster"
)

// addStandbys gives one cluster of four, or each if that is the only kind of trouble, one or two
// standbys; and three of four if drains are.
func (c *clusterLife) addStandbys() {
	rng := c.options.named("standbys")
	only := c.options.Kinds
	some := rng.IntN(4) == 0 && only != Drain || only == Standby || only == Drain && rng.IntN(4) > 0
	if only&(Standby|Drain) == 0 || !some {
		return
	}
	for i := range 1 + rng.IntN(2) {
		address := netip.AddrFrom4([4]byte{10, 0, 0, byte(201 + i)})
		c.cfg.Standbys = append(c.cfg.Standbys, cluster.Standby{Address: address,
			Control: netip.AddrPortFrom(address, controlPort)})
		c.roles = append(c.roles, standbyName(i))
	}
}

// planStandbys plans that the aggregator of the training vanishes, or is told to end, up to six
// times.
func (c *clusterLife) planStandbys() {
	if len(c.cfg.Standbys) == 0 || c.options.Kinds&Standby == 0 {
		return
	}
	c.delayServer()
	rng := c.options.named("moves")
	for range 1 + rng.IntN(6) {
		moment, told := 1+rng.IntN(1+rng.IntN(900)), rng.IntN(2) == 0
		begin := func() { c.endAggregator(told) }
		if rng.IntN(2) == 0 {
			c.planned[byMessages] = append(c.planned[byMessages], planned{moment, begin})
		} else {
			c.planned[byFrames] = append(c.planned[byFrames], planned{moment, begin})
		}
	}
}

// endAggregator ends the process of the training's aggregator.
func (c *clusterLife) endAggregator(told bool) {
	role := theSwitch
	if p := c.accounts.plane; p != nil {
		role = p.of.role
	}
	if c.Healed() {
		return
	}
	c.noteFence()
	c.Tell("the aggregator, %s, ends\n", role)
	if told {
		c.stopRole(role)
	} else {
		c.crashRole(role, false)
	}
}

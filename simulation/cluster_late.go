// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"time"

	"github.com/libra-ina/libra/internal/num/portable"
	"github.com/libra-ina/libra/simulation/world"
)

// delayServer makes goroutines of the server wait for a processor now and then, before they hand
// something to its endpoint. Otherwise virtual time stands still while one can go on, so that none
// ever meets what came after it: a harvest that has arrived would always be applied before its
// aggregator's death is noticed.
func (c *clusterLife) delayServer() { c.late = c.options.named("late goroutines") }

// enterEndpoint is where a goroutine of the process waits for its turn to call the endpoint.
func (p *process) enterEndpoint() {
	p.Link().Enter()
	if p.role != theServer {
		return
	}
	if d := p.c.drawDelay(); d > 0 {
		p.Turn("waits for a processor", world.Never, time.Now().Add(d))
	}
}

// drawDelay draws how long a goroutine waits for a processor: most do not, others from 50 µs to 50
// ms.
func (c *clusterLife) drawDelay() time.Duration {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if c.late == nil || c.Healed() || c.late.IntN(16) > 0 {
		return 0
	}
	return time.Duration(float64(50*time.Microsecond) * portable.Pow(1000, c.late.Float64()))
}

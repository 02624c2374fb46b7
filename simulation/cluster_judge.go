// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"strings"
	"time"

	"github.com/libra-ina/libra/simulation/world"
)

// stopLimit is how long a process that was told to end may take: it says goodbye to each service
// and each of its peers, and writes a checkpoint.
const stopLimit = 30 * time.Second

// ended are the kinds of trouble that end a process, cut the kinds that disconnect it.
const (
	ended = Crash | Power | Stop
	cut   = Partition | Pause | Loss | Reset
)

const silentPeer = "peer silent for"

// errorsOf lists errors with which a process may end, and the trouble that explains each. The first
// text that the error contains counts.
var errorsOf = []struct {
	text string
	by   Kinds
}{
	{silentPeer, ended | cut&^Reset},
	{"left before it had finished", ended | cut},
	{"had to join again because of a rewind", ended | cut},
	{"the service is stopping", ended | cut},
	{"the connection broke", ended | cut},
	{"did not answer within", ended | cut},
	{"its admission has ended: it was not connected for", ended | cut},
	{"refused: unknown job", ended | cut},
	{"refused: sender not admitted to the job", ended | cut},
	{"was removed", ended | cut},
	{"no job 7: its parameter server has not created it", ended | cut},
	{"context canceled", Stop},
}

// isExplained reports whether the error with which a process has ended has a cause.
func (c *clusterLife) isExplained(p *process) bool {
	text, happened := p.err.Error(), c.happened
	if p.wrong != "" && strings.Contains(text, "configuration differs: "+p.wrong+": ") {
		return true
	}
	isOther := func(h *world.Host) bool { return h != p.Host() }
	if strings.Contains(text, silentPeer) && !slices.ContainsFunc(c.paused, isOther) {
		happened &^= Pause // during its own pause, a peer is not silent
	}
	if strings.Contains(text, "when this worker joined it, the aggregator has instance") {
		return p.serving < c.serving // another server has created the job anew
	}
	if p.hearing != nil {
		if why := p.hearing.givenUpWrongly(p.err); why != nil {
			c.Fail("%s: %v", p.Name(), why)
		}
	}
	for _, e := range errorsOf {
		if strings.Contains(text, e.text) {
			return happened&e.by != 0 && (e.by != Stop || p.stopped)
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentclient

import (
	"errors"
	"strings"
	"testing"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// The text of a failure contains what failed, the row, who refused it, the reason and a remedy.
// Each code has a name.
func TestFailed(t *testing.T) {
	for want, c := range map[string]agentproto.Completion{
		"agent: push: the parameter server refused a frame: value or sum out of range, key 4: sums of exact arithmetic must stay below 2^(63+exponent) in size": {
			Op: agentproto.Push, Status: agentproto.Refused, Peer: agentproto.Server, Refusal: uint16(wire.CodeOverflow), Key: 4, KeyKnown: true,
		},
		"agent: flush: the aggregator refused a frame: error code 99: a newer version of Libra knows this code": {
			Op: agentproto.Flush, Status: agentproto.Refused, Peer: agentproto.Aggregator, Refusal: 99,
		},
		"agent: reduce: the step was dropped for all: the sum of key 4 is too large for a float32: send smaller numbers": {
			Op: agentproto.Reduce, Status: agentproto.Dropped, Peer: agentproto.Server, Refusal: uint16(wire.CodeOverflow), Key: 4, KeyKnown: true,
		},
		"agent: reduce: this host could not meet the other workers of the job: the agent's log": {Op: agentproto.Reduce, Status: agentproto.Refused, Peer: agentproto.Server},
		"REDUCE needs job.sync (it is combine)":                                                 {Op: agentproto.Reduce, Status: agentproto.BadMode},
		"start all of them anew (it was process 4711, client 3 in the agent's log)": {
			Op: agentproto.Barrier, Status: agentproto.PartyGone, Detail: agentproto.PartyDetail(3, 4711),
		},
		"start all of them anew": {Op: agentproto.Barrier, Status: agentproto.PartyGone},
		"agent: barrier: the barrier's step is not the one that is due: each party ends each step once (step 90 is due)": {
			Op: agentproto.Barrier, Status: agentproto.BadStep, Detail: 90,
		},
		"agent: operation 77: a code that this version does not know (1000): update it": {Op: 77, Status: 1000},
	} {
		err := error(&Failed{c, aggregator.Combine})
		if !strings.Contains(err.Error(), want) || !errors.Is(err, c.Status) {
			t.Errorf("%q, want %q", err, want)
		}
	}
}

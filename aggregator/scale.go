// SPDX-License-Identifier: Apache-2.0

package aggregator

import "github.com/libra-ina/libra/wire"

// negotiation is how the workers of a [Fixed] job agree on the scale of each iteration: each worker
// reports the exponent of its largest gradient, and all get the maximum. Reports need no sequence
// numbers, because they are idempotent.
type negotiation struct {
	iteration   uint32
	contributed workers
	largest     uint8 // exponent reported for iteration
	previous    uint8 // decided for the previous iteration
}

// reportScale processes a SCALE frame.
func (j *job) reportScale(s *sender, h wire.Header, payload, reply []byte) (Action, []byte, *wire.Refusal) {
	report, err := wire.ParseScale(payload)
	switch {
	case err != nil:
		return Drop, nil, &wire.Refusal{Code: wire.CodeLength, Value: wire.ScaleLen - wire.HeaderLen}
	case j.Arithmetic != Fixed || j.Workers == 0:
		return Drop, nil, &wire.Refusal{Code: wire.CodeMode}
	case report.Exponent == wire.InfiniteExponent:
		return Drop, nil, &wire.Refusal{Code: wire.CodeNotFinite}
	}
	n := &j.scale
	switch {
	case n.iteration > 0 && report.Iteration == n.iteration-1:
		j.countDuplicate(s)
		return Reply, wire.PutDecision(reply, h, wire.ScaleReport{Iteration: report.Iteration, Exponent: n.previous}), nil
	case report.Iteration != n.iteration:
		return Drop, nil, &wire.Refusal{Code: wire.CodeRound, Value: n.iteration}
	case n.contributed.hasSender(s):
		j.countDuplicate(s)
		return Reply, wire.PutScaleAck(reply, h), nil
	}
	n.contributed.addSender(s)
	n.largest = max(n.largest, report.Exponent)
	if n.contributed.countSenders() < j.Workers {
		return Reply, wire.PutScaleAck(reply, h), nil
	}
	decision := wire.ScaleReport{Iteration: n.iteration, Exponent: n.largest}
	*n = negotiation{iteration: n.iteration + 1, previous: n.largest}
	j.counters.Scales++
	return Broadcast, wire.ToAll(wire.PutDecision(reply, h, decision), decision.Iteration), nil
}

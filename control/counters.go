// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// globalCounters returns the counters that belong to no job, by name.
func globalCounters(c *aggregator.Counters) map[string]uint64 {
	m := map[string]uint64{
		"passed": c.Passed, "forwarded": c.Forwarded, "truncated": c.Truncated, "bad_checksum": c.BadChecksum,
		"partial_checksum": c.PartialChecksum,
		"short":            c.Short, "unexpected": c.Unexpected, "unanswered": c.Unanswered, "out_of_bounds": c.OutOfBounds,
		"unsent_answers": c.UnsentAnswers, "unsent_redirects": c.UnsentRedirects,
	}
	addRefusals(m, &c.Refused)
	return m
}

// jobCounters returns a job's counters by name.
func jobCounters(c *aggregator.JobCounters) map[string]uint64 {
	m := map[string]uint64{"applied": c.Applied, "pairs": c.Pairs, "duplicates": c.Duplicates, "raced": c.Raced,
		"throttled": c.Throttled, "rounds": c.Rounds, "scales": c.Scales, "saturated": c.Saturated}
	addRefusals(m, &c.Refused)
	return m
}

// addRefusals adds the codes that occurred, as "refused: <reason>".
func addRefusals(m map[string]uint64, r *aggregator.Refusals) {
	for code, n := range r {
		if n > 0 {
			m["refused_"+strings.ReplaceAll(wire.Code(code).String(), " ", "_")] = n
		}
	}
}

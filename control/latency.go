// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/telemetry"
)

// LatencyMessages returns series as messages.
func LatencyMessages(series []telemetry.Series) (all []*pb.Latency) {
	for _, s := range series {
		all = append(all, &pb.Latency{
			Op: s.Op.String(), Part: s.Part.String(), Peer: s.Peer.String(),
			Zeros: s.Zeros, SumNs: uint64(s.Sum), First: int32(s.First), Counts: s.Counts,
		})
	}
	return all
}

// aggregatorTimes are the series of a job at its aggregator.
func aggregatorTimes(d telemetry.Distribution) []telemetry.Series {
	if d.Count() == 0 {
		return nil
	}
	key := telemetry.Key{Op: telemetry.Hot, Part: telemetry.AggregatorProcess, Peer: telemetry.All}
	return []telemetry.Series{{Key: key, Distribution: d}}
}

// LatencySummaries returns the summaries of series in messages. A peer's program is perhaps a newer
// one, so the names need not be known here.
func LatencySummaries(messages []*pb.Latency) (all []telemetry.Summary) {
	for _, m := range messages {
		all = append(all, telemetry.Summarize(m.Op, m.Part, m.Peer, telemetry.Distribution{
			Zeros: m.Zeros, Sum: time.Duration(m.SumNs), First: int(m.First), Counts: m.Counts,
		}))
	}
	return all
}

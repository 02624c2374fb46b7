// SPDX-License-Identifier: Apache-2.0

package telemetry

import "time"

// Summary describes a series of times to people and programs.
type Summary struct {
	Op    string        `json:"op"`   // hot, cold, pull, find or push
	Part  string        `json:"part"` // of the operation's time
	Peer  string        `json:"peer"` // the other end
	Count uint64        `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P90   time.Duration `json:"p90_ns"`
	P99   time.Duration `json:"p99_ns"`
	P999  time.Duration `json:"p999_ns"`
}

// Summarize returns the summary of a distribution.
func Summarize(op, part, peer string, d Distribution) Summary {
	return Summary{
		Op: op, Part: part, Peer: peer, Count: d.Count(), Mean: d.Mean(),
		P50: d.Quantile(0.5), P90: d.Quantile(0.9), P99: d.Quantile(0.99), P999: d.Quantile(0.999),
	}
}

// Summaries returns the summaries of series, in their order.
func Summaries(series []Series) (all []Summary) {
	for _, s := range series {
		all = append(all, Summarize(s.Op.String(), s.Part.String(), s.Peer.String(), s.Distribution))
	}
	return all
}

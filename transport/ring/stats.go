// SPDX-License-Identifier: Apache-2.0

package ring

import "github.com/libra-ina/libra/retransmit"

// Stats counts what has happened so far.
type Stats struct {
	Operations uint64 // that have ended
	Sent       uint64 // payloads with values, without repetitions
	SentBytes  uint64 // of these
	Applied    uint64 // payloads with values that were applied
	Duplicates uint64 // copies of such
	Presences  uint64 // payloads without values that were sent
	Refused    uint64 // payloads that were answered by an ERROR
	// Malformed and Stray payloads changed nothing: damaged ones, and those of others or of former
	// rings.
	Malformed, Stray uint64
	// Window has the counters of the flow to the successor.
	Window retransmit.Stats
}

// Stats returns the counters.
func (r *Ring) Stats() Stats {
	s := r.stats
	s.Window = r.window.Stats()
	return s
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// WorkerStats counts what a worker did.
type WorkerStats struct {
	// Hot and Cold are the flows to the aggregator and to the servers: frames
	// sent, acknowledged, refused and repeated, and the round-trip time. Pulls
	// and FIND frames are in Cold; their answers count as acknowledgements. Of several
	// servers Cold has the sums, and the longest times.
	Hot, Cold retransmit.Stats

	PairsHot   uint64 // scalars sent to the aggregator
	PairsAdded uint64 // scalars of pushes that were added up, of which PairsHot counts the sums only
	RowsCold   uint64 // rows sent to the servers
	RowsAt     uint64 // those of them that were named by their numbers
	KeysPulled uint64
	Finds      uint64 // FIND frames, which ask for row numbers

	// Renamed are rows that were sent again, by their keys, because their numbers were
	// those of another numbering.
	Renamed uint64

	// Waits are contributions to rounds that were acknowledged and wait for
	// other workers: the time until their results takes the place of the
	// round-trip time, and a repetition asks again.
	Waits   retransmit.Stats
	Results uint64 // of groups and of negotiations

	// Refusals counts ERROR frames by code; the last entry holds the codes that this version does not know.
	Refusals [wire.CodeStep + 2]uint64

	Malformed uint64 // payloads that are no valid answer
	Stray     uint64 // answers from elsewhere, or to another job, sender, epoch or time

	Link link.Stats
}

func (w *Worker) snapshot() WorkerStats {
	s := w.stats
	if f := w.flows[flowHot]; f != nil {
		s.Hot = f.window.Stats()
	}
	for _, f := range w.flows[flowCold:] {
		s.Cold = s.Cold.Plus(f.window.Stats())
	}
	if w.rounds != nil {
		s.Waits = w.rounds.waits.Stats()
	}
	s.Link = w.link.Stats()
	return s
}

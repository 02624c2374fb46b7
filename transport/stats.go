// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// WorkerStats holds the counters of a worker.
type WorkerStats struct {
	// Hot and Cold are the flows to the aggregator and to the servers: frames
	// sent, acknowledged, refused and retransmitted, and the round-trip time. Pulls
	// and FIND frames are in Cold; their answers count as acknowledgements. With several
	// servers, Cold has the sums and the longest times.
	Hot, Cold retransmit.Stats

	PairsHot   uint64 // scalars sent to the aggregator
	PairsAdded uint64 // scalars of pushes that were added up; PairsHot counts their sums only
	// PairsPushed are the scalars of pushes that are of hot rows, before any are added up; PairsCold
	// the others.
	PairsPushed, PairsCold uint64
	RowsCold               uint64 // rows sent to the servers
	BytesCold              uint64 // payloads of the frames that carried them, each sent once
	// CodedValues are gradients in these rows that were coded, CodedBytes their codes.
	CodedValues, CodedBytes uint64
	// HotSetShare is the share of the updates that were of hot rows in the log from which the hot set
	// was made, 0 if unknown. PairsPushed/(PairsPushed+PairsCold) is what it is now.
	HotSetShare float64
	// Vanished are gradients of pushes that are rounded to 0, in a job with weights and exact
	// arithmetic.
	Vanished   uint64
	RowsAt     uint64 // of these, rows sent by number
	KeysPulled uint64
	Finds      uint64 // FIND frames, which ask for row numbers

	// LogFrames and LogBytes are what the log of acknowledged hot frames holds now; LogWaits counts
	// how often a push has waited because it was full.
	LogFrames, LogBytes int
	LogWaits            uint64
	// Settled are hot frames that the worker has sent to the server because the aggregator was lost.
	Settled uint64

	// Renamed are rows that were sent again by key because the server refused their
	// numbering.
	Renamed uint64

	// Waits are contributions to rounds that are acknowledged and wait for other
	// workers. Its round-trip time is the time until the result; a retransmission asks
	// for the result again.
	Waits   retransmit.Stats
	Results uint64 // of groups and of negotiations

	// Refusals counts ERROR frames by code; the last entry counts unknown codes.
	Refusals [wire.CodeCoding + 2]uint64

	Malformed uint64 // payloads that are not a valid answer
	Stray     uint64 // answers with a wrong source, job, sender, epoch or sequence number

	// Pushes and pulls that are answered. Own is the time in which none was under way, nor the end of
	// a step: what the program does between them.
	Pushes, Pulls uint64
	Own           time.Duration
	// SilentHot and SilentCold are for how long the aggregator and each server have not answered
	// although frames are outstanding, 0 if none is.
	SilentHot  time.Duration
	SilentCold []time.Duration

	Link link.Stats
}

func (w *Worker) snapshot() WorkerStats {
	s := w.stats
	s.Hot = w.hotStats
	if w.log != nil {
		s.LogFrames, s.LogBytes = w.log.frames, w.log.used
	}
	for f := range w.hotFlows {
		s.Hot = s.Hot.Plus(f.window.Stats())
		s.SilentHot = max(s.SilentHot, f.window.Silence(w.now))
	}
	for _, f := range w.serverFlows() {
		s.Cold = s.Cold.Plus(f.window.Stats())
		s.SilentCold = append(s.SilentCold, f.window.Silence(w.now))
	}
	if w.rounds != nil {
		s.Waits = w.rounds.waits.Stats()
	}
	if w.cfg.HotSet != nil {
		s.HotSetShare = w.cfg.HotSet.Meta().Share()
	}
	s.Pushes, s.Pulls, s.Own = w.own.pushes, w.own.pulls, w.own.totalIdle(w.now)
	s.Link = w.link.Stats()
	return s
}

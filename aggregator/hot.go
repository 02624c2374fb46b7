// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"errors"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/wire"
)

// origin identifies the sender of a payload in addition to its id.
type origin struct {
	ip   netip.Addr
	port uint16
	mac  *[6]byte // nil without an Ethernet header
}

func (o origin) isSender(s SenderConfig) bool {
	return o.ip == s.IP && o.port == s.Port && (o.mac == nil || *o.mac == s.MAC)
}

// answerPayload processes a UDP payload addressed to the aggregator and writes the payload of the
// answer. It returns that payload, a prefix of reply. The caller holds the lock.
//
// The order of the checks is part of the protocol: if a frame has several errors, all data planes
// report the same one.
func (m *Model) answerPayload(from origin, payload, reply []byte) (Verdict, []byte) {
	h, err := wire.ParseHeader(payload)
	switch {
	case errors.Is(err, wire.ErrTruncated):
		m.counters.Short++
		return Verdict{Action: Drop}, nil
	case h.Type == wire.TypeAck || h.Type == wire.TypeError:
		// Whatever the version: two aggregators that answer each other's answers would never stop.
		m.counters.Unexpected++
		return Verdict{Action: Drop}, nil
	case err != nil:
		return refuse(&m.counters.Refused, h, reply, wire.Refusal{Code: wire.CodeWrongVersion, Value: wire.Version})
	case h.Type != wire.TypeHot && h.Type != wire.TypeScale && (h.Type != wire.TypeTaken || m.each):
		return refuse(&m.counters.Refused, h, reply, wire.Refusal{Code: wire.CodeType})
	case h.Job >= MaxJobs || m.jobs[h.Job] == nil:
		return refuse(&m.counters.Refused, h, reply, wire.Refusal{Code: wire.CodeUnknownJob})
	}
	j := m.jobs[h.Job]
	s := j.senders[h.Sender]
	if s == nil || !from.isSender(s.SenderConfig) {
		return refuse(&j.counters.Refused, h, reply, wire.Refusal{Code: wire.CodeUnknownSender})
	}
	drawn := h.Type == wire.TypeHot && m.draw.Draws(h.Seq)
	var begin time.Duration
	if drawn {
		begin = m.clock()
	}
	action, answer, r := m.serveFrame(j, s, h, payload, reply)
	if r != nil {
		s.counters.Refused++
		return refuse(&j.counters.Refused, h, reply, *r)
	}
	if drawn {
		j.times.Record(m.clock() - begin)
	}
	v := Verdict{Action: action}
	if action == Broadcast {
		v.Job = j.ID
	}
	return v, answer
}

// refuse counts and writes an ERROR.
func refuse(count *Refusals, h wire.Header, reply []byte, r wire.Refusal) (Verdict, []byte) {
	count[r.Code]++
	return Verdict{Action: Reply}, wire.PutError(reply, h, r)
}

// serveFrame executes the frame of an admitted sender and returns the answer, and whether it is for
// the sender alone ([Reply]) or for all ([Broadcast]). A frame that it refuses has changed no sum.
func (m *Model) serveFrame(j *job, s *sender, h wire.Header, payload, reply []byte) (Action, []byte, *wire.Refusal) {
	if h.Epoch != s.Epoch {
		return Drop, nil, &wire.Refusal{Code: wire.CodeWrongEpoch, Value: uint32(s.Epoch)}
	}
	switch h.Type {
	case wire.TypeScale:
		return j.reportScale(s, h, payload, reply)
	case wire.TypeTaken:
		return j.takeResult(s, h, payload, reply)
	}
	stripes, r := j.checkStripes(h, payload)
	if r != nil {
		return Drop, nil, r
	}
	if j.Mode.HasRounds() {
		return m.contributeRound(j, s, h, payload, stripes, reply)
	}
	return m.serveHot(j, s, h, payload, stripes, reply)
}

// checkStripes checks a HOT frame as a whole and returns its number of stripes.
func (j *job) checkStripes(h wire.Header, payload []byte) (int, *wire.Refusal) {
	stripes, err := wire.StripeCount(payload)
	switch {
	case err != nil || stripes > j.MaxStripes:
		return 0, &wire.Refusal{Code: wire.CodeLength, Value: uint32(j.MaxStripes)}
	case h.Flags&wire.FlagWantSum != 0 && j.Mode != FetchAdd:
		return 0, &wire.Refusal{Code: wire.CodeMode}
	case j.Layouts&layoutOf(h.Flags) == 0:
		return 0, &wire.Refusal{Code: wire.CodeLayout}
	}
	for i := range stripes {
		if j.Pages() == 1 && wire.StripeAt(payload, i).Page() != 0 {
			return 0, &wire.Refusal{Code: wire.CodeLayout}
		}
	}
	return stripes, nil
}

func layoutOf(f wire.Flags) Layouts {
	if f&wire.FlagDense != 0 {
		return Dense
	}
	return Aligned
}

// serveHot adds a HOT frame of a job without rounds, unless it was applied before, and acknowledges
// it.
func (m *Model) serveHot(j *job, s *sender, h wire.Header, payload []byte, stripes int, reply []byte) (Action, []byte,
	*wire.Refusal) {
	b := &j.banks[j.current]
	wantSum := h.Flags&wire.FlagWantSum != 0
	fresh := s.seen.Fresh(h.Seq)
	refusal, refused := s.seen.Refusal(h.Seq)
	switch {
	case refused:
		return Drop, nil, again(refusal)
	case fresh:
		if r := m.applyPairs(j, s, b, h, payload, stripes); r != nil {
			return Drop, nil, r
		}
	case wantSum:
		// The answer to a duplicate carries sums, so its ranks are checked although nothing is
		// added.
		if r := j.checkRanks(h.Flags, payload, stripes); r != nil {
			return Drop, nil, r
		}
		j.countDuplicate(s)
	default:
		j.countDuplicate(s)
	}
	switch {
	case wantSum:
		return Reply, j.putSums(b, h, payload, reply), nil
	case m.each || h.Flags&(wire.FlagQuiet|wire.FlagCover) == 0:
		return Reply, wire.PutAck(reply, h), nil
	case fresh && h.Flags&wire.FlagQuiet != 0 && s.seen.Applied(h.Seq-1):
		return Drop, nil, nil // a later frame requests the answer
	}
	return Reply, wire.PutCover(reply, h, s.seen.Cover(h.Seq)), nil
}

// again returns the refusal for a copy of a refused frame. Other frames do not pay for its memory.
func again(r wire.Refusal) *wire.Refusal { return &r }

func (j *job) countDuplicate(s *sender) {
	j.counters.Duplicates++
	s.counters.Duplicates++
}

package aggregator

import (
	"errors"
	"net/netip"

	"github.com/libra-ina/libra/wire"
)

// origin is what identifies the sender of a payload beside its id.
type origin struct {
	ip  netip.Addr
	mac *[6]byte // nil where there is no Ethernet header
}

func (o origin) is(s SenderConfig) bool {
	return o.ip == s.IP && (o.mac == nil || *o.mac == s.MAC)
}

// answer decides about a UDP payload addressed to the aggregator and writes
// the reply's payload. It returns the reply's length, 0 for none. The caller
// holds the lock.
//
// The order of the checks is part of the protocol: if several things are wrong
// with a frame, all data planes report the same one.
func (m *Model) answer(from origin, payload, reply []byte) int {
	h, err := wire.ParseHeader(payload)
	switch {
	case errors.Is(err, wire.ErrTruncated):
		m.counters.Short++
		return 0
	case h.Type == wire.TypeAck || h.Type == wire.TypeError:
		// Of any version: two aggregators that answer each other's answers
		// would never stop.
		m.counters.Unexpected++
		return 0
	case err != nil:
		return m.refuse(h, reply, wire.Refusal{Code: wire.CodeWrongVersion, Value: wire.Version})
	case h.Type != wire.TypeHot:
		return m.refuse(h, reply, wire.Refusal{Code: wire.CodeType})
	case h.Job >= MaxJobs || m.jobs[h.Job] == nil:
		return m.refuse(h, reply, wire.Refusal{Code: wire.CodeUnknownJob})
	}
	j := m.jobs[h.Job]
	s := j.senders[h.Sender]
	if s == nil || !from.is(s.SenderConfig) {
		j.counters.Refused[wire.CodeUnknownSender]++
		return len(wire.PutError(reply, h, wire.Refusal{Code: wire.CodeUnknownSender}))
	}
	if err := m.hot(j, s, h, payload); err != nil {
		j.counters.Refused[err.Code]++
		s.counters.Refused++
		return len(wire.PutError(reply, h, *err))
	}
	if h.Flags&wire.FlagWantSum == 0 {
		return len(wire.PutAck(reply, h))
	}
	return j.putSums(h, payload, reply)
}

// refuse counts and writes an ERROR that concerns no job.
func (m *Model) refuse(h wire.Header, reply []byte, r wire.Refusal) int {
	m.counters.Refused[r.Code]++
	return len(wire.PutError(reply, h, r))
}

// hot applies a HOT frame of an admitted sender, unless it was applied before.
// A frame that it refuses has changed nothing.
func (m *Model) hot(j *job, s *sender, h wire.Header, payload []byte) *wire.Refusal {
	stripes, err := wire.StripeCount(payload)
	switch {
	case h.Epoch != j.Epoch:
		return &wire.Refusal{Code: wire.CodeWrongEpoch, Value: uint32(j.Epoch)}
	case err != nil || stripes > j.MaxStripes:
		return &wire.Refusal{Code: wire.CodeLength, Value: uint32(j.MaxStripes)}
	case h.Flags&wire.FlagWantSum != 0 && j.Mode != FetchAdd:
		return &wire.Refusal{Code: wire.CodeMode}
	case j.Layouts&layoutOf(h.Flags) == 0:
		return &wire.Refusal{Code: wire.CodeLayout}
	}
	for i := range stripes {
		if wire.StripeAt(payload, i).Mask()&^wire.LaneMask != 0 {
			return &wire.Refusal{Code: wire.CodeLayout}
		}
	}
	if !s.seen.Fresh(h.Seq) {
		// The answer to a repetition may carry sums, so its ranks are
		// checked although nothing is added.
		if h.Flags&wire.FlagWantSum != 0 {
			if r := j.checkRanks(h.Flags, payload, stripes); r != nil {
				return r
			}
		}
		j.counters.Duplicates++
		s.counters.Duplicates++
		return nil
	}
	pairs, r := j.decode(h.Flags, payload, stripes, m.pairs[:0])
	if r != nil {
		return r
	}
	previous := s.seen.Mark(h.Seq)
	b := &j.banks[j.current]
	if r := b.add(pairs); r != nil {
		s.seen.Restore(h.Seq, previous)
		return r
	}
	n := uint64(len(pairs))
	b.frames++
	b.pairs += n
	j.counters.Applied++
	j.counters.Pairs += n
	s.counters.Applied++
	s.counters.Pairs += n
	return nil
}

func layoutOf(f wire.Flags) Layouts {
	if f&wire.FlagDense != 0 {
		return Dense
	}
	return Aligned
}

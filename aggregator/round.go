// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"math/bits"

	"github.com/libra-ina/libra/wire"
)

// group is the state of the rounds of one group of slots: the ranks that one frame of a job with
// rounds carries, MaxStripes whole stripes of them, except for the last group.
//
// In [Sync], round v adds to bank v mod 2; the other bank holds the result of round v-1 for workers
// that have missed it. That is enough: a worker contributes to round v only when it has the result
// of round v-1, so when round v is complete, that result is no longer needed (SwitchML, NSDI 2021
// §3.5).
//
// In [Acked], all rounds add to the same bank. A round whose contributions are complete ends when
// all workers have told that they have its result.
type group struct {
	round       uint32
	contributed workers
	taken       workers // of Acked
}

// workers is a set of workers, by position.
type workers uint64

func (w workers) hasSender(s *sender) bool { return w>>s.position&1 != 0 }

func (w *workers) addSender(s *sender) { *w |= 1 << s.position }

func (w workers) countSenders() int { return bits.OnesCount64(uint64(w)) }

// groupSlots returns the number of slots in every group except the last.
func (c JobConfig) groupSlots() int { return c.MaxStripes * wire.Lanes }

// newGroups returns the groups of a job before their first round, nil without rounds.
func newGroups(c JobConfig) []group {
	if !c.Mode.HasRounds() {
		return nil
	}
	return make([]group, (c.Slots+c.groupSlots()-1)/c.groupSlots())
}

// contributeRound adds a HOT frame to the round of its group, unless it was applied before. The
// frame that completes the round is answered to all workers; the others are acknowledged, unless
// they are quiet, and their senders get the result when they retransmit.
func (m *Model) contributeRound(j *job, s *sender, h wire.Header, payload []byte, stripes int, reply []byte) (Action,
	[]byte, *wire.Refusal) {
	i, r := j.checkShape(payload, stripes)
	if r != nil {
		return Drop, nil, r
	}
	g := &j.groups[i]
	current, other := j.roundBanks(g)
	waiting := g.contributed.hasSender(s)
	if refusal, refused := s.seen.Refusal(h.Seq); refused {
		if refusal.Code == wire.CodeRound {
			refusal.Value = g.round
		}
		return Drop, nil, again(refusal)
	}
	if !s.seen.Fresh(h.Seq) {
		j.countDuplicate(s)
		if !j.hasResult(g, waiting) {
			return Reply, m.putWaiting(h, g, reply), nil
		}
		return Reply, j.putSums(other, h, payload, reply), nil
	}
	if waiting {
		r := wire.Refusal{Code: wire.CodeRound, Value: g.round}
		s.seen.Refuse(h.Seq, r)
		return Drop, nil, &r
	}
	if r := m.applyPairs(j, s, current, h, payload, stripes); r != nil {
		return Drop, nil, r
	}
	g.contributed.addSender(s)
	if g.contributed.countSenders() < j.Workers {
		if !m.each && h.Flags&wire.FlagQuiet != 0 {
			return Drop, nil, nil // its sender waits for the result
		}
		return Reply, m.putWaiting(h, g, reply), nil
	}
	answer := wire.ToAll(j.putSums(current, h, payload, reply), g.round)
	if j.Mode == Sync {
		j.beginRound(i, other)
	}
	j.counters.Rounds++
	return Broadcast, answer, nil
}

// roundBanks returns the bank that a group's round adds to, and that which holds the result for a
// worker that has missed it.
func (j *job) roundBanks(g *group) (current, result *bank) {
	if j.Mode == Acked {
		return &j.banks[0], &j.banks[0]
	}
	return &j.banks[g.round&1], &j.banks[g.round&1^1]
}

// hasResult reports whether a worker that repeats a contribution can have missed a result that is
// there. waiting means that it has contributed to the round in progress.
func (j *job) hasResult(g *group, waiting bool) bool {
	if j.Mode == Acked {
		return g.contributed.countSenders() == j.Workers
	}
	return !waiting && g.round > 0
}

// beginRound begins the next round of a group, which adds to a bank.
func (j *job) beginRound(i int, b *bank) {
	first := i * j.groupSlots()
	clear(b.slots[first:min(first+j.groupSlots(), j.Slots)])
	j.groups[i] = group{round: j.groups[i].round + 1}
}

// takeResult handles a TAKEN frame: a worker has the result of a round. The frame does not pass the
// duplicate filter, as it changes nothing when it is repeated.
func (j *job) takeResult(s *sender, h wire.Header, payload, reply []byte) (Action, []byte, *wire.Refusal) {
	report, err := wire.ParseTaken(payload)
	first := int(report.First)
	switch {
	case err != nil:
		return Drop, nil, &wire.Refusal{Code: wire.CodeLength, Value: wire.TakenLen - wire.HeaderLen}
	case j.Mode != Acked:
		return Drop, nil, &wire.Refusal{Code: wire.CodeMode}
	case first*wire.Lanes >= j.Slots:
		return Drop, nil, j.slotRange(0)
	case first%j.MaxStripes != 0:
		return Drop, nil, badLayout()
	}
	i := first / j.MaxStripes
	g := &j.groups[i]
	before := int32(report.Round-g.round) < 0
	switch {
	case before:
		j.countDuplicate(s)
		return Reply, wire.PutConfirmation(reply, h, report), nil
	case report.Round != g.round || g.contributed.countSenders() < j.Workers:
		return Drop, nil, &wire.Refusal{Code: wire.CodeRound, Value: g.round}
	case g.taken.hasSender(s):
		j.countDuplicate(s)
		return Reply, wire.PutTakers(reply, h, uint64(g.taken)), nil
	}
	g.taken.addSender(s)
	if g.taken.countSenders() < j.Workers {
		return Drop, nil, nil // its sender waits for the confirmation
	}
	j.beginRound(i, &j.banks[0])
	return Broadcast, wire.ToAll(wire.PutConfirmation(reply, h, report), report.Round), nil
}

// putWaiting writes the answer to a contribution that is applied and whose round is incomplete: it
// says who has contributed, if the frame asks for that.
func (m *Model) putWaiting(h wire.Header, g *group, reply []byte) []byte {
	if m.each || h.Flags&wire.FlagCover == 0 {
		return wire.PutAck(reply, h)
	}
	return wire.PutCover(reply, h, uint64(g.contributed))
}

// checkShape checks that a frame carries exactly one group and returns which.
func (j *job) checkShape(payload []byte, stripes int) (int, *wire.Refusal) {
	head := wire.StripeAt(payload, 0)
	first := int(head.Slot(0))
	switch {
	case head.Mask()&1 == 0:
		return 0, badLayout()
	case first*wire.Lanes >= j.Slots:
		return 0, j.slotRange(0)
	case first%j.MaxStripes != 0:
		return 0, badLayout()
	}
	left := j.Slots - first*wire.Lanes
	want := min((left+wire.Lanes-1)/wire.Lanes, j.MaxStripes)
	if stripes != want {
		return 0, &wire.Refusal{Code: wire.CodeLength, Value: uint32(want)}
	}
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		used := min(left-i*wire.Lanes, wire.Lanes)
		if s.Mask() != 1<<used-1 {
			return 0, badLayout()
		}
		for lane := range used {
			if int(s.Slot(lane)) != first+i {
				return 0, badLayout()
			}
		}
	}
	return first / j.MaxStripes, nil
}

// badLayout returns a refusal. Frames that are whole groups do not pay for its memory.
func badLayout() *wire.Refusal { return &wire.Refusal{Code: wire.CodeLayout} }

// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// reduction is a job with rounds whose workers are behind a network that loses,
// repeats and reorders whatever they and the aggregator send.
type reduction struct {
	t       *testing.T
	rng     *rand.Rand
	model   *aggregator.Model
	job     aggregator.JobConfig
	ref     reference
	workers []*reducer
	flight  []message
	rounds  int
	want    map[groupRound][]int64 // slots, in the order of first arrivals
	arrived map[contribution]bool
	taken   map[contribution]bool // whose TAKEN has arrived
}

// message is a payload on its way: to the aggregator, or from it.
type message struct {
	worker  int
	up      bool
	payload []byte
}

type groupRound struct{ group, round int }

type contribution struct {
	groupRound
	worker int
}

// reducer is a worker: in each group, one frame that is not answered with a sum or, in mode acked,
// with a confirmation.
type reducer struct {
	seq    uint32
	round  []int    // by group
	frames [][]byte // by group
	has    []bool   // by group: the result, of which the frame tells
}

func newReduction(t *testing.T, seed uint64, mode aggregator.Mode, a aggregator.Arithmetic, workers int) *reduction {
	job, err := aggregator.JobConfig{
		ID: 44, Epoch: 9, Mode: mode, Arithmetic: a, Exp: aggregator.DefaultExp(a), Workers: workers, Slots: 100, MaxStripes: 2,
	}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	m, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.AddJob(job); err != nil {
		t.Fatal(err)
	}
	n := &reduction{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), model: m, job: job, ref: newReference(t, a), rounds: 8,
		want: make(map[groupRound][]int64), arrived: make(map[contribution]bool), taken: make(map[contribution]bool),
	}
	for i := range workers {
		if err := m.AddSender(job.ID, aggregator.SenderConfig{ID: uint16(i), Epoch: job.Epoch, IP: conformance.Host(i).IP, Port: 1}); err != nil {
			t.Fatal(err)
		}
		w := &reducer{round: make([]int, n.groups()), frames: make([][]byte, n.groups()), has: make([]bool, n.groups())}
		n.workers = append(n.workers, w)
		for g := range n.groups() {
			n.contribute(i, g)
		}
	}
	return n
}

func (n *reduction) groups() int { return 3 } // 44, 44 and 12 slots

func (n *reduction) size(group int) int { return min(44, n.job.Slots-44*group) }

// contribute sends a worker's next frame of a group.
func (n *reduction) contribute(worker, group int) {
	w := n.workers[worker]
	w.seq++
	numbers := make([]uint32, n.size(group))
	for i := range numbers {
		numbers[i] = number(n.job.Arithmetic, 10*n.rng.Float64()-5)
	}
	h := wire.Header{Type: wire.TypeHot, Job: n.job.ID, Sender: uint16(worker), Epoch: n.job.Epoch, Seq: w.seq}
	h.Flags = [...]wire.Flags{0, wire.FlagQuiet, wire.FlagCover}[n.rng.IntN(3)]
	w.frames[group] = groupPayload(n.job, h, group, numbers)
	n.send(message{worker, true, w.frames[group]})
}

// send puts no, one or several copies of a message into the network.
func (n *reduction) send(m message) {
	for range [...]int{0, 1, 1, 1, 2}[n.rng.IntN(5)] {
		n.flight = append(n.flight, m)
	}
}

// step lets something happen: a message arrives, or a worker asks again.
func (n *reduction) step() {
	if len(n.flight) == 0 || n.rng.IntN(20) == 0 {
		worker, group := n.rng.IntN(len(n.workers)), n.rng.IntN(n.groups())
		if n.workers[worker].round[group] < n.rounds {
			again := slices.Clone(n.workers[worker].frames[group])
			wire.MarkRetx(again)
			n.send(message{worker, true, again})
		}
		return
	}
	i := n.rng.IntN(len(n.flight))
	m := n.flight[i]
	n.flight = slices.Delete(n.flight, i, i+1)
	if m.up {
		n.aggregate(m)
	} else {
		n.receive(m)
	}
}

// aggregate delivers a worker's frame and sends what answers it.
func (n *reduction) aggregate(m message) {
	first := n.expect(m)
	reply := make([]byte, aggregator.MaxReplyPayload)
	src := netip.AddrPortFrom(conformance.Host(m.worker).IP, 1)
	v, size := n.model.ProcessPayload(src, m.payload, reply)
	asked, _ := wire.ParseHeader(m.payload)
	if v.Action == aggregator.Drop && (asked.Flags&wire.FlagQuiet != 0 || asked.Type == wire.TypeTaken) && first {
		return
	}
	h, _ := wire.ParseHeader(reply[:size])
	told := h.Flags&wire.FlagTaken != 0
	if h.Type != wire.TypeAck || told != (asked.Type == wire.TypeTaken) || !told && h.Flags&wire.FlagCover&^asked.Flags != 0 {
		n.t.Fatalf("a worker's frame was answered with %x", reply[:size])
	}
	n.checkCover(m, reply[:size])
	if v.Action == aggregator.Broadcast {
		for i := range n.workers {
			n.send(message{i, false, reply[:size]})
		}
		return
	}
	n.send(message{m.worker, false, reply[:size]})
}

// checkCover compares the workers that an answer names with those that have contributed to the
// round in progress, or have its result.
func (n *reduction) checkCover(m message, answer []byte) {
	h, err := wire.ParseHeader(answer)
	if err != nil || h.Flags&wire.FlagCover == 0 {
		return
	}
	group, these := n.groupOf(m.payload), n.arrived
	if h.Flags&wire.FlagTaken != 0 {
		these = n.taken
	}
	var want uint64
	for i := range n.workers {
		if these[contribution{groupRound{group, n.complete(group, these)}, i}] {
			want |= 1 << i
		}
	}
	if got := wire.Cover(answer, h); got != want {
		n.t.Fatalf("group %d: the answer %v names %b, want %b", group, h, got, want)
	}
}

// groupOf returns the group of a worker's frame, or of an answer with sums or a confirmation.
func (n *reduction) groupOf(payload []byte) int {
	if taken, err := wire.ParseTaken(payload); err == nil {
		return int(taken.First) / n.job.MaxStripes
	}
	return int(wire.StripeAt(payload, 0).Slot(0)) / n.job.MaxStripes
}

// complete returns the number of rounds of a group that are complete: all workers are among these.
func (n *reduction) complete(group int, these map[contribution]bool) (round int) {
	for ; ; round++ {
		for i := range n.workers {
			if !these[contribution{groupRound{group, round}, i}] {
				return round
			}
		}
	}
}

// expect adds a contribution that arrives for the first time to the sums that all workers must get,
// and reports whether it is one, or the first to tell of a result.
func (n *reduction) expect(m message) bool {
	h, err := wire.ParseHeader(m.payload)
	if err != nil {
		n.t.Fatal(err)
	}
	if h.Type == wire.TypeTaken {
		report, err := wire.ParseTaken(m.payload)
		if err != nil {
			n.t.Fatal(err)
		}
		c := contribution{groupRound{n.groupOf(m.payload), int(report.Round)}, m.worker}
		known := n.taken[c]
		n.taken[c] = true
		return !known
	}
	group := int(wire.StripeAt(m.payload, 0).Slot(0)) / n.job.MaxStripes
	w := n.workers[m.worker]
	if current, _ := wire.ParseHeader(w.frames[group]); current.Seq != h.Seq {
		return false // a late copy: the worker has the result
	}
	c := contribution{groupRound{group, w.round[group]}, m.worker}
	if w.round[group] == n.rounds || n.arrived[c] {
		return false
	}
	n.arrived[c] = true
	if n.want[c.groupRound] == nil {
		n.want[c.groupRound] = make([]int64, n.size(group))
	}
	for i, slot := range n.want[c.groupRound] {
		n.want[c.groupRound][i] = n.ref.add(slot, wire.StripeAt(m.payload, i/wire.Lanes).Bits(i%wire.Lanes))
	}
	return true
}

// receive delivers an answer to a worker, which goes on to the next round if it
// is what the worker waits for.
func (n *reduction) receive(m message) {
	h, err := wire.ParseHeader(m.payload)
	if err != nil {
		n.t.Fatal(err)
	}
	told := h.Flags&wire.FlagTaken != 0
	if h.Flags&wire.FlagCover != 0 || h.Flags&wire.FlagSum == 0 && !told {
		return // others are missing
	}
	group := n.groupOf(m.payload)
	w := n.workers[m.worker]
	round := w.round[group]
	if told != w.has[group] {
		return // a late copy
	}
	if h.Flags&wire.FlagAll != 0 {
		if h.Sender != wire.AllSenders {
			n.t.Fatalf("an answer to all has sender %d", h.Sender)
		}
		if h.Seq != uint32(round) {
			return // a late copy
		}
	} else if waiting, _ := wire.ParseHeader(w.frames[group]); h.Seq != waiting.Seq {
		return // of a frame that has been answered
	}
	if round == n.rounds {
		return
	}
	if told {
		if done := n.complete(group, n.taken); done <= round {
			n.t.Fatalf("worker %d, group %d: round %d is confirmed, of which %d is complete", m.worker, group, round, done)
		}
		n.advance(m.worker, group)
		return
	}
	for i, slot := range n.want[groupRound{group, round}] {
		if got, want := wire.StripeAt(m.payload, i/wire.Lanes).Bits(i%wire.Lanes), n.ref.wire(slot); got != want {
			n.t.Fatalf("worker %d, group %d, round %d: sum %d is %#x, want %#x", m.worker, group, round, i, got, want)
		}
	}
	if n.job.Mode == aggregator.Acked {
		n.tell(m.worker, group)
		return
	}
	n.advance(m.worker, group)
}

// tell sends the TAKEN of a worker that has a result.
func (n *reduction) tell(worker, group int) {
	w := n.workers[worker]
	h, err := wire.ParseHeader(w.frames[group])
	if err != nil {
		n.t.Fatal(err)
	}
	h.Flags = 0
	report := wire.TakenReport{First: uint16(group * n.job.MaxStripes), Round: uint32(w.round[group])}
	w.has[group], w.frames[group] = true, wire.PutTaken(make([]byte, wire.TakenLen), h, report)
	n.send(message{worker, true, w.frames[group]})
}

// advance lets a worker go on to its next round, if there is one.
func (n *reduction) advance(worker, group int) {
	w := n.workers[worker]
	w.has[group] = false
	if w.round[group]++; w.round[group] < n.rounds {
		n.contribute(worker, group)
	}
}

func (n *reduction) done() bool {
	for _, w := range n.workers {
		if slices.Min(w.round) < n.rounds {
			return false
		}
	}
	return true
}

// Every worker gets the sums of every round, whatever the network does.
func TestRoundsOverLossyNetwork(t *testing.T) {
	const maxSteps = 100_000
	for _, mode := range []aggregator.Mode{aggregator.Sync, aggregator.Acked} {
		for a := aggregator.Exact; a <= aggregator.Fixed; a++ {
			for _, workers := range []int{1, 2, 3, 5, aggregator.MaxWorkers} {
				if mode == aggregator.Acked && a != aggregator.Exact && workers == aggregator.MaxWorkers {
					continue // cheaper
				}
				t.Run(fmt.Sprintf("%v, %v, %d workers", mode, a, workers), func(t *testing.T) {
					n := newReduction(t, uint64(workers), mode, a, workers)
					for steps := 0; !n.done(); steps++ {
						if steps == maxSteps {
							t.Fatalf("not done after %d steps", steps)
						}
						n.step()
					}
					c, err := n.model.JobCounters(n.job.ID)
					if err != nil {
						t.Fatal(err)
					}
					if want := uint64(n.rounds * n.groups()); c.Rounds != want || c.Applied != want*uint64(workers) ||
						c.Duplicates == 0 || c.Refused.Total() != 0 {
						t.Errorf("counters are %+v, want %d rounds and no refusals", c, want)
					}
				})
			}
		}
	}
}

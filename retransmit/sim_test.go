// SPDX-License-Identifier: Apache-2.0

package retransmit

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/wire"
)

// filter is what the simulated receiver asks about every frame.
type filter interface {
	Fresh(seq uint32) bool
	Mark(seq uint32)
}

// faults describes a simulated network; both directions suffer them alike.
type faults struct {
	drop, duplicate, late float64       // probabilities for each frame
	delay                 time.Duration // up to this much more than the 20 µs of the path, so it reorders
	lateDelay             time.Duration // up to this much more for the late copies
	refuse                float64       // share of the frames that the receiver refuses
	busy                  float64       // probability that the sender's ring is full when it wants to resend
	stall, dark           float64       // probabilities, for each frame, that the receiver stalls or the path goes dark
	outage                time.Duration // for up to this long
}

// event is a frame, or the answer to one, when it arrives.
type event struct {
	at      Time
	order   int
	answer  bool
	refused bool
	retx    bool
	seq     uint32
	id      int // which frame, whatever its number
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].order < q[j].order
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// sim sends frames from a Window over a faulty network to a filter.
type sim struct {
	faults
	rng     *rand.Rand
	now     Time
	network events
	order   int

	window  *Window
	pending map[uint32]int // outstanding numbers, to check the window against
	filter  filter
	refuses []bool // by frame: the receiver does not want it
	applied []int  // by frame: how often it was applied
	told    []string
	broken  error // what Resend did wrong
	stalled Time  // until when the receiver answers nothing
	blind   Time  // until when the path loses all
	outages int
	lost    int // frames and answers
}

// newSim returns a simulation of n frames whose numbers begin at first.
func newSim(f faults, seed uint64, n, size int, first uint32, flt filter) *sim {
	s := &sim{
		faults: f, rng: rand.New(rand.NewPCG(seed, 0)),
		pending: map[uint32]int{}, filter: flt,
		refuses: make([]bool, n), applied: make([]int, n), told: make([]string, n),
	}
	for i := range s.refuses {
		s.refuses[i] = s.rng.Float64() < f.refuse
	}
	w, err := NewWindow(Config{Size: size, Silence: time.Hour})
	if err != nil {
		panic(err)
	}
	s.window = w
	if first != wire.FirstSeq { // a flow that has run for a while
		w.base, w.unsent, w.next = first, first, first
		for seq := first - 2*wire.DefaultWindow; seq != first; seq++ {
			flt.Mark(seq)
		}
	}
	return s
}

// run sends every frame until it is answered, lets the network run empty, and
// reports what went wrong.
func (s *sim) run() error {
	sent := 0
	for sent < len(s.applied) || s.window.Outstanding() > 0 {
		for sent < len(s.applied) && !s.window.Full() {
			want := s.window.NextSeq()
			seq, ok := s.window.Add(s.now, Entry{Cookie: uint64(sent)})
			if !ok || seq != want {
				return fmt.Errorf("frame %d: added as %d, %v; want %d", sent, seq, ok, want)
			}
			s.pending[seq] = sent
			s.window.Sent(s.now, 1)
			s.transmit(event{seq: seq, id: sent})
			s.now = s.now.Add(500 * time.Nanosecond)
			sent++
		}
		deadline, ok := s.window.NextDeadline()
		if !ok {
			continue
		}
		if len(s.network) > 0 && s.network[0].at < deadline {
			if err := s.arrive(); err != nil {
				return err
			}
			continue
		}
		s.now = max(s.now, deadline)
		if err := s.window.Check(s.now); err != nil {
			return err
		}
		offered := map[uint32]bool{}
		s.window.Resend(s.now, func(seq uint32, e Entry) bool {
			if offered[seq] { // a link cannot send a buffer twice at once
				s.broken = fmt.Errorf("frame %d is offered twice in one turn", seq)
			}
			offered[seq] = true
			if _, ok := s.pending[seq]; !ok {
				s.broken = fmt.Errorf("frame %d is repeated after its answer", seq)
			}
			if s.rng.Float64() < s.busy {
				s.now = s.now.Add(5 * time.Microsecond)
				return false
			}
			s.transmit(event{seq: seq, id: int(e.Cookie), retx: true})
			return true
		})
		if s.broken != nil {
			return s.broken
		}
	}
	for len(s.network) > 0 {
		if err := s.arrive(); err != nil {
			return err
		}
	}
	return s.verdict()
}

// arrive delivers the next frame or answer.
func (s *sim) arrive() error {
	e := heap.Pop(&s.network).(event)
	s.now = max(s.now, e.at)
	if !e.answer && s.now < s.stalled {
		s.order++
		e.at, e.order = s.stalled, s.order
		heap.Push(&s.network, e)
		return nil
	}
	if !e.answer {
		s.transmit(s.receive(e))
		return nil
	}
	id, outstanding := s.pending[e.seq]
	delete(s.pending, e.seq)
	entry, ok := Entry{}, false
	if e.refused {
		entry, ok = s.window.Refuse(s.now, e.seq)
	} else {
		entry, ok = s.window.Ack(s.now, e.seq)
	}
	if ok != outstanding || ok && entry.Cookie != uint64(id) {
		return fmt.Errorf("answer to %d: %+v, %v; want frame %d, %v", e.seq, entry, ok, id, outstanding)
	}
	if s.window.Outstanding() != len(s.pending) {
		return fmt.Errorf("%d frames outstanding, want %d", s.window.Outstanding(), len(s.pending))
	}
	if ok {
		s.told[id] = map[bool]string{false: "applied", true: "refused"}[e.refused]
	}
	return nil
}

// receive is the receiver: it returns its answer.
func (s *sim) receive(e event) event {
	e.answer = true
	if r, ok := s.filter.(interface{ receiveRetx(bool) }); ok {
		r.receiveRetx(e.retx)
	}
	if s.filter.Fresh(e.seq) {
		if e.refused = s.refuses[e.id]; !e.refused {
			s.filter.Mark(e.seq)
			s.applied[e.id]++
		}
	}
	return e
}

func (s *sim) transmit(e event) {
	put := func(extra time.Duration) {
		s.order++
		e.order = s.order
		e.at = s.now.Add(20*time.Microsecond + time.Duration(s.rng.Float64()*float64(extra)))
		heap.Push(&s.network, e)
	}
	if s.outage > 0 {
		begins := func(p float64, until *Time) {
			if s.now >= *until && s.rng.Float64() < p {
				*until = s.now.Add(time.Duration(s.rng.Float64() * float64(s.outage)))
				s.outages++
			}
		}
		begins(s.stall, &s.stalled)
		begins(s.dark, &s.blind)
	}
	if s.now < s.blind {
		s.lost++
		return
	}
	if s.rng.Float64() >= s.drop {
		put(s.delay)
	} else {
		s.lost++
	}
	if s.rng.Float64() < s.duplicate {
		put(s.delay)
	}
	if s.rng.Float64() < s.late {
		put(s.lateDelay)
	}
}

func (s *sim) verdict() error {
	for id, n := range s.applied {
		want, told := 1, "applied"
		if s.refuses[id] {
			want, told = 0, "refused"
		}
		if n != want || s.told[id] != told {
			return fmt.Errorf("frame %d: applied %d times and the sender was told %q; want %d times and %q", id, n, s.told[id], want, told)
		}
	}
	return nil
}

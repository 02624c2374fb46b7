// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"cmp"
	"context"
	"slices"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// steps is a server's state of the steps that its senders take together.
type steps struct {
	fit     bool // frames have room for a row of the job with any key
	held    bool // there are sums of a step
	number  uint64
	rows    int               // of that step
	each    int               // of them in a frame, except the last
	length  int               // of such a frame's payload
	frames  []byte            // their concatenated payloads, the same for all senders except for the header
	waiting map[uint16]giving // by sender: those at the end of a step
	came    uint64            // arrivals so far
	giving  []giving          // senders that get sums or a refusal, in this order
	out     []link.Frame      // not yet taken by the link
	failed  error             // of the link, not yet returned to the loop
}

// giving is a sender's share of the sums when a step is over.
type giving struct {
	to        link.Path
	request   wire.Header
	step      uint64
	room      uint32
	came      uint64 // earlier arrivals: the first to wait is served first, which shortens the longest wait
	next, end int    // frames; none: a refusal
}

func (s *steps) initSteps(cfg ServerConfig) {
	s.waiting = map[uint16]giving{}
	s.fit = wire.SumsCap(cfg.Link.Limits().MaxPayload, cfg.Dim, wire.SumsWidthMax) > 0
	s.out = make([]link.Frame, 0, endpoint.Batch)
}

// answerStep answers a STEP frame, with rows if the step is over.
func (s *Server) answerStep(p *link.Packet, h wire.Header, from *admitted) (int, wire.Refusal) {
	end, err := wire.ParseStep(p.Payload)
	if err != nil {
		return 0, wire.Refusal{Code: wire.CodeLength, Value: wire.StepLen}
	}
	if from.seen.Fresh(h.Seq) {
		from.seen.Mark(h.Seq) // see answerPull
	}
	s.stats.Steps++
	none := wire.Refusal{Code: wire.CodeStep}
	st := &s.steps
	if st.held && end.Step == st.number {
		if uint64(end.First) >= uint64(st.rows) {
			return 0, none
		}
		s.stats.Sums++
		return st.putSums(p.Payload[:cap(p.Payload)], h, int(end.First)/st.each), wire.Refusal{}
	}
	if s.cfg.Arrive == nil || !st.fit || !from.mayArrive(h.Seq) {
		return 0, none
	}
	to, err := s.link.Path(context.Background(), p.Src)
	if err != nil {
		return 0, none
	}
	g := giving{to: to, request: h, step: end.Step, room: end.Room, came: st.came}
	if before, again := st.waiting[h.Sender]; again && before.step == g.step {
		g.came = before.came
	}
	st.came++
	st.waiting[h.Sender] = g
	if !s.cfg.Arrive(h.Sender, h.Epoch, end) {
		delete(st.waiting, h.Sender)
		return 0, none
	}
	return len(wire.PutAck(p.Payload, h)), wire.Refusal{}
}

// forgetSender gives a sender nothing more, except for frames that are queued for the link.
func (s *steps) forgetSender(sender uint16) {
	delete(s.waiting, sender)
	s.giving = slices.DeleteFunc(s.giving, func(g giving) bool { return g.request.Sender == sender })
}

// putSums writes one of the SUMS frames, and returns its length.
func (s *steps) putSums(payload []byte, request wire.Header, frame int) int {
	n := copy(payload, s.frames[frame*s.length:min((frame+1)*s.length, len(s.frames))])
	request.Type, request.Flags = wire.TypeSums, 0
	request.Put(payload)
	return n
}

// encodeSums splits the sums of a step into frames of at most limit bytes.
func (s *steps) encodeSums(keys []uint64, sums []float32, limit, dim int) {
	s.rows, s.frames = len(keys), s.frames[:0]
	head := wire.SumsHead{Step: s.number, Rows: uint32(len(keys)), Width: wire.SumsWidth(keys, limit, dim)}
	s.each = wire.SumsCap(limit, dim, head.Width)
	s.length = wire.SumsLen(s.each, dim, head.Width)
	for ; len(keys) > 0; head.First += uint32(s.each) {
		n := min(s.each, len(keys))
		from, length := len(s.frames), wire.SumsLen(n, dim, head.Width)
		s.frames = slices.Grow(s.frames, length)[:from+length]
		wire.PutStepSums(s.frames[from:], head, keys[:n], dim, sums)
		keys, sums = keys[n:], sums[n*dim:]
	}
}

// GiveSums sends the sums of a step, Dim floats for each key in the order of keys, to all senders
// at its end, in the order of their arrival, and to those that ask until the next call. If there
// are no rows, or too many for frames, it refuses, and the senders ask the control service. Only
// the server's goroutine may call it, in a call of [ServerConfig.Arrive] or of Do.
func (s *Server) GiveSums(step uint64, keys []uint64, sums []float32) {
	st := &s.steps
	if st.held && step <= st.number { // late: those that waited have asked elsewhere
		return
	}
	if !st.fit || len(sums) > maxStepFloats {
		keys, sums = nil, nil
	}
	st.held, st.number = true, step
	st.encodeSums(keys, sums, s.link.Limits().MaxPayload, s.cfg.Dim)
	st.giving = st.giving[:0] // of the previous step, which is over for all
	for sender, g := range st.waiting {
		if g.step != step {
			continue
		}
		g.end = int(min(uint64(g.room), uint64((st.rows+st.each-1)/st.each)))
		st.giving = append(st.giving, g)
		delete(st.waiting, sender)
	}
	slices.SortFunc(st.giving, byArrival)
	_, st.failed = s.sendSums()
}

// RefuseSteps makes all senders at the end of a step ask the control service for its outcome. With
// hold it refuses later ends of steps, too, until TakeSteps. It may be called where GiveSums may.
func (s *Server) RefuseSteps(hold bool) {
	for _, a := range s.senders {
		a.held = a.held || hold
	}
	st := &s.steps
	before := len(st.giving)
	for sender, g := range st.waiting {
		st.giving = append(st.giving, g)
		delete(st.waiting, sender)
	}
	slices.SortFunc(st.giving[before:], byArrival)
}

// TakeSteps takes ends of steps of a sender again, in frames from number next on: a copy of an
// earlier one may still be in the network.
func (s *Server) TakeSteps(ctx context.Context, sender uint16, next uint32) error {
	return s.Do(ctx, func() {
		if a := s.senders[sender]; a != nil {
			a.held, a.bounded, a.stepsFrom = false, true, next
		}
	})
}

func byArrival(a, b giving) int { return cmp.Compare(a.came, b.came) }

// sendSums sends the pending frames of senders in turn, and reports whether the link left some
// over.
func (s *Server) sendSums() (left bool, err error) {
	st := &s.steps
	if st.failed != nil {
		return false, st.failed
	}
	for len(st.giving) > 0 || len(st.out) > 0 {
		for len(st.giving) > 0 && len(st.out) < cap(st.out) {
			b, ok := s.link.Alloc()
			if !ok {
				break
			}
			g := &st.giving[0]
			payload := s.link.Payload(b)
			var n int
			if g.end == 0 {
				n = len(wire.PutError(payload, g.request, wire.Refusal{Code: wire.CodeStep}))
			} else {
				n = st.putSums(payload, g.request, g.next)
				g.next++
				s.stats.Sums++
			}
			st.out = append(st.out, link.Frame{Buf: b, Len: n, To: g.to})
			if g.next >= g.end {
				st.giving = st.giving[1:]
			}
		}
		n, err := s.link.Send(st.out)
		if err != nil {
			return false, err
		}
		for _, f := range st.out[:n] {
			s.link.Free(f.Buf) // lost frames are requested again
		}
		st.out = append(st.out[:0], st.out[n:]...)
		if n == 0 {
			return true, nil
		}
	}
	return false, nil
}

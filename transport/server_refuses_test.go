// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// endOf is the STEP frame of a sender.
func endOf(sender uint16, seq uint32, end wire.StepEnd) []byte {
	payload := make([]byte, wire.StepLen)
	wire.Header{Type: wire.TypeStep, Job: testJob, Sender: sender, Epoch: testServerEpoch, Seq: seq}.Put(payload)
	end.Put(payload)
	return payload
}

// TestServerRefusesSteps sends STEP frames of another length, for rows that the step does not have,
// of a step that has not ended, and to a server that ends none. Frames of the ended step get its
// rows.
func TestServerRefusesSteps(t *testing.T) {
	network := newMemNet()
	s, _ := newTestServer(t, network)
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	keys, sums := stepSums(4, 3)
	if err := s.Do(t.Context(), func() {
		s.GiveSums(4, keys, sums)
		s.GiveSums(4, keys[:1], sums) // too late, as is the next
		s.GiveSums(3, keys[:1], sums)
	}); err != nil {
		t.Fatal(err)
	}
	seq := uint32(0)
	ask := func(end wire.StepEnd, length int) []byte {
		seq++
		return c.ask(append(endOf(5, seq, end), 0)[:length])
	}
	none := wire.Refusal{Code: wire.CodeStep}
	for _, r := range []struct {
		end    wire.StepEnd
		length int
		want   wire.Refusal
	}{
		{wire.StepEnd{Step: 4}, wire.StepLen - 1, wire.Refusal{Code: wire.CodeLength, Value: wire.StepLen}},
		{wire.StepEnd{Step: 4}, wire.StepLen + 1, wire.Refusal{Code: wire.CodeLength, Value: wire.StepLen}},
		{wire.StepEnd{Step: 4, First: 3}, wire.StepLen, none},
		{wire.StepEnd{Step: 4, First: math.MaxUint32}, wire.StepLen, none},
		{wire.StepEnd{Step: 3}, wire.StepLen, none},
		{wire.StepEnd{Step: 5}, wire.StepLen, none},
	} {
		if got := refusalOf(t, ask(r.end, r.length)); got != r.want {
			t.Errorf("%+v in %d bytes: %v, want %v", r.end, r.length, got, r.want)
		}
	}
	rows, err := wire.ParseStepSums(ask(wire.StepEnd{Step: 4, First: 2}, wire.StepLen))
	if err != nil || rows.Step != 4 || rows.Rows != 3 || rows.Count != 3 {
		t.Errorf("%+v, %v", rows, err)
	}
	if st, err := s.Stats(t.Context()); err != nil || st.Steps != 5 || st.Sums != 1 {
		t.Errorf("%d well-formed STEP frames, %d answers with sums, want 5 and 1; %v", st.Steps, st.Sums, err)
	}
}

// TestMostSums checks that the largest number of sums is sent in frames, and one row more is not.
func TestMostSums(t *testing.T) {
	const dim = 4 // a divisor of the bound
	network := newMemNet()
	s, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: dim, Handler: discard{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, maxStepFloats/dim+1)
	for i := range keys {
		keys[i] = uint64(i)
	}
	for step, rows := range []int{maxStepFloats / dim, maxStepFloats/dim + 1} {
		if err := s.Do(t.Context(), func() { s.GiveSums(uint64(step), keys[:rows], make([]float32, rows*dim)) }); err != nil {
			t.Fatal(err)
		}
		h, err := wire.ParseHeader(c.ask(endOf(5, uint32(step+1), wire.StepEnd{Step: uint64(step), Room: 1})))
		if want := [...]wire.Type{wire.TypeSums, wire.TypeError}[step]; err != nil || h.Type != want {
			t.Errorf("%d rows: %v, %v, want %v", rows, h.Type, err, want)
		}
	}
}

// sendingLink records the destination of each SUMS frame, and of each refusal that is not an
// answer.
type sendingLink struct {
	link.Link
	pathless bool // it finds no path
	full     bool // it accepts no frames
	to       []uint16
	refused  []uint16
	lent     int // buffers
}

func (l *sendingLink) Path(ctx context.Context, to wire.Endpoint) (link.Path, error) {
	if l.pathless {
		return nil, link.ErrConfig
	}
	return l.Link.Path(ctx, to)
}

func (l *sendingLink) Alloc() (link.Buf, bool) {
	b, ok := l.Link.Alloc()
	if ok {
		l.lent++
	}
	return b, ok
}

func (l *sendingLink) Free(b link.Buf) { l.lent--; l.Link.Free(b) }

func (l *sendingLink) Send(frames []link.Frame) (int, error) {
	if l.full {
		return 0, nil
	}
	for _, f := range frames {
		switch h, err := wire.ParseHeader(l.Payload(f.Buf)); {
		case err != nil:
		case h.Type == wire.TypeSums:
			l.to = append(l.to, h.Sender)
		case h.Type == wire.TypeError:
			l.refused = append(l.refused, h.Sender)
		}
	}
	return l.Link.Send(frames)
}

// TestStepsOfWideRows checks that sums of a step are sent in frames if one of its rows fits;
// otherwise senders are refused, and the server has no step.
func TestStepsOfWideRows(t *testing.T) {
	dim := testDim
	for wire.SumsCap(wire.DefaultPayload, dim+1, wire.SumsWidthMax) > 0 {
		dim++
	}
	for dim, fits := range map[int]bool{dim: true, dim + 1: false} {
		network := newMemNet()
		came := 0
		s, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: dim, Handler: discard{},
			Arrive: func(uint16, uint16, wire.StepEnd) bool { came++; return true }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
		if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
		h, err := wire.ParseHeader(c.ask(endOf(5, 1, wire.StepEnd{Step: 4, Room: 9})))
		if err != nil || (h.Type == wire.TypeAck) != fits || (came == 1) != fits {
			t.Errorf("rows of %d floats: answer %v, %v, %d came", dim, h.Type, err, came)
		}
		if err := s.Do(t.Context(), func() { s.GiveSums(3, []uint64{1, 2}, make([]float32, 2*dim)) }); err != nil {
			t.Fatal(err)
		}
		answer := c.ask(endOf(5, 2, wire.StepEnd{Step: 3, First: 1, Room: 9}))
		if !fits {
			if got, want := refusalOf(t, answer), (wire.Refusal{Code: wire.CodeStep}); got != want {
				t.Errorf("rows of %d floats: %v, want %v", dim, got, want)
			}
			continue
		}
		if rows, err := wire.ParseStepSums(answer); err != nil || rows.First != 1 || rows.Count != 1 || rows.Rows != 2 {
			t.Errorf("rows of %d floats, the second: %+v, %v", dim, rows, err)
		}
	}
}

// TestSendersThatHaveNotCome checks that a sender that is refused at the end of a step, or has no
// path, gets no sums of it.
func TestSendersThatHaveNotCome(t *testing.T) {
	for name, pathless := range map[string]bool{"refused": false, "without a path": true} {
		network := newMemNet()
		l := &sendingLink{Link: network.open("10.0.0.1:19522"), pathless: pathless}
		s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: discard{},
			Arrive: func(uint16, uint16, wire.StepEnd) bool { return pathless }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		c := client{t, network.open("10.0.0.2:1000"), l.Local()}
		if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
		if got, want := refusalOf(t, c.ask(endOf(5, 1, wire.StepEnd{Step: 4, Room: 9}))), (wire.Refusal{Code: wire.CodeStep}); got != want {
			t.Errorf("%s: answer %v, want %v", name, got, want)
		}
		if err := s.Do(t.Context(), func() {
			s.GiveSums(4, []uint64{1}, make([]float32, testDim))
			if len(l.to) > 0 {
				t.Errorf("%s: sums went to %v", name, l.to)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSumsInOrderOfArrival gives sums in the order in which senders have reached the end of the
// step. A sender that asks again keeps its place.
func TestSumsInOrderOfArrival(t *testing.T) {
	network := newMemNet()
	l := &sendingLink{Link: network.open("10.0.0.1:19522")}
	m := &meeting{workers: 20, arrived: map[uint16]wire.StepEnd{}}
	s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: discard{}, Arrive: m.arrive})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m.over = func(step uint64) {
		m.next()
		s.GiveSums(step, []uint64{1}, make([]float32, testDim))
	}
	clients := map[uint16]client{}
	for sender := uint16(1); int(sender) <= m.workers; sender++ {
		clients[sender] = client{t, network.open(fmt.Sprintf("10.0.0.2:%d", 1000+sender)), l.Local()}
		if err := s.Admit(t.Context(), sender, clients[sender].at(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
	}
	seq := uint32(0)
	for step := range uint64(3) {
		var want []uint16
		for _, i := range rand.New(rand.NewPCG(step, 1)).Perm(m.workers) {
			want = append(want, uint16(i+1))
		}
		for _, sender := range append(want[:m.workers-1:m.workers-1], want[5], want[0], want[m.workers-1]) {
			seq++
			clients[sender].ask(endOf(sender, seq, wire.StepEnd{Step: step, Room: 9}))
		}
		if err := s.Do(t.Context(), func() {
			if !slices.Equal(l.to, want) {
				t.Errorf("step %d: sums went to %v, want %v", step, l.to, want)
			}
			if sums := (step + 1) * uint64(m.workers); s.stats.Sums != sums || l.lent != 0 {
				t.Errorf("step %d: %d SUMS frames, want %d; %d buffers are missing", step, s.stats.Sums, sums, l.lent)
			}
			l.to = nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSumsOfOtherSteps checks that a sender waiting for another step gets no sums, and that the
// rest of a step that has ended before all of its sums were sent is not sent.
func TestSumsOfOtherSteps(t *testing.T) {
	network := newMemNet()
	l := &sendingLink{Link: network.open("10.0.0.1:19522")}
	dim := wire.DefaultPayload / 4 * 3 / 4 // a frame for each row
	s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: dim, Handler: discard{},
		Arrive: func(uint16, uint16, wire.StepEnd) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const early, rows = 9, 100
	for sender := uint16(1); sender <= early+1; sender++ {
		c := client{t, network.open(fmt.Sprintf("10.0.0.2:%d", 1000+sender)), l.Local()}
		if err := s.Admit(t.Context(), sender, c.at(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
		step := uint64(5)
		if sender > early {
			step = 4
		}
		c.ask(endOf(sender, 1, wire.StepEnd{Step: step, Room: 2 * rows}))
	}
	give := func(step uint64, rows int, full bool) map[uint16]int {
		got := map[uint16]int{}
		if err := s.Do(t.Context(), func() {
			l.to, l.full = nil, full
			keys, sums := stepSums(step, 1)
			for i := 1; i < rows; i++ {
				keys = append(keys, keys[0]+uint64(i))
			}
			s.GiveSums(step, keys, append(sums, make([]float32, rows*dim)...)[:rows*dim])
			if _, err := s.sendSums(); err != nil {
				t.Error(err)
			}
			for _, to := range l.to {
				got[to]++
			}
		}); err != nil {
			t.Fatal(err)
		}
		return got
	}
	give(4, rows, true)
	want := map[uint16]int{early + 1: endpoint.Batch} // those that waited for the link
	for sender := uint16(1); sender <= early; sender++ {
		want[sender] = 2
	}
	if got := give(5, 2, false); !maps.Equal(got, want) {
		t.Errorf("frames by sender: %v, want %v", got, want)
	}
}

// TestRefusedSteps checks that a sender waiting for the end of a step is refused once, and not if
// it already has its sums.
func TestRefusedSteps(t *testing.T) {
	network := newMemNet()
	l := &sendingLink{Link: network.open("10.0.0.1:19522")}
	s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: discard{},
		Arrive: func(uint16, uint16, wire.StepEnd) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := client{t, network.open("10.0.0.2:1000"), l.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	for step, want := range [][]uint16{{5}, nil} {
		c.ask(endOf(5, uint32(step+1), wire.StepEnd{Step: uint64(step), Room: 9}))
		if err := s.Do(t.Context(), func() {
			l.refused = nil
			if want == nil {
				s.GiveSums(uint64(step), []uint64{1}, make([]float32, testDim))
			}
			s.RefuseSteps(false)
			s.RefuseSteps(false)
			if _, err := s.sendSums(); err != nil || !slices.Equal(l.refused, want) {
				t.Errorf("step %d: refused %v, want %v; %v", step, l.refused, want, err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServerWithoutWeights checks that it refuses all requests for rows of earlier steps, and
// accepts gradients by key.
func TestServerWithoutWeights(t *testing.T) {
	network := newMemNet()
	s, err := NewServer(ServerConfig{Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: testDim, Handler: newLedger(), NoWeights: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := client{t, network.open("10.0.0.2:1000"), s.link.Local()}
	if err := s.Admit(t.Context(), 5, c.at(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	h := wire.Header{Job: testJob, Sender: 5, Epoch: testServerEpoch, Seq: 1}
	for name, payload := range map[string][]byte{"pull": pullOf(h, 1), "find": findOf(h, 42), "by number": coldAt(h, 0, 1), "by key": cold(h, testDim, 1)} {
		want := wire.Refusal{Code: wire.CodeNoWeights}
		if name == "by key" {
			want = wire.Refusal{}
		}
		if got := refusalOf(t, c.ask(payload)); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestWithdrawnSenders checks that a sender that has been withdrawn gets nothing more of a step,
// neither sums nor a refusal, whether it waited for the end of the step or for its turn. Only the
// frames that are queued for the link go out.
func TestWithdrawnSenders(t *testing.T) {
	network := newMemNet()
	l := &sendingLink{Link: network.open("10.0.0.1:19522")}
	s, err := NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: discard{},
		Arrive: func(uint16, uint16, wire.StepEnd) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const step, frames = 4, 2 * endpoint.Batch
	for sender := uint16(1); sender <= 5; sender++ {
		c := client{t, network.open(fmt.Sprintf("10.0.0.2:%d", 1000+sender)), l.Local()}
		if err := s.Admit(t.Context(), sender, c.at(), testServerEpoch); err != nil {
			t.Fatal(err)
		}
		at := uint64(step)
		if sender > 3 { // they are refused
			at++
		}
		c.ask(endOf(sender, 1, wire.StepEnd{Step: at, Room: frames}))
	}
	do := func(f func()) {
		t.Helper()
		if err := s.Do(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	withdraw := func(sender uint16) {
		t.Helper()
		if err := s.Remove(t.Context(), sender); err != nil {
			t.Fatal(err)
		}
	}
	withdraw(1)
	do(func() {
		l.full = true
		each := wire.SumsCap(wire.DefaultPayload, testDim, 5) // by the width of stepSums
		keys, sums := stepSums(step, frames*each)
		s.GiveSums(step, keys, sums)
		s.RefuseSteps(false)
	})
	withdraw(2) // its first frames are queued
	withdraw(4)
	do(func() {
		l.full = false
		if _, err := s.sendSums(); err != nil {
			t.Error(err)
		}
		got := map[uint16]int{}
		for _, to := range l.to {
			got[to]++
		}
		if want := (map[uint16]int{2: endpoint.Batch, 3: frames}); !maps.Equal(got, want) {
			t.Errorf("frames by sender: %v, want %v", got, want)
		}
		if !slices.Equal(l.refused, []uint16{5}) {
			t.Errorf("refused: %v, want 5", l.refused)
		}
		if l.lent != 0 {
			t.Errorf("%d buffers are missing", l.lent)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/wire"
)

// stepSums returns the sums of a step of n rows.
func stepSums(step uint64, n int) (keys []uint64, sums []float32) {
	for i := range n {
		keys = append(keys, uint64(i)<<30+step)
		for c := range testDim {
			sums = append(sums, float32(i)+float32(step)/16+float32(c))
		}
	}
	return keys, sums
}

// meeting is a control service of workers that take steps together.
type meeting struct {
	workers int
	step    uint64
	arrived map[uint16]wire.StepEnd
	ends    bool              // all have arrived
	over    func(step uint64) // in the server's goroutine, when all have arrived
}

func (m *meeting) arrive(sender, epoch uint16, end wire.StepEnd) bool {
	if epoch != testServerEpoch || end.Step != m.step {
		return false
	}
	m.arrived[sender] = end
	if len(m.arrived) == m.workers && !m.ends {
		m.ends = true
		m.over(end.Step)
	}
	return true
}

// next begins the next step.
func (m *meeting) next() {
	m.step, m.ends = m.step+1, false
	clear(m.arrived)
}

// endStep ends a step at a worker, and fails the test if it gets the end twice.
func endStep(ctx context.Context, t *testing.T, w *Worker, s *Step) (err error) {
	t.Helper()
	done := make(chan error, 2)
	s.Done = func(err error) { done <- err }
	if err := w.Do(ctx, func() { w.EndStep(s) }); err != nil {
		return err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		t.Error("the step has no end")
		return context.Cause(ctx)
	}
	if len(done) > 0 {
		t.Error("told twice")
	}
	return err
}

// All workers get the same sums, every row once, on networks that lose, repeat and reorder frames:
// of few rows and of more than a window of frames, of servers that end the step at once or later.
// Sums that are not sent in frames give an ERROR.
func TestSteps(t *testing.T) {
	const workers = 3
	each := wire.SumsCap(wire.DefaultPayload, testDim, 5) // by the width of stepSums
	sizes := []int{1, each, each + 1, 40*each - 7, 0, 700 * each, 3, -1, 2*each + 1, maxStepFloats/testDim + 1, 5}
	for name, on := range map[string]func(testing.TB, clusterOptions) fabric{"memory": memFabric, "udp": udpFabric} {
		for fault, faults := range map[string]link.Faults{"": {}, "with faults": {Drop: 0.05, Duplicate: 0.05, Reorder: 0.05, Seed: 3}} {
			t.Run(name+" "+fault, func(t *testing.T) {
				m := &meeting{workers: workers, arrived: map[uint16]wire.StepEnd{}}
				o := clusterOptions{workers: workers, faults: faults, arrive: m.arrive}
				c := newCluster(t, on(t, o), o)
				ctx := deadline(t)
				over := func(step uint64) {
					give := func() {
						m.next()
						if n := sizes[step]; n < 0 {
							c.server.RefuseSteps(false)
						} else {
							keys, sums := stepSums(step, n)
							c.server.GiveSums(step, keys, sums)
						}
					}
					if step%2 == 0 {
						give()
					} else {
						go func() { _ = c.server.Do(ctx, give) }()
					}
				}
				if err := c.server.Do(ctx, func() { m.over = over }); err != nil {
					t.Fatal(err)
				}
				var group sync.WaitGroup
				for _, w := range c.workers {
					group.Go(func() {
						s := &Step{} // each step reuses the memory of the previous one
						for step, n := range sizes {
							s.Number = uint64(step)
							err := endStep(ctx, t, w, s)
							if n <= 0 || n*testDim > maxStepFloats {
								if !errors.Is(err, wire.Refusal{Code: wire.CodeStep}) {
									t.Errorf("step %d: %v", step, err)
								}
								continue
							}
							keys, sums := stepSums(uint64(step), n)
							if err != nil || !slices.Equal(s.Keys, keys) || !slices.Equal(s.Sums, sums) {
								t.Errorf("step %d: %d of %d rows, %v", step, len(s.Keys), n, err)
							}
						}
					})
				}
				group.Wait()
				// Requests are answered and forgotten: later pushes and their flush work as before.
				want := pushAll(ctx, t, c.workers, 5, 3, 50)
				for _, w := range c.workers {
					if err := w.Flush(ctx); err != nil {
						t.Error(err)
					}
					keeps := true
					if err := w.Do(ctx, func() { keeps = slices.ContainsFunc(w.ops, func(o *operation) bool { return o != nil }) }); err != nil || keeps {
						t.Errorf("the worker keeps an operation: %v, %v", keeps, err)
					}
				}
				if got := c.sums(); len(got) != len(want) {
					t.Errorf("%d rows, want %d", len(got), len(want))
				}
			})
		}
	}
}

// A step that is cancelled, a second one, and one whose worker ends, end once, with the reason.
func TestStepsThatAreLeft(t *testing.T) {
	c := newCluster(t, memFabric(t, clusterOptions{}), clusterOptions{workers: 1, arrive: func(uint16, uint16, wire.StepEnd) bool { return true }})
	ctx, w := deadline(t), c.workers[0]
	var ends []error
	begin := func() {
		w.EndStep(&Step{Number: uint64(len(ends)), Done: func(err error) { ends = append(ends, err) }})
	}
	if err := w.Do(ctx, func() {
		begin()
		begin()
		w.EndStep(nil)
		w.EndStep(nil)
		begin()
	}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if len(ends) != 3 || !errors.Is(ends[0], errStepTaken) || !errors.Is(ends[1], errStepLeft) || !errors.Is(ends[2], ErrClosed) {
		t.Errorf("%v", ends)
	}
	silent := newCluster(t, memFabric(t, clusterOptions{}), clusterOptions{workers: 1})
	if err := endStep(ctx, t, silent.workers[0], &Step{}); !errors.Is(err, wire.Refusal{Code: wire.CodeStep}) {
		t.Errorf("a server without steps: %v", err)
	}
}

// asksForStep is a worker that has requested the sums of step 1, and accepts the bodies of SUMS
// frames.
func asksForStep(t *testing.T, done func(error)) (w *Worker, take func(body []byte)) {
	t.Helper()
	network := newMemNet()
	server := network.open("10.0.0.1:19522")
	w, err := makeWorker(t.Context(), WorkerConfig{
		Link: network.open("10.0.0.2:19522"), Job: testJob, Sender: 1, ServerEpoch: testServerEpoch, Dim: testDim, Server: server.Local(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.EndStep(&Step{Number: 1, Done: done})
	if _, err := w.turn(); err != nil {
		t.Fatal(err)
	}
	return w, func(body []byte) {
		payload := make([]byte, wire.HeaderLen+len(body))
		wire.Header{Type: wire.TypeSums, Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: wire.FirstSeq}.Put(payload)
		copy(payload[wire.HeaderLen:], body)
		w.receiveAnswer(&link.Packet{Packet: wire.Packet{Src: server.Local(), Payload: payload}})
	}
}

// A worker that waits for the end of a step asks again, less and less often, and one that has a
// part of the sums requests the rest as soon as no more arrive. In between it sleeps, even while
// its requests are not answered.
func TestAsksForTheEndOfAStep(t *testing.T) {
	p := newPausable(t, time.Hour)
	p.EndStep(&Step{Number: 1, Done: func(err error) { t.Error(err) }})
	// asks runs turns until a frame has arrived at the server, and returns it, or until the worker
	// would sleep beyond a time.
	asks := func(until time.Duration) (wire.Header, wire.StepEnd, bool) {
		t.Helper()
		pkts := make([]link.Packet, 1)
		for {
			busy, err := p.turn()
			if err != nil {
				t.Fatal(err)
			}
			if n, err := p.server.Receive(pkts); err != nil || n > 0 {
				h, _ := wire.ParseHeader(pkts[0].Payload)
				end, errStep := wire.ParseStep(pkts[0].Payload)
				if err := errors.Join(err, errStep); err != nil {
					t.Fatal(err)
				}
				return h, end, true
			}
			if busy {
				continue
			}
			pause := p.patience()
			if pause <= 0 {
				t.Fatalf("after %v the worker does not sleep: %v", time.Duration(p.clock), pause)
			}
			if p.clock.Add(pause) > retransmit.Time(until) {
				return wire.Header{}, wire.StepEnd{}, false
			}
			p.clock = p.clock.Add(pause)
		}
	}
	var times []int64
	var last wire.Header
	for {
		h, end, ok := asks(4 * time.Second)
		if !ok {
			break
		}
		if end.Step != 1 || end.First != 0 || h.Flags&wire.FlagRetx != 0 {
			t.Fatalf("%+v, %+v", h, end)
		}
		last, times = h, append(times, time.Duration(p.clock).Milliseconds())
		p.server.deliver(wire.PutAck(make([]byte, wire.HeaderLen), h), p.link.Local())
	}
	if want := []int64{0, 50, 150, 350, 750, 1550, 2550, 3550}; !slices.Equal(times, want) {
		t.Errorf("the worker asks after %v ms, want %v", times, want)
	}
	last.Type, last.Flags = wire.TypeSums, 0
	payload := append(make([]byte, wire.HeaderLen), stepSumsBody(1, wire.SumsHead{Step: 1, Rows: 3})...)
	last.Put(payload)
	p.server.deliver(payload, p.link.Local())
	came := time.Duration(p.clock)
	for again := range 3 { // it gets no answer
		if h, end, ok := asks(came + time.Minute); !ok || end.Step != 1 || end.First != 1 || (h.Flags&wire.FlagRetx != 0) != (again > 0) {
			t.Errorf("%v after the first row: %+v, %+v, %v", time.Duration(p.clock)-came, h, end, ok)
		}
		if now := time.Duration(p.clock); again == 0 && now != came+sumsLag {
			t.Errorf("the worker asks for the rest after %v, want %v", now-came, sumsLag)
		}
	}
}

// stepSumsBody is the body of a SUMS frame with the first rows of stepSums.
func stepSumsBody(count int, head wire.SumsHead) []byte {
	keys, sums := stepSums(head.Step, count)
	head.Width = 4
	b := make([]byte, wire.SumsLen(count, testDim, head.Width))
	wire.PutStepSums(b, head, keys, testDim, sums)
	return b[wire.HeaderLen:]
}

// A frame that announces the largest number of rows makes a worker allocate space for them, and a
// bit for each.
func TestRoomForAnnouncedRows(t *testing.T) {
	const rows = maxStepFloats / testDim
	w, take := asksForStep(t, func(err error) { t.Error(err) })
	body := stepSumsBody(1, wire.SumsHead{Step: 1, Rows: rows})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	take(body)
	runtime.ReadMemStats(&after)
	if w.step == nil || w.step.left != rows-1 {
		t.Fatalf("the frame was not taken: %+v", w.step)
	}
	const most = rows*(8+4*testDim) + rows/8 + 1<<20
	if got := after.TotalAlloc - before.TotalAlloc; got > most {
		t.Errorf("%d bytes for %d rows, want at most %d", got, rows, most)
	}
}

// Sums of another dimension, and of more rows than the step had at first, are ignored; more rows
// than are sent in frames end the step with an error.
func TestUnfittingSums(t *testing.T) {
	var ends []error
	w, take := asksForStep(t, func(err error) { ends = append(ends, err) })
	body := func(rows uint32) []byte { return stepSumsBody(1, wire.SumsHead{Step: 1, Rows: rows}) }
	other := make([]byte, wire.SumsLen(1, testDim+1, 4))
	wire.PutStepSums(other, wire.SumsHead{Step: 1, Rows: 2, Width: 4}, []uint64{1}, testDim+1, make([]float32, testDim+1))
	malformed := w.stats.Malformed
	for i, body := range [][]byte{other[wire.HeaderLen:], body(2), body(3)} {
		take(body)
		if bad := w.stats.Malformed > malformed; bad != (i != 1) || w.step == nil || len(ends) > 0 {
			t.Errorf("frame %d: malformed: %v, %v", i, bad, ends)
		}
		malformed = w.stats.Malformed
	}
	w, take = asksForStep(t, func(err error) { ends = append(ends, err) })
	take(body(maxStepFloats/testDim + 1))
	if w.step != nil || len(ends) != 1 || !errors.Is(ends[0], ErrAnswer) {
		t.Errorf("too many rows: %v", ends)
	}
}

// Sums that answer a request from before the worker gave the step up are ignored when it waits for
// the step again: it has told its caller that there are none.
func TestSumsOfAnEarlierRequest(t *testing.T) {
	ends := 0
	w, take := asksForStep(t, func(error) { ends++ }) // its request has the first number
	w.EndStep(nil)
	var late []error
	w.EndStep(&Step{Number: 1, Done: func(err error) { late = append(late, err) }})
	if take(stepSumsBody(1, wire.SumsHead{Step: 1, Rows: 1})); ends != 1 || len(late) != 0 || w.step == nil {
		t.Errorf("%d ends of the first wait, and of the second %v", ends, late)
	}
}

// FuzzReceiveStepSums gives a worker that waits for a step arbitrary SUMS frames with the right
// header.
func FuzzReceiveStepSums(f *testing.F) {
	f.Add(stepSumsBody(2, wire.SumsHead{Step: 1, Rows: 3, First: 1}), stepSumsBody(1, wire.SumsHead{Step: 1, Rows: 3}))
	f.Add(stepSumsBody(1, wire.SumsHead{Step: 1, Rows: 1 << 31, First: 1 << 30}), stepSumsBody(1, wire.SumsHead{Step: 2, Rows: 1}))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		ends := 0
		w, take := asksForStep(t, func(error) { ends++ })
		for _, body := range [][]byte{one, two, one} {
			if len(body) > wire.DefaultPayload-wire.HeaderLen {
				return
			}
			take(body)
		}
		if over := w.step == nil; over != (ends == 1) || ends > 1 {
			t.Fatalf("%d ends, over %v", ends, over)
		}
		if s := w.step; s != nil && s.known && (s.left <= 0 || s.left > len(s.Keys)) {
			t.Fatalf("%d of %d rows are missing", s.left, len(s.Keys))
		}
	})
}

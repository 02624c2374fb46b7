// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// keeper keeps a copy of each payload that is sent, and holds one back, as a network does that
// copies and delays.
type keeper struct {
	*memLink
	mu   sync.Mutex
	kept [][]byte
	hold bool // the next frame is late
}

func (k *keeper) Send(frames []link.Frame) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range frames {
		k.kept = append(k.kept, slices.Clone(k.Payload(f.Buf)[:f.Len]))
	}
	if k.hold && len(frames) > 0 {
		k.hold = false
		_, err := k.memLink.Send(frames[1:])
		return len(frames), err
	}
	return k.memLink.Send(frames)
}

// holdNext makes the next frame late.
func (k *keeper) holdNext() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold = true
}

// copies returns the sent payloads.
func (k *keeper) copies() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.kept)
}

// rowStore is a server with a ps.Store and one sender, whose frames a keeper copies.
type rowStore struct {
	store  *ps.Store
	server *Server
	link   *keeper
}

func newRowStore(t *testing.T, cfg ps.Config) rowStore {
	t.Helper()
	cfg.Dim, cfg.Exp = testDim, ps.DefaultExp
	store, err := ps.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	network := newMemNet()
	server, err := NewServer(ServerConfig{
		Link: network.open("10.0.0.1:19522"), Job: testJob, Dim: testDim, Handler: store,
		NoWeights: cfg.Optimizer.Method == ps.None,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	l := &keeper{memLink: network.open("10.0.0.2:19522")}
	if err := server.Admit(t.Context(), 1, l.local.AddrPort(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	return rowStore{store, server, l}
}

func (r rowStore) newWorker(t *testing.T) *Worker {
	t.Helper()
	w, err := NewWorker(t.Context(), WorkerConfig{
		Link: r.link, Job: testJob, Sender: 1, ServerEpoch: testServerEpoch, Dim: testDim, Server: r.server.link.Local(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// do runs f in the server's goroutine, after what has arrived before.
func (r rowStore) do(t *testing.T, f func()) {
	t.Helper()
	for _, g := range []func(){func() {}, f} {
		if err := r.server.Do(t.Context(), g); err != nil {
			t.Fatal(err)
		}
	}
}

// isEmpty checks that nothing has been pushed in the open step.
func (r rowStore) isEmpty(t *testing.T) {
	t.Helper()
	r.do(t, func() {
		for key, units := range r.store.Pending() {
			t.Errorf("the step, in which nobody has pushed, has units %v of key %d", units, key)
		}
	})
	if r.store.Config().Optimizer.Method == ps.None {
		r.do(t, func() {
			if keys, sums, err := r.store.AppendSums(nil, nil); err != nil || len(keys) > 0 {
				t.Errorf("the step, in which nobody has pushed, has keys %v with sums %v", keys, sums)
			}
		})
	}
}

// TestRefusedFrameIsNotAppliedLater has frames refused for what the server holds: a sum out of
// range, no room for a row. When the reason is gone, the network delivers its copies of all of
// them.
func TestRefusedFrameIsNotAppliedLater(t *testing.T) {
	sgd, none := ps.Optimizer{Method: ps.SGD, LearningRate: 1}, ps.Optimizer{Method: ps.None}
	half := []float32{1 << 16, 1 << 16, 1 << 16}
	for name, c := range map[string]struct {
		cfg    ps.Config
		keys   [2]uint64
		drop   bool // the step
		unsure bool // the first copy is late: its repetition is refused
		want   wire.Code
	}{
		"sum out of range":                    {ps.Config{Optimizer: sgd}, [2]uint64{1, 1}, false, false, wire.CodeOverflow},
		"sum out of range, repeated":          {ps.Config{Optimizer: sgd}, [2]uint64{1, 1}, false, true, wire.CodeOverflow},
		"rows full":                           {ps.Config{MaxRows: 1, Optimizer: none}, [2]uint64{1, 2}, false, false, wire.CodeRowsFull},
		"rows full, repeated":                 {ps.Config{MaxRows: 1, Optimizer: none}, [2]uint64{1, 2}, false, true, wire.CodeRowsFull},
		"a dropped step":                      {ps.Config{Optimizer: sgd}, [2]uint64{1, 1}, true, false, wire.CodeOverflow},
		"a dropped step, repeated":            {ps.Config{Optimizer: sgd}, [2]uint64{1, 1}, true, true, wire.CodeOverflow},
		"a dropped step without an optimiser": {ps.Config{MaxRows: 1, Optimizer: none}, [2]uint64{1, 2}, true, false, wire.CodeRowsFull},
		"the same, repeated":                  {ps.Config{MaxRows: 1, Optimizer: none}, [2]uint64{1, 2}, true, true, wire.CodeRowsFull},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			r := newRowStore(t, c.cfg)
			w := r.newWorker(t)
			push := func(key uint64) error {
				ticket, err := w.Push(ctx, []uint64{key}, half)
				if err != nil {
					return err
				}
				return ticket.Wait(ctx)
			}
			if err := push(c.keys[0]); err != nil {
				t.Fatal(err)
			}
			if c.unsure {
				r.link.holdNext()
			}
			err := push(c.keys[1])
			var p *PushError
			if !errors.As(err, &p) || !errors.Is(err, wire.Refusal{Code: c.want}) {
				t.Fatalf("error %v, want %v", err, c.want)
			}
			if p.Refused != 1 || p.Unknown != 0 {
				t.Errorf("refused %d, unknown %d: %v; a refused number stays refused", p.Refused, p.Unknown, err)
			}
			end := func() { r.store.Commit() }
			if c.drop {
				end = r.store.Drop
			}
			r.do(t, end)
			for _, payload := range r.link.copies() {
				r.link.deliver(payload, r.server.link.Local())
			}
			r.isEmpty(t)
			if st, err := r.server.Stats(ctx); err != nil || st.Applied != 1 {
				t.Errorf("%d frames applied, %v; want 1", st.Applied, err)
			}
		})
	}
}

// TestServerRemembersRefusals has frames refused for every reason that the server looks for after
// its filter, and repeats them, in all disguises, when the reason is gone: the answer stays. A
// frame that brings the number with other contents gets it, too. Covers do not show the number, and
// the frame behind it is answered although it is quiet.
func TestServerRemembersRefusals(t *testing.T) {
	key := func(h wire.Header, key uint64, value float32) []byte {
		b := cold(h, testDim, value)
		rows := wire.PutRows(b, wire.TypeCold, 1, testDim)
		rows.SetKey(0, key)
		rows.SetRow(0, []float32{value, value, value})
		return b
	}
	full := ps.Config{MaxRows: 1, Optimizer: ps.Optimizer{Method: ps.None}}
	weights := ps.Config{Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}}
	for _, c := range []struct {
		name  string
		cfg   ps.Config
		frame func(wire.Header, uint32) []byte // of a store with the numbering
		want  wire.Refusal
	}{
		{"sum", weights, func(h wire.Header, _ uint32) []byte { return key(h, 1, 1<<16) }, wire.Refusal{Code: wire.CodeOverflow}},
		{"rows full", full, func(h wire.Header, _ uint32) []byte { return key(h, 2, 1) }, wire.Refusal{Code: wire.CodeRowsFull, Value: 1}},
		{"row number", weights, func(h wire.Header, n uint32) []byte { return coldAt(h, n, 2) }, wire.Refusal{Code: wire.CodeRowNumber, Value: 1}},
		{"value", weights, func(h wire.Header, _ uint32) []byte { return key(h, 1, 1<<20) }, wire.Refusal{Code: wire.CodeOverflow}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRowStore(t, c.cfg)
			to := client{t, r.link.memLink, r.server.link.Local()}
			h := wire.Header{Type: wire.TypeCold, Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: 1}
			with := func(seq uint32, flags wire.Flags) wire.Header { h := h; h.Seq, h.Flags = seq, flags; return h }
			if got := to.ask(key(h, 1, 1<<16)); refusalOf(t, got) != (wire.Refusal{}) {
				t.Fatalf("the first frame: %v", refusalOf(t, got))
			}
			var numbering uint32
			r.do(t, func() { numbering = r.store.Find(nil, nil) })
			if got := refusalOf(t, to.ask(c.frame(with(2, wire.FlagQuiet), numbering))); got != c.want {
				t.Fatalf("refused with %+v, want %+v", got, c.want)
			}
			r.do(t, func() { r.store.Commit() }) // now the sum fits
			if c.cfg.MaxRows == 0 {
				if got := refusalOf(t, to.ask(key(with(3, 0), 7, 1))); got != (wire.Refusal{}) { // now row 2 exists
					t.Fatal(got)
				}
			}
			for _, flags := range []wire.Flags{0, wire.FlagRetx, wire.FlagQuiet, wire.FlagRetx | wire.FlagCover} {
				frame := c.frame(with(2, flags), numbering)
				frame[1] = byte(flags)
				if got := refusalOf(t, to.ask(frame)); got != c.want {
					t.Errorf("a copy with flags %v: %+v, want %+v", flags, got, c.want)
				}
			}
			if got := refusalOf(t, to.ask(key(with(2, 0), 1, 1))); got != c.want {
				t.Errorf("the number with other contents: %+v, want %+v", got, c.want)
			}
			answer := to.ask(key(with(3, wire.FlagQuiet), 1, 1))
			head, err := wire.ParseHeader(answer)
			if err != nil || head.Type != wire.TypeAck || head.Flags&wire.FlagCover == 0 {
				t.Fatalf("the frame behind it, which is quiet: % x, %v; want a cover", answer, err)
			}
			// Bit i is frame 3 + CoverAhead - i.
			for seq, want := range map[uint32]bool{1: true, 2: false, 3: true} {
				if shown := wire.Cover(answer, head)>>(3+wire.CoverAhead-seq)&1 != 0; shown != want {
					t.Errorf("frame %d is covered: %v, want %v", seq, shown, want)
				}
			}
		})
	}
}

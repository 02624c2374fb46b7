// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// TestRowNumbersOfAnotherServer replaces a server by another one, at its address and with its
// epochs, whose rows are in a different order. A worker's frames by the first one's numbers are
// sent again by key.
func TestRowNumbersOfAnotherServer(t *testing.T) {
	ctx := deadline(t)
	first, stop := storeServer(t, "127.0.0.1:0", nil)
	l, w := workerOf(ctx, t, first)
	keys := make([]uint64, 300)
	grads := make([]float32, len(keys)*testDim)
	for i := range keys {
		keys[i] = uint64(i)
		grads[i*testDim] = float32(i)
	}
	p, err := w.Prepare(keys)
	if err != nil {
		t.Fatal(err)
	}
	pushed := func() (s WorkerStats) {
		ticket, err := p.Push(ctx, grads)
		if err == nil {
			err = ticket.Wait(ctx)
		}
		if err == nil { // otherwise they arrive some time later
			err = p.Locate(ctx)
		}
		if err == nil {
			s, err = w.Stats(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pushed()
	if s := pushed(); s.RowsAt != 300 {
		t.Fatalf("%d rows by number", s.RowsAt)
	}
	stop()
	backwards := make([]uint64, 300)
	for i := range keys {
		backwards[i] = uint64(299 - i)
	}
	second, _ := storeServer(t, first.link.Local().AddrPort().String(), backwards)
	if err := second.Admit(ctx, 1, l.Local().AddrPort(), testServerEpoch); err != nil {
		t.Fatal(err)
	}
	// The window check of the new server sees a worker that is not ahead by more than a window.
	if s := pushed(); s.RowsAt != 600 || s.Renamed != 300 || s.Refusals[wire.CodeNumbering] == 0 {
		t.Errorf("%d rows by number, %d by key after that, refusals %v", s.RowsAt, s.Renamed, s.Refusals)
	}
	if s := pushed(); s.RowsAt != 900 || s.Renamed != 300 {
		t.Errorf("%d rows by number, %d by key after that", s.RowsAt, s.Renamed)
	}
	sums := map[uint64]int64{}
	err = second.Do(ctx, func() {
		for key, row := range second.cfg.Handler.(*ps.Store).Pending() {
			sums[key] = row[0] >> -ps.DefaultExp
		}
	})
	for key := range keys {
		if err != nil || sums[uint64(key)] != 2*int64(key) {
			t.Fatalf("key %d has the sum %d: two pushes of %d, %v", key, sums[uint64(key)], key, err)
		}
	}
}

// TestRefusalOfWhatIsSentAgain lets a server refuse a gradient that was first sent by the numbers
// of another server, and now by key: the push fails. Its frame counts as refused if nothing of it
// is applied, and as unknown if another frame by key carried a part that is applied.
func TestRefusalOfWhatIsSentAgain(t *testing.T) {
	const rows = 300
	for name, c := range map[string]struct {
		key              int
		refused, unknown int
	}{
		"a part is applied":  {0, 0, 1},
		"nothing is applied": {rows - 1, 1, 0}, // of the last frame, whose rows fit one by key
	} {
		t.Run(name, func(t *testing.T) {
			ctx := deadline(t)
			first, stop := storeServer(t, "127.0.0.1:0", nil)
			l, w := workerOf(ctx, t, first)
			keys, backwards := make([]uint64, rows), make([]uint64, rows)
			for i := range keys {
				keys[i], backwards[i] = uint64(i), uint64(rows-1-i)
			}
			p, err := w.Prepare(keys)
			if err != nil {
				t.Fatal(err)
			}
			grads := make([]float32, rows*testDim)
			push := func() error {
				ticket, err := p.Push(ctx, grads)
				if err != nil {
					t.Fatal(err)
				}
				return ticket.Wait(ctx)
			}
			if err := errors.Join(push(), p.Locate(ctx)); err != nil {
				t.Fatal(err)
			}
			stop()
			second, _ := storeServer(t, first.link.Local().AddrPort().String(), backwards)
			if err := second.Admit(ctx, 1, l.Local().AddrPort(), testServerEpoch); err != nil {
				t.Fatal(err)
			}
			grads[c.key*testDim] = math.MaxFloat32
			var failed *PushError
			err = push()
			s, statErr := w.Stats(ctx)
			if statErr != nil || s.Renamed != rows {
				t.Fatalf("%d rows were sent again by key, %v", s.Renamed, statErr)
			}
			if !errors.As(err, &failed) || failed.Refused != c.refused || failed.Unknown != c.unknown || failed.Unacked != 0 {
				t.Errorf("%v; want %d refused and %d unknown", err, c.refused, c.unknown)
			}
			var peer *PeerError
			if !errors.As(err, &peer) || !peer.KeyKnown || peer.Key != keys[c.key] {
				t.Errorf("the error does not name key %d: %v", keys[c.key], err)
			}
		})
	}
}

// storeServer starts a server whose store has rows for some keys.
func storeServer(t *testing.T, addr string, keys []uint64) (s *Server, stop func()) {
	t.Helper()
	store, err := ps.New(ps.Config{Dim: testDim, Exp: ps.DefaultExp})
	if err == nil {
		err = store.Push(keys, make([]float32, len(keys)*testDim))
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.OpenUDP(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	if s, err = NewServer(ServerConfig{Link: l, Job: testJob, Dim: testDim, Handler: store}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRowNumberBeyondTheTable pushes by numbers that the server has never assigned: the push fails,
// and the error names the key.
func TestRowNumberBeyondTheTable(t *testing.T) {
	ctx := deadline(t)
	o := clusterOptions{workers: 1}
	c := newCluster(t, udpFabric(t, o), o)
	w := c.workers[0]
	p, err := w.Prepare([]uint64{5, 6})
	if err != nil {
		t.Fatal(err)
	}
	grads := make([]float32, 2*testDim)
	push := func() error {
		ticket, err := p.Push(ctx, grads)
		if err != nil {
			t.Fatal(err)
		}
		return ticket.Wait(ctx)
	}
	if err := push(); err != nil {
		t.Fatal(err)
	}
	if err := p.Locate(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.server.Do(ctx, func() { c.ledger.keys = c.ledger.keys[:1] }); err != nil {
		t.Fatal(err)
	}
	err = push()
	var peer *PeerError
	var failed *PushError
	if !errors.Is(err, wire.Refusal{Code: wire.CodeRowNumber}) || !errors.As(err, &peer) || !peer.KeyKnown || peer.Key != 6 || !errors.As(err, &failed) || failed.Refused+failed.Unknown != 1 {
		t.Errorf("error %v of key %d", err, peer.Key)
	}
}

// TestNoRowNumbers lets the server refuse numbers, or assign none: pushes continue by key.
func TestNoRowNumbers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(h wire.Header) []byte
		finds  uint64 // in three pushes
	}{
		"refused": {func(h wire.Header) []byte {
			return wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: wire.CodeType})
		}, 1},
		"acknowledged": {func(h wire.Header) []byte { return wire.PutAck(make([]byte, wire.HeaderLen), h) }, 1},
		"too few":      {func(h wire.Header) []byte { return found(h, 1, 1) }, 1},
		"no row":       {func(h wire.Header) []byte { return found(h, 1, 1, 0) }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			w := idleWorker(t)
			server := w.flows[flowCold].to
			answer := func(b []byte) {
				w.receiveAnswer(&link.Packet{Packet: wire.Packet{Src: server, Payload: b}})
			}
			p, err := w.Prepare([]uint64{5, 6})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				o := &operation{keys: p.keys, values: make([]float32, 2*testDim), prepared: p.places, ticket: &Ticket{done: make(chan struct{})}}
				w.pushes = append(w.pushes, o)
				for w.askForRows() || w.packPushes() {
					if _, err := w.transmit(); err != nil {
						t.Fatal(err)
					}
					h := wire.Header{Job: testJob, Sender: 1, Epoch: testServerEpoch, Seq: w.flows[flowCold].window.NextSeq() - 1}
					if len(w.finding) > 0 {
						answer(c.answer(h))
					} else {
						answer(wire.PutAck(make([]byte, wire.HeaderLen), h))
					}
				}
				if err := o.ticket.err; err != nil {
					t.Error(err)
				}
			}
			if s := w.snapshot(); s.Finds != c.finds || s.RowsCold != 6 || s.RowsAt != 0 || len(w.finding) != 0 {
				t.Errorf("%d FIND frames, %d rows, %d of them by number", s.Finds, s.RowsCold, s.RowsAt)
			}
		})
	}
}

// A feed's push whose rows are sent again by key, and then refused, is the feed's affair: no Flush
// of others learns of it.
func TestRefusalOfAFeedsPushThatIsSentAgain(t *testing.T) {
	p := newPausable(t, time.Hour)
	b, err := p.Prepare([]uint64{5, 6})
	if err != nil {
		t.Fatal(err)
	}
	f := &testFeed{done: make(chan struct{}), left: 1}
	push := &fedPush{feed: f}
	push.Prepared, push.Values, push.Owner = b, make([]float32, 2*testDim), push
	locate := numbersSearch(b.places.ColdRows())
	p.acceptOperation(locate)
	p.Hand(&push.Request)
	refuse := func(h wire.Header, code wire.Code) {
		p.answerWith(wire.PutError(make([]byte, wire.ErrorLen), h, wire.Refusal{Code: code}))
	}
	b.places.ColdRows().SetNumbers(&locate.find.rows)
	locate.find.rows.Numbers[0], locate.find.rows.Numbers[1] = 1, 2
	for range 4 {
		if _, err := p.turn(); err != nil {
			t.Fatal(err)
		}
		for _, h := range arrived(t, p.server) {
			switch h.Type {
			case wire.TypeFind:
				p.answerWith(found(h, 1, 0, 0))
			case wire.TypeColdAt:
				refuse(h, wire.CodeNumbering)
			case wire.TypeCold:
				refuse(h, wire.CodeRowsFull)
			}
		}
	}
	if push.settled != 1 || !errors.Is(push.err, wire.Refusal{Code: wire.CodeRowsFull}) {
		t.Fatalf("settled %d times, %v", push.settled, push.err)
	}
	if p.refusal != nil {
		t.Errorf("the next Flush returns %v", p.refusal)
	}
}

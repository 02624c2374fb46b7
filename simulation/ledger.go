// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"math"
	"math/bits"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// ledger knows what must be true of a life. It follows the frames, not the product's state: it
// reads a frame's gradients from its payload, and a copy of it must be applied unless one was
// before.
//
// Every pushed gradient is a different number, so a frame identifies its push.
type ledger struct {
	life    *workersLife
	grads   gradients
	frames  frames
	sums    []int64 // by parameter: everything that was applied, wherever it is now
	index   map[uint64]int
	keys    []uint64 // of the rows that are pushed; hot ones first, by rank
	dim     int
	row     []float32
	plain   []byte
	members map[*world.Host]map[uint16]admission // by sender
	numbers map[rowNumber]int                    // rows, by the numbers that the server has assigned
	asked   map[*world.Host][]expectation        // by the last payloads
	applied int                                  // frames

	// The store: committed sums, and the weights after each commit.
	committed []int64
	held      []int64 // by all, at the last comparison
	weights   []float32
	history   [][]version // by row

	// The banks of the job, and what counts in them.
	banks [2][]int64
	spent *aggregator.Bank // of an applied harvest, until it is cleared
}

// receiver is the [world.Watcher] of a server or the aggregator.
type receiver struct {
	ledger *ledger
	host   *world.Host
}

// Sends does nothing: receivers answer only.
func (r receiver) Sends(wire.Endpoint, []byte) {}

// Gets enters what the receiver has to apply.
func (r receiver) Gets(pkts []link.Packet, _ bool) {
	r.ledger.enterFrames(r.host, pkts)
	r.ledger.life.misreadPages(pkts)
}

// Answers compares its answers.
func (r receiver) Answers(pkts []link.Packet) { r.ledger.checkAnswers(r.host, pkts) }

// Closes does nothing.
func (r receiver) Closes([]link.Packet) {}

// frame is the record of a frame.
type frame struct {
	id      frameID
	kind    wire.Type
	payload []byte  // without the flags that a repetition changes
	grads   []int32 // numbers
	push    *push   // of the first gradient
	applied bool
	sent    int // by its sender
	coded   bool

	// The content of a frame by number is sent again by key, if the numbers are no longer valid.
	numbering uint32
	refused   bool // refused for its numbering, with all copies
	again     bool // repeats the content of another one

	denied wire.Code // refused for what the receiver held, with all copies
}

type admission struct {
	epoch uint16
	from  wire.Endpoint
}

// expectation is the required answer to a payload.
type expectation struct {
	frame   *frame
	before  *frame // has the number before
	fresh   bool   // it is applied, unless the answer is a refusal for what the receiver holds
	refused bool   // it must be refused
	quiet   bool   // it may remain unanswered
	late    bool   // it may be treated as already applied
}

// version is a row's weights from a moment on.
type version struct {
	from int64 // step of the life
	row  []float32
}

const (
	// gradExp makes the largest gradient 4 and a sum of 2^15 of them fit the default exponent.
	gradExp  = -22
	gradUnit = 1.0 / (1 << -gradExp)
	maxGrads = 1 << 24
)

func newLedger(life *workersLife) *ledger {
	p := &life.plan
	l := &ledger{
		life: life, dim: p.dim, grads: gradients{next: 1}, frames: frames{flows: map[flowID]*flow{}},
		index: map[uint64]int{}, row: make([]float32, p.dim),
		members: map[*world.Host]map[uint16]admission{}, numbers: map[rowNumber]int{}, asked: map[*world.Host][]expectation{},
	}
	l.keys = life.rows.pushedKeys()
	for i := range p.cold {
		l.keys = append(l.keys, 1<<40*uint64(i+1))
	}
	for i, key := range l.keys {
		l.index[key] = i
	}
	n := len(l.keys) * p.dim
	l.sums, l.committed, l.held, l.weights = make([]int64, n), make([]int64, n), make([]int64, n), make([]float32, n)
	l.history = make([][]version, len(l.keys))
	return l
}

// gradientOf returns a gradient for a parameter that no other push has.
func (l *ledger) gradientOf(p *push, param int, negative bool) float32 {
	n := l.grads.addGradient(gradient{push: p, param: int32(param), negative: negative})
	g := float32(n) * gradUnit
	if negative {
		return -g
	}
	return g
}

// number is the inverse of gradientOf.
func number(g float32) int { return int(math.Abs(float64(g)) / gradUnit) }

// recordSent records that a frame leaves a worker. It ignores answers.
func (l *ledger) recordSent(from, to *world.Host, payload []byte) {
	h, err := wire.ParseHeader(payload)
	if err != nil {
		l.life.Fail("%s sends a payload without a header: %v", from.Name(), err)
		return
	}
	if !world.IsRequest(h.Type) {
		return
	}
	id := frameID{flowID{to, h.Sender, h.Epoch}, h.Seq}
	l.plain = append(l.plain[:0], payload...)
	plain := l.plain
	h.Flags &^= wire.FlagRetx | wire.FlagQuiet | wire.FlagCover
	h.Put(plain)
	f := l.frames.frameAt(id)
	if f == nil {
		f = &frame{id: id, kind: h.Type, payload: bytes.Clone(plain)}
		if !l.frames.addFrame(f) {
			l.life.Fail("sender %d, epoch %d, gives a frame the number %d", h.Sender, h.Epoch, h.Seq)
			return
		}
		l.readFrame(f, h)
	}
	f.sent++
	if !bytes.Equal(f.payload, plain) {
		l.life.Fail("frame %d of sender %d, epoch %d, leaves with other contents than before", h.Seq, h.Sender, h.Epoch)
	}
}

// readFrame reads the gradients of a frame.
func (l *ledger) readFrame(f *frame, h wire.Header) {
	add := func(param int, g float32) {
		n := number(g)
		if n == 0 || n >= l.grads.next || int(l.grads.gradientAt(n).param) != param {
			l.life.Fail("frame %d of sender %d holds the gradient %g for parameter %d, which was not pushed",
				f.id.seq, f.id.sender, g, param)
			return
		}
		f.grads = append(f.grads, int32(n))
		of := l.grads.gradientAt(n)
		f.push = of.push
		f.again = f.again || of.again
		if last := len(f.push.frames) - 1; last < 0 || f.push.frames[last] != f {
			f.push.frames = append(f.push.frames, f)
		}
	}
	switch h.Type {
	case wire.TypeHot:
		layout := packer.LaneAligned
		if h.Flags&wire.FlagDense != 0 {
			layout = packer.Dense
		}
		stripes, err := wire.StripeCount(f.payload)
		if err != nil {
			l.life.Fail("frame %d of sender %d: %v", f.id.seq, f.id.sender, err)
			return
		}
		f.grads = make([]int32, 0, stripes*wire.Lanes)
		for i := range stripes {
			s := wire.StripeAt(f.payload, i)
			for mask := s.Mask(); mask != 0; mask &= mask - 1 {
				lane := bits.TrailingZeros32(mask)
				add(l.life.rows.paramAt(int(layout.Rank(s, lane))), math.Float32frombits(s.Bits(lane)))
			}
		}
	case wire.TypeCold, wire.TypeColdAt:
		rows, err := coldRows(f.payload, h, l.life.plan.codec)
		if err != nil || rows.Dim != l.dim {
			l.life.Fail("frame %d of sender %d, of dimension %d: %v", f.id.seq, f.id.sender, rows.Dim, err)
			return
		}
		f.coded = h.Flags&wire.FlagCoded != 0
		row := l.row
		f.grads = make([]int32, 0, rows.Count*l.dim)
		for i := range rows.Count {
			rows.Row(i, row)
			at, ok := l.rowOf(f, h.Type, rows, i)
			if ok && l.life.servers[l.life.rowSplit().Owner(l.life.hot, l.keys[at])].host != f.id.to {
				l.life.Fail("frame %d of sender %d brings %s the row %d, which is another server's",
					f.id.seq, f.id.sender, f.id.to.Name(), l.keys[at])
			}
			for c, g := range row {
				if ok {
					add(at*l.dim+c, g)
				}
			}
		}
	}
}

// admitSender records that a receiver accepts frames of a sender from now on.
func (l *ledger) admitSender(at *world.Host, sender, epoch uint16, from wire.Endpoint) {
	if l.members[at] == nil {
		l.members[at] = map[uint16]admission{}
	}
	l.members[at][sender] = admission{epoch, from}
}

// enterFrames records a frame that a receiver gets, and decides the required result.
func (l *ledger) enterFrames(at *world.Host, pkts []link.Packet) {
	l.asked[at] = l.asked[at][:0]
	for _, p := range pkts {
		h, err := wire.ParseHeader(p.Payload)
		id := frameID{flowID{at, h.Sender, h.Epoch}, h.Seq}
		f := l.frames.frameAt(id)
		if p.Src.Port == world.StrangePort {
			f = &frame{id: id, kind: h.Type}
			l.asked[at] = append(l.asked[at], expectation{frame: f, refused: true})
			continue
		}
		if err != nil || f == nil {
			l.life.Fail("%s is given a frame that nothing has sent: %+v, %v", at.Name(), h, err)
			continue
		}
		a, known := l.members[at][h.Sender]
		e := expectation{frame: f, refused: !known || a.epoch != h.Epoch || a.from.AddrPort() != p.Src.AddrPort()}
		if !e.refused && !f.applied && f.kind == wire.TypeColdAt &&
			f.numbering != l.life.serverAt(at).handler.Find(nil, nil) {
			e.refused, e.late = true, l.hasOutlived(f)
			l.refuseNumbers(f)
		}
		if f.denied != 0 {
			e.refused, e.late = true, e.late || l.hasOutlived(f)
		}
		id.seq--
		e.before = l.frames.frameAt(id)
		e.quiet = h.Flags&wire.FlagQuiet != 0 && !e.refused && !f.applied &&
			(h.Seq == wire.FirstSeq || e.before != nil && (e.before.applied || world.IsQuery(e.before.kind)))
		e.fresh = !e.refused && !f.applied && !world.IsQuery(f.kind)
		l.asked[at] = append(l.asked[at], e)
		if e.fresh {
			l.applyFrame(at, f)
		}
	}
}

// applyFrame enters the gradients of a frame.
func (l *ledger) applyFrame(at *world.Host, f *frame) {
	f.applied = true
	if f.kind == wire.TypeColdAt {
		l.life.result.ByNumber++
	}
	if f.coded {
		l.life.result.Coded++
	}
	l.applied++
	for _, n := range f.grads {
		g := l.grads.gradientAt(int(n))
		g.applied++
		l.sums[g.param] += g.inUnits(int(n), l.life.plan.exp)
		if g.applied > 1 {
			l.life.Fail("gradient %d comes to %s in two frames", n, at.Name())
		}
	}
}

// checkAnswers compares a receiver's answers with the required ones.
func (l *ledger) checkAnswers(at *world.Host, pkts []link.Packet) {
	if l.life.Failed() {
		return
	}
	asked := l.asked[at]
	if len(asked) != len(pkts) {
		l.life.Fail("%s answers %d payloads of %d", at.Name(), len(pkts), len(asked))
		return
	}
	for i, e := range asked {
		f := e.frame
		if e.quiet && pkts[i].Reply == 0 && (e.before == nil || e.before.denied == 0) {
			continue
		}
		h, err := wire.ParseHeader(pkts[i].Payload[:pkts[i].Reply])
		if err == nil && h.Type == wire.TypeError && !e.refused {
			l.denyFrame(at, e, pkts[i].Payload[:pkts[i].Reply])
		}
		want := wire.TypeAck
		switch {
		case e.refused || f.denied != 0:
			want = wire.TypeError
		case f.kind == wire.TypePull:
			want = wire.TypeRows
		case f.kind == wire.TypeFind:
			want = wire.TypeFound
		}
		if e.late && h.Type == wire.TypeAck {
			want = wire.TypeAck
		}
		if err != nil || h.Type != want || h.Sender != f.id.sender || h.Epoch != f.id.epoch || h.Seq != f.id.seq {
			l.life.Fail("%s answers frame %d of sender %d, epoch %d, with %v (sender %d, epoch %d, number %d), not with %v",
				at.Name(), f.id.seq, f.id.sender, f.id.epoch, h.Type, h.Sender, h.Epoch, h.Seq, want)
			return
		}
		if h.Type == wire.TypeFound {
			l.recordNumbers(f, pkts[i].Payload[:pkts[i].Reply])
		}
		for cover := wire.Cover(pkts[i].Payload, h); cover != 0; cover &= cover - 1 {
			id := f.id
			id.seq += wire.CoverAhead - uint32(bits.TrailingZeros64(cover))
			other := l.frames.frameAt(id)
			if other != nil && !world.IsQuery(other.kind) && !other.applied && !l.hasOutlived(other) {
				l.life.Fail("%s acknowledges frame %d of sender %d, epoch %d, which is not applied, with frame %d",
					at.Name(), id.seq, id.sender, id.epoch, f.id.seq)
			}
		}
	}
}

// compareSums compares the contents of banks, harvest and store with the applied gradients.
func (l *ledger) compareSums() {
	l.held = append(l.held[:0], l.committed...)
	held := l.held
	for _, v := range l.life.servers {
		for key, sums := range v.store.Pending() {
			at, ok := l.index[key]
			if !ok {
				l.life.Fail("the store of %s has a row %d", v.host.Name(), key)
				return
			}
			for c, n := range sums {
				held[at*l.dim+c] += n
			}
		}
	}
	for _, bank := range l.banks {
		if l.spent != nil && &bank[0] == &l.spent.Slots[0] {
			continue // the store has it
		}
		l.life.rows.eachSum(bank, func(param int, n int64) { held[param] += n })
	}
	for param, n := range held {
		if n == l.sums[param] {
			continue
		}
		l.life.Fail("key %d, column %d: banks, harvest and store hold %d units, but the frames that were applied have %d",
			l.keys[param/l.dim], param%l.dim, n, l.sums[param])
		return
	}
}

// commitRows follows a commit of the store, by which the open step, pending, enters the weights.
func (l *ledger) commitRows(pending map[int][]int64) {
	for at, sums := range pending {
		row := make([]float32, l.dim)
		for c, n := range sums {
			i := at*l.dim + c
			l.committed[i] += n
			l.weights[i] -= float32(learningRate * (float32(n) * float32(math.Ldexp(1, l.life.plan.exp))))
			row[c] = l.weights[i]
		}
		l.history[at] = append(l.history[at], version{l.life.Step(), row})
	}
}

// wasHeld compares a pulled row with the store's contents during the pull.
func (l *ledger) wasHeld(key uint64, since int64, row []float32) bool {
	at := l.index[key]
	versions := l.history[at]
	for i := len(versions) - 1; i >= 0; i-- {
		if equal(versions[i].row, row) {
			return true
		}
		if versions[i].from < since {
			return false
		}
	}
	return false
}

func equal(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

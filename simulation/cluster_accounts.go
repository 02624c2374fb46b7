// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/hex"
	"maps"
	"math/bits"
	"slices"

	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// accounts is the ledger of a cluster. It follows the frames that receivers get and their answers,
// and records for each in which bank, harvest or commit it must be. After each step of a receiver,
// the ledger compares the receiver's state.
type accounts struct {
	c      *clusterLife
	cfg    ps.Config
	hot    *packer.HotSet
	format fixedpoint.Format

	frames map[frameID]*entry
	order  []*entry // in the order of sending
	sent   map[*process][]*entry
	asked  map[*world.Host][]link.Packet
	plane  *planeAccount        // of the instance of the job at its aggregator
	left   map[*world.Host]bool // where earlier servers' instances of the job may be, when a successor has one elsewhere
	next   *planeAccount        // of another one, which has not begun
	store  *storeAccount        // of the newest server
	// dropped is the instance that the last rewind has ended.
	dropped *planeAccount
	files   []fileAccount // written checkpoints
	owed    debts
	former  map[sentFlow]bool // nothing that is sent in them counts any more, which their senders may not know yet
	// reporter is the process of each worker, by role, that has reported last.
	reporter map[string]*process

	want map[uint64][]int64 // required content of the open step, as of the last comparison
	news bool               // the shadow has changed since
}

// accountant is the [world.Watcher] of the switch or the server.
type accountant struct {
	*accounts
	host *world.Host
}

// Sends does nothing: receivers answer only.
func (r accountant) Sends(wire.Endpoint, []byte) {}

// Gets records the frames that the receiver gets.
func (r accountant) Gets(pkts []link.Packet, _ bool) { r.recordFrames(r.host, pkts) }

// Answers enters the frames that the receiver acknowledges. A harvest of a process that ends may
// run beside it.
func (r accountant) Answers(pkts []link.Packet) {
	r.c.Mu.Lock()
	defer r.c.Mu.Unlock()
	r.enterAnswers(r.host, pkts)
}

// Closes does nothing.
func (r accountant) Closes([]link.Packet) {}

// entry is one frame with gradients.
type entry struct {
	id      frameID
	from    *process
	worker  uint16
	payload []byte
	flushed bool   // its worker has reported it acknowledged
	claim   uint64 // number of steps after which that was, as reported to its server; 0: not yet
	applied bool
	store   *storeAccount // store that has it, from a commit on
	version int
	idle    bool // its step changed nothing, so its commit is not visible
	loose   bool // it brings hot rows to the server
}

// storeAccount is the required state of one server's store.
type storeAccount struct {
	of      *process
	store   *ps.Store // the product's
	shadow  *ps.Store // the accounts' sums
	base    *fileAccount
	number  [2]uint64 // of the last harvest
	pending []*entry  // in the open step
	version int       // commits
	hashes  [][32]byte
	fenced  bool                  // it takes no harvests any more
	taken   map[*process][]*entry // frames that the lost switch had acknowledged, and no harvest has
	settled map[*process]bool     // workers whose calls say that they have sent these to the server
}

func newAccounts(c *clusterLife) (a *accounts, err error) {
	a = &accounts{
		c: c, frames: map[frameID]*entry{}, sent: map[*process][]*entry{}, asked: map[*world.Host][]link.Packet{},
		former: map[sentFlow]bool{}, want: map[uint64][]int64{}, owed: debts{}, reporter: map[string]*process{},
		left: map[*world.Host]bool{},
	}
	if a.cfg, err = node.StoreConfig(&c.cfg); err != nil {
		return nil, err
	}
	if a.format, err = fixedpoint.NewFormat(a.cfg.Exp); err != nil {
		return nil, err
	}
	a.hot, err = packer.LoadHotSet(c.cfg.Job.HotSet)
	return a, err
}

// recordSent records that a process sends a frame.
func (a *accounts) recordSent(from, to *world.Host, payload []byte) {
	h, err := wire.ParseHeader(payload)
	if err != nil || h.Job != job || from.Link() == nil || to == nil || h.Type != wire.TypeHot && h.Type != wire.TypeCold {
		return
	}
	if h.Type == wire.TypeHot && a.store != nil && a.store.fenced {
		return // its worker will send it as rows
	}
	id := frameID{flowID{to, h.Sender, h.Epoch}, h.Seq}
	for _, p := range a.c.procs {
		if p.Host() != from || a.former[sentFlow{p, id.flowID}] {
			continue
		}
		// A restarted receiver draws its first epoch, which may be that of a worker's earlier life.
		if known := a.frames[id]; known == nil || known.from != p {
			e := &entry{id: id, from: p, worker: h.Sender, payload: slices.Clone(payload)}
			a.frames[id] = e
			a.order = append(a.order, e)
			a.sent[p] = append(a.sent[p], e)
		}
	}
}

// recordFrames records a frame that a receiver gets.
func (a *accounts) recordFrames(at *world.Host, pkts []link.Packet) {
	a.asked[at] = append(a.asked[at][:0], pkts...)
	for i := range a.asked[at] { // the answer overwrites it
		a.asked[at][i].Payload = slices.Clone(pkts[i].Payload)
	}
}

// enterAnswers enters the frames that a receiver has applied: those that it acknowledges for the
// first time. Afterwards the receiver's state is compared.
func (a *accounts) enterAnswers(at *world.Host, pkts []link.Packet) {
	for i, asked := range a.asked[at] {
		h, err := wire.ParseHeader(asked.Payload)
		if err != nil || h.Job != job || h.Type != wire.TypeHot && h.Type != wire.TypeCold {
			continue
		}
		e := a.frames[frameID{flowID{at, h.Sender, h.Epoch}, h.Seq}]
		if asked.Src.Port == world.StrangePort {
			if answer, err := wire.ParseHeader(pkts[i].Payload[:pkts[i].Reply]); err != nil || answer.Type != wire.TypeError {
				a.c.Fail("%s does not refuse frame %d that a stranger sends for worker %d", at.Name(), h.Seq, h.Sender)
			}
			continue
		}
		if e == nil {
			continue // of an ended process
		}
		if pkts[i].Reply > 0 {
			answer := pkts[i].Payload[:pkts[i].Reply]
			ack, err := wire.ParseHeader(answer)
			if err != nil || ack.Type == wire.TypeError {
				continue
			}
			for cover := wire.Cover(answer, ack); cover != 0; cover &= cover - 1 {
				id := e.id
				id.seq += wire.CoverAhead - uint32(bits.TrailingZeros64(cover))
				inBatch := func(p link.Packet) bool {
					later, _ := wire.ParseHeader(p.Payload)
					return p.Src.Port != world.StrangePort && later.Job == job &&
						later.Seq == id.seq && later.Sender == id.sender && later.Epoch == id.epoch
				}
				if other := a.frames[id]; other != nil && !other.applied && !slices.ContainsFunc(a.asked[at][i:], inBatch) {
					a.c.Fail("%s acknowledges frame %d of worker %d, which is not applied", at.Name(), id.seq, id.sender)
				}
			}
		}
		if !e.applied {
			e.applied = true
			a.enterFrame(at, e, h)
		}
	}
}

// enterFrame enters a frame.
func (a *accounts) enterFrame(at *world.Host, e *entry, h wire.Header) {
	s := a.c
	units := func(bits uint32) int64 {
		n, err := a.format.FromBits(bits)
		if err != nil {
			s.Fail("worker %d sends a gradient that no sum has room for: %v", e.worker, err)
		}
		return n
	}
	if isAggregator(at.Name()) {
		if a.left[at] && a.plane != nil && a.plane.of.Host() != at {
			// Workers of a server that has died are still admitted there, until the lease ends. They go back
			// to the checkpoint, so nothing that they send there counts.
			a.former[e.sentFlow()] = true
			a.forgetFrames(func(lost *entry) bool { return lost == e })
			return
		}
		if a.plane == nil || a.plane.of.Host() != at {
			s.Fail("the switch acknowledges frame %d of worker %d, and has no job", e.id.seq, e.worker)
			return
		}
		a.plane.current = append(a.plane.current, e)
		err := hotPairs(e.payload, h, func(rank int, bits uint32) {
			a.plane.held[rank] += units(bits)
			a.owed.payUnits(e.from, rank, units(bits))
		})
		if err != nil {
			s.Fail("worker %d sends %v", e.worker, err)
		}
		return
	}
	rows, err := coldRows(e.payload, h, a.c.cfg.Codec.Config())
	if err != nil || a.store == nil {
		s.Fail("the server acknowledges frame %d of worker %d: %v", e.id.seq, e.worker, err)
		return
	}
	if h.Flags&wire.FlagCoded != 0 {
		s.result.Coded++
	}
	a.store.pending = append(a.store.pending, e)
	for i := range rows.Count * rows.Dim {
		key, col, n := rows.Key(i/rows.Dim), i%rows.Dim, units(rows.Bits(i))
		a.addUnits(key, col, n)
		if row, hot := a.hot.Rank(key); hot {
			e.loose = true
			a.owed.payUnits(e.from, int(row)*rows.Dim+col, n)
		}
	}
}

func (a *accounts) addUnits(key uint64, col int, units int64) {
	a.news = true
	if err := a.store.shadow.AddSum(key, col, units); err != nil {
		a.c.Fail("%v", err)
	}
}

// hotPairs calls add for each pair of a HOT frame.
func hotPairs(payload []byte, h wire.Header, add func(rank int, bits uint32)) error {
	layout := packer.LaneAligned
	if h.Flags&wire.FlagDense != 0 {
		layout = packer.Dense
	}
	stripes, err := wire.StripeCount(payload)
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		for mask := s.Mask(); mask != 0; mask &= mask - 1 {
			lane := bits.TrailingZeros32(mask)
			add(int(layout.Rank(s, lane)), s.Bits(lane))
		}
	}
	return err
}

// recordFlush records that a worker reports all its frames acknowledged.
func (a *accounts) recordFlush(p *process) {
	a.c.Mu.Lock()
	defer a.c.Mu.Unlock()
	for _, e := range a.sent[p] {
		if !e.flushed && !e.applied && !p.Dead() {
			a.c.Fail("%s calls all that it has sent acknowledged, but frame %d to %s is not applied",
				p.Name(), e.id.seq, e.id.to.Name())
		}
		e.flushed = true
	}
	if st := a.store; st != nil && (st.settled[p] || !st.fenced && len(st.taken[p]) == 0) {
		a.checkPaid(p, "calls all that it has sent acknowledged")
	}
}

// openStore records the store of a server that is about to serve. The caller holds lock's file.
func (a *accounts) openStore(p *process, store *ps.Store) {
	s := a.c
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if p.Dead() {
		return
	}
	st := &storeAccount{of: p, store: store}
	instance, number := store.LastHarvest()
	st.number = [2]uint64{instance, number}
	var err error
	if data, ok := a.c.disk.Data(checkpointPath); !ok {
		st.shadow, err = ps.New(a.cfg)
	} else {
		st.shadow, _, err = readCheckpoint(data, a.cfg)
		for i := len(a.files) - 1; i >= 0 && st.base == nil; i-- {
			if slices.Equal(a.files[i].data, data) {
				st.base = &a.files[i]
			}
		}
	}
	if err != nil {
		s.Fail("the server opens a checkpoint that cannot be read: %v", err)
		return
	}
	if st.shadow.Hash() != store.Hash() {
		s.Fail("%s begins with other weights than its checkpoint has", p.Name())
	}
	a.store, a.news = st, true
	clear(a.owed)
	st.hashes = append(st.hashes, st.shadow.Hash())
	// Frames that are not in the checkpoint are lost, and trained again.
	a.endFlows()
	a.forgetFrames(func(e *entry) bool { return !st.holdsFrame(e) })
}

// holdsFrame reports whether a frame's gradients are in the weights of a server's store.
func (st *storeAccount) holdsFrame(e *entry) bool { return st.holdsAt(e, st.version) }

func (st *storeAccount) holdsAt(e *entry, version int) bool {
	for {
		switch {
		case e.store == nil:
			return false
		case e.store == st:
			return e.version <= version
		case st.base == nil:
			return false
		}
		st, version = st.base.store, st.base.version
	}
}

// compareState compares a receiver's state with the required one. All goroutines are blocked.
func (a *accounts) compareState(at *world.Host) {
	switch {
	case at == nil || a.c.Failed() || a.c.Over():
	case isAggregator(at.Name()):
		if a.plane != nil && a.plane.of.Host() == at {
			a.plane.compareBanks()
		}
	case at.Name() == theServer && a.store != nil && !a.store.of.Dead():
		a.compareStore()
	}
}

// takeHarvest enters the harvest that the server has applied since the last call.
func (a *accounts) takeHarvest() {
	st := a.store
	instance, number := st.store.LastHarvest()
	if now := [2]uint64{instance, number}; now != st.number {
		st.number = now
		if f := a.plane.takeHarvest(); f != nil {
			st.pending = append(st.pending, f.entries...)
			for rank, n := range f.sums {
				if n != 0 {
					a.addUnits(a.hot.Key(uint32(rank/a.cfg.Dim)), rank%a.cfg.Dim, n)
				}
			}
		}
	}
}

func (a *accounts) compareStore() {
	st, s := a.store, a.c
	a.takeHarvest()
	if a.news {
		a.want, a.news = pendingOf(st.shadow, a.want), false
	}
	want := a.want
	same := 0 // rows; compared in place, because this is done after each step of the server
	for key, sums := range st.store.Pending() {
		if row := want[key]; row != nil && slices.Equal(row, sums) {
			same++
		} else if !zero(sums) {
			same = -1
			break
		}
	}
	if same == len(want) {
		if same == 0 { // a commit without changes is not visible
			for _, e := range a.store.pending {
				e.idle = true
			}
			a.commitStep()
		}
		return
	}
	if held := pendingOf(st.store, map[uint64][]int64{}); len(held) > 0 {
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if !slices.Equal(want[key], held[key]) {
				s.Fail("key %d: the open step of %s holds %d, but the frames and harvests that it was given have %d",
					key, st.of.Name(), held[key], want[key])
				return
			}
		}
		s.Fail("the open step of %s holds rows that no frame and no harvest has", st.of.Name())
		return
	}
	st.version++
	a.planCheckpoint()
	a.commitStep()
	st.shadow.Commit()
	a.news = true
	row, other := make([]float32, a.cfg.Dim), make([]float32, a.cfg.Dim)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		st.store.Read([]uint64{key}, row)
		st.shadow.Read([]uint64{key}, other)
		if !equal(row, other) {
			s.Fail("key %d: %s holds the weights %v, but a commit of the frames and harvests that it was given gives %v",
				key, st.of.Name(), row, other)
			return
		}
	}
	st.hashes = append(st.hashes, st.shadow.Hash())
}

// commitStep adds the frames of the open step to the weights.
func (a *accounts) commitStep() {
	for _, e := range a.store.pending {
		e.store, e.version = a.store, a.store.version
	}
	a.store.pending = nil
}

// pendingOf fills out with the open step of a store: the store's memory, which the next addition or
// commit writes.
func pendingOf(s *ps.Store, out map[uint64][]int64) map[uint64][]int64 {
	clear(out)
	for key, sums := range s.Pending() {
		if !zero(sums) {
			out[key] = sums
		}
	}
	return out
}

func zero(sums []int64) bool {
	for _, n := range sums {
		if n != 0 {
			return false
		}
	}
	return true
}

// checkFinished checks the end of a worker that has completed its training.
func (a *accounts) checkFinished(p *process) {
	for _, e := range a.sent[p] {
		if !e.applied {
			a.c.Fail("%s has finished, but frame %d to %s is not applied", p.Name(), e.id.seq, e.id.to.Name())
			return
		}
	}
	if p.serving == a.c.serving {
		a.checkPaid(p, "has finished")
	}
}

// checkTraining checks the end of a training.
func (a *accounts) checkTraining(weights string, workers []*process) {
	s, st := a.c, a.store
	if hash := st.shadow.Hash(); hex.EncodeToString(hash[:]) != weights {
		s.Fail("the training ends with the weights %s, but those of its frames and harvests are %x", weights, hash)
	}
	for _, p := range workers {
		for _, e := range a.sent[p] {
			if !st.holdsFrame(e) {
				s.Fail("the training has ended, but frame %d of %s to %s is not in the weights", e.id.seq, p.Name(), e.id.to.Name())
				return
			}
		}
	}
}

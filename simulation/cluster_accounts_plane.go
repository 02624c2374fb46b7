// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// planeAccount is the required state of the banks of one job of the switch.
type planeAccount struct {
	c       *clusterLife
	of      *process
	job     uint16
	banks   [2][]int64 // the product's
	held    []int64    // applied and in a bank, by rank
	current []*entry   // since the last swap
	frozen  *frozen    // nil: no bank is harvested
	removed bool

	swapped map[flowID][]uint32 // numbers of the frames of all banks until the last swap
}

// frozen is the content of a bank that is harvested.
type frozen struct {
	sums    []int64
	entries []*entry
	taken   bool // by the server
}

// takeHarvest returns what a harvest brings to the server that it does not have yet, nil if
// nothing.
func (p *planeAccount) takeHarvest() *frozen {
	if p == nil || p.frozen == nil || p.frozen.taken {
		return nil
	}
	p.frozen.taken = true
	return p.frozen
}

// compareMarks compares the marks of the bank of the last swap with the frames that are in it and
// in the banks before it.
func (p *planeAccount) compareMarks(marks []aggregator.Mark) {
	named := make(map[flowID]*aggregator.Mark)
	numbers := make(map[uint16]bool)
	for i, m := range marks {
		named[flowID{p.of.Host(), m.Sender, m.Epoch}] = &marks[i]
		numbers[m.Sender] = true
	}
	for _, e := range p.frozen.entries {
		p.swapped[e.id.flowID] = append(p.swapped[e.id.flowID], e.id.seq)
		if !numbers[e.worker] {
			p.c.Fail("frame %d of worker %d was harvested without a mark of it", e.id.seq, e.worker)
		}
	}
	for flow, seqs := range p.swapped {
		m := named[flow]
		if m == nil { // its sender was withdrawn, or has another admission
			delete(p.swapped, flow)
			continue
		}
		bit := 0
		for _, word := range m.Applied {
			bit += bits.OnesCount64(word)
		}
		for _, seq := range seqs {
			if !m.Has(seq) {
				p.c.Fail("the mark of worker %d up to %d lacks frame %d, which was harvested", m.Sender, m.Newest, seq)
			}
			if m.Newest-seq < wire.DefaultWindow {
				bit--
			}
		}
		if m.Newest < wire.DefaultWindow {
			bit-- // number 0
		}
		if bit != 0 {
			p.c.Fail("the mark of worker %d up to %d has %d frames that were not harvested", m.Sender, m.Newest, bit)
		}
	}
}

// compareBanks compares the banks with the applied frames.
func (p *planeAccount) compareBanks() {
	if p == nil || p.removed || p.of.Dead() {
		return
	}
	for rank, n := range p.held {
		if is := p.banks[0][rank] + p.banks[1][rank]; is != n {
			p.c.Fail("rank %d: the banks of the switch hold %d units, but the frames that it has acknowledged have %d",
				rank, is, n)
			return
		}
	}
}

// watchedPlane is the data plane of a switch with accounts.
type watchedPlane struct {
	aggregator.Plane
	of    *process
	calls map[string]int // by request
}

func (w watchedPlane) AddJob(cfg aggregator.JobConfig) error {
	err := w.Plane.AddJob(cfg)
	if err != nil || cfg.ID != job {
		return err
	}
	p := &planeAccount{c: w.of.c, of: w.of, job: cfg.ID, swapped: make(map[flowID][]uint32)}
	for i := range p.banks { // the only way to get their addresses
		bank, err := w.Plane.Swap(cfg.ID)
		if err != nil {
			return err
		}
		p.banks[i] = bank.Slots
		if err := w.Plane.Clear(bank); err != nil {
			return err
		}
	}
	p.held = make([]int64, len(p.banks[0]))
	if former := w.of.c.accounts.formerAt(w.of); w.of.c.options.fault == keepsBanks && former != nil {
		for rank, n := range former.held {
			p.banks[0][rank] += n
		}
	}
	w.changeAccounts(func(a *accounts) { a.openPlane(p) })
	return nil
}

// formerAt returns the instance of the job that has ended at an aggregator, by a rewind or by the
// death of its server, or nil.
func (a *accounts) formerAt(at *process) *planeAccount {
	if p := a.plane; p != nil && p.of == at && p.removed {
		return p
	}
	if p := a.dropped; p != nil && p.of == at {
		return p
	}
	return nil
}

// openPlane enters an instance of the job at an aggregator. While the server takes the harvests of
// another one, it is prepared for later.
func (a *accounts) openPlane(p *planeAccount) {
	st := a.store
	if st != nil && !st.of.Dead() && !st.of.ended && !st.fenced && a.plane != nil && a.plane.of != p.of {
		a.next = p
		return
	}
	if a.plane != nil && a.plane.of.Host() != p.of.Host() {
		a.left[a.plane.of.Host()] = true
	}
	a.plane, a.next = p, nil
}

// changeAccounts changes the accounts, unless the process has ended.
func (w watchedPlane) changeAccounts(change func(*accounts)) {
	s := w.of.c
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !w.of.Dead() {
		change(w.of.c.accounts)
	}
}

// isBusy makes a call fail sometimes, before it does anything.
func (w watchedPlane) isBusy(call string) bool {
	s := w.of.c
	s.Mu.Lock()
	defer s.Mu.Unlock()
	w.calls[call]++
	if s.plan.kinds&Queue == 0 || s.Healed() || s.Over() ||
		s.options.named(fmt.Sprintf("%s %s %d", w.of.Name(), call, w.calls[call])).IntN(16) > 0 {
		return false
	}
	w.of.c.result.Busy++
	return true
}

func (w watchedPlane) RemoveSender(id, sender uint16) error {
	if w.isBusy(fmt.Sprintf("RemoveSender %d", sender)) {
		return aggregator.ErrBusy
	}
	return w.Plane.RemoveSender(id, sender)
}

func (w watchedPlane) RemoveJob(id uint16) error {
	if w.isBusy("RemoveJob") {
		return aggregator.ErrBusy
	}
	err := w.Plane.RemoveJob(id)
	w.changeAccounts(func(a *accounts) {
		if err == nil && id == job {
			delete(a.left, w.of.Host())
		}
		if p := a.plane; err == nil && p != nil && p.of == w.of && p.job == id {
			p.removed = true // its banks are no longer its own
		}
	})
	return err
}

func (w watchedPlane) Swap(id uint16) (*aggregator.Bank, error) {
	if w.isBusy("Swap") {
		return nil, aggregator.ErrBusy
	}
	bank, err := w.Plane.Swap(id)
	fault := w.of.c.options.fault
	if err == nil && id == theirJob && fault == givesTheirs {
		bank.Slots[0] += 1 << 16
	}
	if err == nil && id == job && len(bank.Marks) > 0 && fault == losesMark {
		bank.Marks[0].Applied[0] &^= 1
	}
	if err == nil && id == job && fault == forgetsWithdrawn {
		bank.Marks = slices.DeleteFunc(bank.Marks, func(m aggregator.Mark) bool {
			_, err := w.Plane.SenderCounters(id, m.Sender)
			return errors.Is(err, aggregator.ErrNoSender)
		})
	}
	w.changeAccounts(func(a *accounts) {
		if p := a.plane; p != nil && id == theirJob && fault == takesTheirs {
			p.banks[0][0]++
		}
		if p := a.plane; err == nil && p != nil && p.of == w.of && p.job == id {
			if bank.Frames > 0 {
				a.c.fence.countEvent(swaps)
			}
			p.compareBanks()
			p.frozen = &frozen{sums: slices.Clone(bank.Slots), entries: p.current}
			p.current = nil
			if int(bank.Frames) != len(p.frozen.entries) {
				w.of.c.Fail("a harvest of %d frames, of %d that were applied", bank.Frames, len(p.frozen.entries))
			}
			p.compareMarks(bank.Marks)
		}
	})
	return bank, err
}

func (w watchedPlane) Clear(bank *aggregator.Bank) error {
	if w.isBusy("Clear") {
		return aggregator.ErrBusy
	}
	w.changeAccounts(func(a *accounts) {
		p := a.plane
		if p == nil || p.of != w.of || p.job != bank.Job || p.frozen == nil {
			return
		}
		p.compareBanks()
		switch {
		case !p.frozen.taken:
			w.of.c.Fail("a bank is cleared although the server has not had its harvest")
		case !slices.Equal(p.frozen.sums, bank.Slots):
			w.of.c.Fail("a bank has changed while it was harvested")
		}
		for rank, n := range p.frozen.sums {
			p.held[rank] -= n
		}
		p.frozen = nil
	})
	return w.Plane.Clear(bank)
}

// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// TestTouched harvests a job of several pages on a device without jobs, in each arithmetic and
// layout: a bank says of the blocks to which frames were added, and of no others, that they were
// touched.
func TestTouched(t *testing.T, d Device) {
	t.Helper()
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.LUT, aggregator.Fixed} {
		for _, dense := range []bool{false, true} {
			testTouched(t, d, arithmetic, dense)
		}
	}
}

// touching is a job of which a test touches blocks.
type touching struct {
	t     *testing.T
	d     Device
	job   aggregator.JobConfig
	dense bool
	seq   uint32
}

// touchRanks gives the device a frame with a number for some ranks, a stripe for each.
func (u *touching) touchRanks(value uint32, want wire.Type, ranks ...int) {
	u.t.Helper()
	u.seq++
	p := make([]byte, wire.HotLen(len(ranks)))
	h := wire.Header{Type: wire.TypeHot, Job: u.job.ID, Sender: Sender(0).ID, Epoch: u.job.Epoch, Seq: u.seq}
	if u.dense {
		h.Flags |= wire.FlagDense
	}
	h.Put(p)
	for i, rank := range ranks {
		lane, slot := i, rank%aggregator.PageSlots
		if !u.dense {
			lane, slot = slot%wire.Lanes, slot/wire.Lanes
		}
		s := wire.StripeAt(p, i)
		s.SetPage(rank/aggregator.PageSlots, 1<<lane)
		s.SetSlot(lane, uint16(slot))
		s.SetBits(lane, value)
	}
	if i := len(ranks) - 1; want == wire.TypeAck { // a page that the job does not have, without pairs
		wire.StripeAt(p, i).SetPage(wire.MaxPages-1, 0)
	}
	e, err := wire.NewEnvelope(Host(0), Aggregator)
	if err != nil {
		u.t.Fatal(err)
	}
	frame, reply := append(make([]byte, e.Len()), p...), make([]byte, aggregator.MaxReply)
	e.Seal(frame)
	_, n, err := u.d.ProcessFrom(0, frame, reply)
	if err != nil {
		u.t.Fatal(err)
	}
	answer, err := wire.ParseFrame(reply[:n], wire.DefaultPort)
	if err != nil {
		u.t.Fatal(err)
	}
	if got, err := wire.ParseHeader(answer.Payload); err != nil || got.Type != want {
		u.t.Fatalf("%v, dense %v: ranks %v are answered with %+v, %v; want %v", u.job.Arithmetic, u.dense, ranks, got, err,
			want)
	}
}

// checkFrozen swaps the banks and checks what was touched in the frozen one.
func (u *touching) checkFrozen(what string, blocks ...int) *aggregator.Bank {
	u.t.Helper()
	b, err := u.d.Swap(u.job.ID)
	if err != nil {
		u.t.Fatal(err)
	}
	var got []int
	for i, touched := range b.Touched {
		if touched != 0 {
			got = append(got, i)
		}
	}
	where := fmt.Sprintf("%v, dense %v, %s", u.job.Arithmetic, u.dense, what)
	if len(b.Touched) != u.job.Blocks() || !slices.Equal(got, blocks) {
		u.t.Errorf("%s: of %d blocks %v are touched, want %v of %d", where, len(b.Touched), got, blocks, u.job.Blocks())
	}
	for rank, sum := range b.Slots {
		if sum != 0 && !slices.Contains(blocks, rank/aggregator.BlockSlots) {
			u.t.Errorf("%s: rank %d holds %d", where, rank, sum)
		}
	}
	return b
}

func testTouched(t *testing.T, d Device, arithmetic aggregator.Arithmetic, dense bool) {
	const last = 2*aggregator.PageSlots + 70 // the last block has 7 slots
	job := aggregator.JobConfig{ID: 5, Epoch: 7, Arithmetic: arithmetic, Exp: aggregator.DefaultExp(arithmetic)}
	job.Slots = last + 1
	const page, block = aggregator.PageBlocks, aggregator.BlockSlots
	u := &touching{t: t, d: d, job: job, dense: dense}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(d.AddJob(job))
	s := Sender(0)
	s.Epoch = job.Epoch
	must(d.AddSender(job.ID, s))
	const one = 0x3f800000
	must(d.Clear(u.checkFrozen("nothing")))
	u.touchRanks(one, wire.TypeAck, 63, 64, aggregator.PageSlots-1, 0)
	u.touchRanks(one, wire.TypeAck, aggregator.PageSlots, 5*block, last, 0)
	b := u.checkFrozen("the first bank", 0, 1, 5, page-1, page, 2*page+1)
	u.touchRanks(one, wire.TypeAck, 64, 7*block, 0) // into the other bank, while the first one is frozen
	must(d.Clear(b))
	u.touchRanks(one, wire.TypeAck, 2*aggregator.PageSlots+1, 0)
	must(d.Clear(u.checkFrozen("the second bank", 1, 7, 2*page)))
	must(d.Clear(u.checkFrozen("the first bank again")))
	must(d.Clear(u.checkFrozen("the second bank again")))

	u.touchRanks(one, wire.TypeError, 9*block, last+1) // beyond the job's
	want := []int{}
	if arithmetic == aggregator.Exact {
		const half = 0x47800000 // 2^16, of the range of a sum: 2^17
		u.touchRanks(half, wire.TypeAck, 3*block, 0)
		u.touchRanks(half, wire.TypeError, 4*block, 3*block) // the sum is out of range
		want = append(want, 3)
	}
	must(d.Clear(u.checkFrozen("after frames that were refused", want...)))
	must(d.Clear(u.checkFrozen("the other bank after frames that were refused")))
	must(d.RemoveJob(job.ID))

	job.Slots = aggregator.PageSlots
	must(d.AddJob(job))
	onePage, err := d.Swap(job.ID)
	must(err)
	if onePage.Touched != nil {
		t.Error("a job of one page says what was touched")
	}
	must(d.Clear(onePage))
	must(d.RemoveJob(job.ID))
}

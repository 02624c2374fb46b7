// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
)

// onEachCPU runs work at once on CPUs 0 and 1, each with its own device on the same program. The
// goroutines stay within lag steps of each other if they call the barrier before each step.
func onEachCPU(t *testing.T, a *Aggregator, work func(cpu int, d *device, barrier func(step int))) {
	t.Helper()
	const lag = 4
	if runtime.NumCPU() < 2 {
		t.Skip("two CPUs at once need two CPUs")
	}
	if procs := runtime.GOMAXPROCS(0); procs < 2 { // otherwise Go would run one goroutine at a time
		runtime.GOMAXPROCS(2)
		defer runtime.GOMAXPROCS(procs)
	}
	var at [2]atomic.Int64
	var wg sync.WaitGroup
	for cpu := range at {
		wg.Go(func() {
			defer at[cpu].Store(math.MaxInt64)
			// Never unpinned, so that the thread ends here.
			if _, err := sys.PinThread(cpu); err != nil {
				t.Errorf("pin to CPU %d: %v", cpu, err)
				return
			}
			work(cpu, &device{Aggregator: a}, func(step int) {
				at[cpu].Store(int64(step))
				for at[1-cpu].Load() < int64(step-lag) {
					runtime.Gosched()
				}
			})
		})
	}
	wg.Wait()
}

// denseFrame returns a sealed frame of full stripes with random ranks.
func denseFrame(t *testing.T, rng *rand.Rand, sender int, job aggregator.JobConfig, seq uint32, flags wire.Flags, stripes, ranks int, value func() float32) []byte {
	t.Helper()
	e, err := wire.NewEnvelope(conformance.Host(sender), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(stripes))
	payload := frame[e.Len():]
	wire.Header{
		Type: wire.TypeHot, Flags: flags | wire.FlagDense, Job: job.ID,
		Sender: conformance.Sender(sender).ID, Epoch: job.Epoch, Seq: seq,
	}.Put(payload)
	for i := range stripes {
		s := wire.StripeAt(payload, i)
		s.SetPage(rng.IntN(job.Pages()), wire.LaneMask)
		for lane := range wire.Lanes {
			s.SetSlot(lane, uint16(rng.IntN(ranks)))
			s.SetValue(lane, value())
		}
	}
	e.Seal(frame)
	return frame
}

// Both CPUs get every frame, so each frame is a duplicate that races with its
// original.
func TestCPUsApplyEachFrameOnce(t *testing.T) {
	p := openPair(t)
	d := p.Device.(*device)
	job := aggregator.JobConfig{ID: 40, Epoch: 7, Exp: -46, Slots: 30}
	for _, plane := range []aggregator.Plane{p.Device, p.Model} {
		if err := conformance.StartJob(plane, job); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(5, 6))
	reply := make([]byte, aggregator.MaxReply)
	frames := make([][]byte, 20_000)
	for i := range frames {
		frames[i] = denseFrame(t, rng, i%conformance.Senders, job, uint32(i/conformance.Senders+1), 0, 1, 30,
			func() float32 { return float32(rng.NormFloat64()) })
		if v, _ := p.Model.Process(frames[i], reply); v.Action != aggregator.Reply {
			t.Fatalf("the model's verdict is %v", v)
		}
	}
	if c, err := p.Model.JobCounters(job.ID); err != nil || c.Applied != uint64(len(frames)) {
		t.Fatalf("the model has applied %d of %d frames, %v", c.Applied, len(frames), err)
	}
	onEachCPU(t, d.Aggregator, func(cpu int, d *device, barrier func(int)) {
		reply := make([]byte, aggregator.MaxReply)
		for i, frame := range frames {
			barrier(i)
			if _, _, err := d.Process(frame, reply); err != nil {
				t.Errorf("CPU %d: %v", cpu, err)
				return
			}
		}
	})
	c, err := d.JobCounters(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if c.Applied != uint64(len(frames)) || c.Duplicates+c.Raced != uint64(len(frames)) {
		t.Errorf("of %d frames, each sent twice, %d were applied, %d acknowledged again, %d dropped in a race",
			len(frames), c.Applied, c.Duplicates, c.Raced)
	}
	if err := p.Harvest(job.ID); err != nil {
		t.Error(err)
	}
}

// Harvests while frames arrive: every frame must be in exactly one bank, and be named by the marks
// since then. With several pages only the blocks that were touched are read and cleared.
func TestSwapsLoseNothing(t *testing.T) {
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed} {
		for _, pages := range []int{1, 3} {
			t.Run(fmt.Sprint(arithmetic, " ", pages, " pages"), func(t *testing.T) {
				swapWhileAdding(t, aggregator.JobConfig{ID: 40, Arithmetic: arithmetic, Exp: aggregator.DefaultExp(arithmetic),
					Slots: (pages-1)*aggregator.PageSlots + swapped, MaxStripes: wire.MaxStripes})
			})
		}
	}
}

// swapped is the number of slots of each page to which swapWhileAdding adds.
const swapped = 30

func swapWhileAdding(t *testing.T, job aggregator.JobConfig) {
	p := openPair(t)
	d := p.Device.(*device)
	for _, plane := range []aggregator.Plane{d, p.Model} {
		if err := conformance.StartJob(plane, job); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(8, 9))
	reply := make([]byte, aggregator.MaxReply)
	frames := make([][]byte, 20_000)
	for i := range frames {
		frames[i] = denseFrame(t, rng, i%2, job, uint32(i/2+1), 0, wire.MaxStripes, swapped,
			func() float32 { return float32(rng.NormFloat64()) })
		if job.Arithmetic == aggregator.Fixed { // so small that no sum saturates
			setPairs(frames[i], wire.MaxStripes, func() uint32 { return uint32(int32(rng.IntN(201) - 100)) })
		}
		p.Model.Process(frames[i], reply)
	}
	want, err := p.Model.Swap(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	sums := make([]int64, len(want.Slots))
	var count uint64
	harvests := 0
	harvest := func() {
		b, err := d.Swap(job.ID)
		if err != nil {
			t.Fatal(err)
		}
		b.All(func(first int, slots []int64) bool {
			for i, n := range slots {
				sums[first+i] += n
			}
			return true
		})
		count += b.Frames
		harvests++
		// No frame is refused, so a mark names all up to its newest.
		var named uint64
		for _, m := range b.Marks {
			named += uint64(m.Newest)
			for seq := m.Newest; seq > 0 && m.Newest-seq < wire.DefaultWindow; seq-- {
				if !m.Has(seq) {
					t.Fatalf("harvest %d: the mark of sender %d up to %d lacks %d", harvests, m.Sender, m.Newest, seq)
				}
			}
		}
		if named != count {
			t.Fatalf("harvest %d: the marks name %d frames, and %d have been harvested", harvests, named, count)
		}
		if err := d.Clear(b); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onEachCPU(t, d.Aggregator, func(cpu int, d *device, barrier func(int)) {
			reply := make([]byte, aggregator.MaxReply)
			for i := cpu; i < len(frames); i += 2 {
				v, _, err := d.Process(frames[i], reply)
				for v.Action == aggregator.Drop && err == nil { // as a sender does
					v, _, err = d.Process(frames[i], reply)
				}
				if err != nil || v.Action != aggregator.Reply {
					t.Errorf("CPU %d: verdict %v, error %v", cpu, v, err)
					return
				}
			}
		})
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		harvest()
	}
	harvest()
	if count != want.Frames || !slices.Equal(sums, want.Slots) {
		t.Errorf("%d harvests gave %d frames, want %d, or other sums", harvests, count, want.Frames)
	}
	t.Logf("%d harvests", harvests)
}

// Sums of table lookups depend on the order of frames, so each CPU gets its own slots. Otherwise
// the CPUs are independent of each other's order.
func TestCPUsAddByTables(t *testing.T) {
	p := openPair(t)
	job := aggregator.JobConfig{ID: 40, Arithmetic: aggregator.LUT, Slots: 16}
	for _, plane := range []aggregator.Plane{p.Device, p.Model} {
		if err := conformance.StartJob(plane, job); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(10, 11))
	var frames [2][][]byte
	reply := make([]byte, aggregator.MaxReply)
	for i := range 20_000 {
		cpu := i % 2
		frame := denseFrame(t, rng, cpu, job, uint32(i/2+1), 0, 1, job.Slots/2,
			func() float32 { return float32(rng.NormFloat64()) })
		s := wire.StripeAt(frame[wire.EnvelopeLen:], 0)
		for lane := range wire.Lanes {
			s.SetSlot(lane, 2*s.Slot(lane)+uint16(cpu)) // in the same cache lines
		}
		conformance.Repair(frame)
		frames[cpu] = append(frames[cpu], frame)
		p.Model.Process(frame, reply)
	}
	onEachCPU(t, p.Device.(*device).Aggregator, func(cpu int, d *device, barrier func(int)) {
		reply := make([]byte, aggregator.MaxReply)
		for i, frame := range frames[cpu] {
			barrier(i)
			v, _, err := d.Process(frame, reply)
			for v.Action == aggregator.Drop && err == nil { // as a sender does
				v, _, err = d.Process(frame, reply)
			}
			if err != nil || v.Action != aggregator.Reply {
				t.Errorf("CPU %d: verdict %v, error %v", cpu, v, err)
				return
			}
		}
	})
	if err := p.Harvest(job.ID); err != nil {
		t.Error(err)
	}
}

// Sums overflow all the time on both CPUs; the final sums must be those of the acknowledged frames.
func TestCPUsRefuseWholeFrames(t *testing.T) {
	d := open(t)
	job := aggregator.JobConfig{ID: 9, Slots: 8, Exp: -40}
	if err := conformance.StartJob(d, job); err != nil {
		t.Fatal(err)
	}
	format := fixedpoint.Format{Exp: job.Exp}
	var sums [2][8]int64
	var refused [2]int
	onEachCPU(t, d.Aggregator, func(cpu int, d *device, barrier func(int)) {
		rng := rand.New(rand.NewPCG(7, uint64(cpu)))
		reply := make([]byte, aggregator.MaxReply)
		for i := range 10_000 {
			barrier(i)
			frame := denseFrame(t, rng, cpu, job, uint32(i+1), 0, 1, job.Slots, func() float32 {
				return float32(math.Ldexp(rng.NormFloat64(), 60+job.Exp))
			})
			_, n, err := d.Process(frame, reply)
			for n == 0 && err == nil { // as a sender does
				_, n, err = d.Process(frame, reply)
			}
			if err != nil {
				t.Errorf("CPU %d: frame %d: %v", cpu, i, err)
				return
			}
			h, err := wire.ParseHeader(reply[wire.EnvelopeLen:n])
			if err != nil {
				t.Errorf("CPU %d: %v", cpu, err)
				return
			}
			if h.Type == wire.TypeError {
				refused[cpu]++
				continue
			}
			s := wire.StripeAt(frame[wire.EnvelopeLen:], 0)
			for lane := range wire.Lanes {
				units, err := format.FromBits(s.Bits(lane))
				if err != nil {
					t.Errorf("frame %d was acknowledged with a value out of range", i)
				}
				sums[cpu][s.Slot(lane)] += units
			}
		}
	})
	bank, err := d.Swap(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.JobCounters(job.ID)
	if err != nil {
		t.Fatal(err)
	}
	for r, got := range bank.Slots {
		if want := sums[0][r] + sums[1][r]; got != want {
			t.Errorf("sum of rank %d is %d, want %d", r, got, want)
		}
	}
	if refused[0] == 0 || refused[1] == 0 || c.Applied == 0 {
		t.Errorf("the test wants both: %v refused, %d applied", refused, c.Applied)
	}
	t.Logf("%d applied, %v refused", c.Applied, refused)
}

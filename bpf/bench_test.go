//go:build linux

package bpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// A feeder gives the program a new frame in every iteration of a test run,
// inside the kernel. Repeating a test run with one frame would not measure
// what we want: the frame has become its own answer after the first time, and
// its sequence number a duplicate. A system call for each frame would measure
// the system call.
//
// The feeder is an XDP program: it restores the frame's length, copies one of
// some frames from a map into it, with the next sequence number and the
// checksum that belongs to it, and makes a tail call into the program under
// test. Its own cost is measured with a program that does nothing, and
// subtracted.
type feeder struct {
	prog   *ebpf.Program
	frames *ebpf.Map
	next   *ebpf.Map
}

const (
	variants    = 64   // frames with different pairs, so that no cache or branch predictor knows them
	variantSize = 2048 // bytes, a power of two
	seqAt       = wire.EnvelopeLen + 8
	checksumAt  = wire.EnvelopeLen - 2
)

// newFeeder returns a feeder for frames of equal length with sequence number 0.
func newFeeder(tb testing.TB, frames [][]byte, target *ebpf.Program) *feeder {
	tb.Helper()
	f := &feeder{}
	must := func(m *ebpf.Map, err error) *ebpf.Map {
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { m.Close() })
		return m
	}
	// A frame is followed by the sum, without the sequence number, that its
	// checksum complements.
	const sumAt = variantSize - 4
	f.frames = must(ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: variants * variantSize, MaxEntries: 1,
	}))
	value := make([]byte, variants*variantSize)
	for i := range variants {
		v := value[i*variantSize:]
		copy(v, frames[i%len(frames)])
		binary.NativeEndian.PutUint32(v[sumAt:], uint32(^binary.BigEndian.Uint16(v[checksumAt:])))
	}
	if err := f.frames.Put(uint32(0), value); err != nil {
		tb.Fatal(err)
	}
	f.next = must(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}))
	targets := must(ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: target}},
	}))
	n := int32(len(frames[0]))
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnXdpGetBuffLen.Call(),
		asm.Mov.Imm(asm.R2, n),
		asm.Sub.Reg(asm.R2, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnXdpAdjustTail.Call(),

		asm.LoadMapValue(asm.R1, f.next.FD(), 0),
		asm.LoadMem(asm.R8, asm.R1, 0, asm.Word),
		asm.Add.Imm(asm.R8, 1),
		asm.StoreMem(asm.R1, 0, asm.R8, asm.Word), // R8: sequence number

		asm.Mov.Reg(asm.R2, asm.R8),
		asm.And.Imm(asm.R2, variants-1),
		asm.Mul.Imm(asm.R2, variantSize),
		asm.LoadMapValue(asm.R7, f.frames.FD(), 0),
		asm.Add.Reg(asm.R7, asm.R2), // R7: frame

		asm.LoadMem(asm.R3, asm.R7, sumAt, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.RSh.Imm(asm.R4, 16),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R8),
		asm.And.Imm(asm.R4, 0xffff),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R3), // fold
		asm.RSh.Imm(asm.R4, 16),
		asm.And.Imm(asm.R3, 0xffff),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Mov.Reg(asm.R4, asm.R3),
		asm.RSh.Imm(asm.R4, 16),
		asm.Add.Reg(asm.R3, asm.R4),
		asm.Xor.Imm(asm.R3, 0xffff),
		asm.JNE.Imm(asm.R3, 0, "present"),
		asm.Mov.Imm(asm.R3, 0xffff),
		asm.HostTo(asm.BE, asm.R3, asm.Half).WithSymbol("present"),
		asm.StoreMem(asm.R7, checksumAt, asm.R3, asm.Half),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.HostTo(asm.BE, asm.R3, asm.Word),
		asm.StoreMem(asm.R7, seqAt, asm.R3, asm.Word),

		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R7),
		asm.Mov.Imm(asm.R4, n),
		asm.FnXdpStoreBytes.Call(),

		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMapPtr(asm.R2, targets.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0), // XDP_ABORTED: the tail call failed
		asm.Return(),
	}})
	if err != nil {
		tb.Fatalf("%+v", err)
	}
	tb.Cleanup(func() { prog.Close() })
	f.prog = prog
	return f
}

// run returns the mean time of n iterations in nanoseconds.
func (f *feeder) run(tb testing.TB, frame []byte, n int, want uint32) float64 {
	tb.Helper()
	const most = 1 << 20 // a test run reports whole nanoseconds of the mean
	action, mean, err := f.prog.Benchmark(frame, min(n, most), nil)
	if err != nil {
		tb.Fatal(err)
	}
	if action != want {
		tb.Fatalf("action %d, want %d", action, want)
	}
	return float64(mean.Nanoseconds())
}

// hotFrames returns variants of a dense HOT frame with sequence number 0.
func hotFrames(tb testing.TB, job aggregator.JobConfig, stripes, spread int, flags wire.Flags) [][]byte {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		tb.Fatal(err)
	}
	frames := make([][]byte, variants)
	for i := range frames {
		frame := make([]byte, e.Len()+wire.HotLen(stripes))
		payload := frame[e.Len():]
		wire.Header{
			Type: wire.TypeHot, Flags: flags | wire.FlagDense, Job: job.ID,
			Sender: conformance.Sender(0).ID, Epoch: job.Epoch,
		}.Put(payload)
		for k := range stripes {
			s := wire.StripeAt(payload, k)
			s.SetMask(wire.LaneMask)
			for lane := range wire.Lanes {
				s.SetSlot(lane, uint16(rng.IntN(spread)))
				s.SetValue(lane, float32(rng.NormFloat64())*1e-3)
			}
		}
		e.Seal(frame)
		frames[i] = frame
	}
	return frames
}

// newIdle returns a program that only shortens a frame of n bytes to an ACK, so
// that the feeder has to extend it again.
func newIdle(tb testing.TB, n int) *ebpf.Program {
	tb.Helper()
	idle, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, int32(wire.EnvelopeLen+wire.HeaderLen-n)),
		asm.FnXdpAdjustTail.Call(),
		asm.Mov.Imm(asm.R0, xdpPass),
		asm.Return(),
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { idle.Close() })
	return idle
}

func BenchmarkAggregate(b *testing.B) {
	needPrivileges(b)
	for _, c := range []struct {
		mode  aggregator.Mode
		flags wire.Flags
	}{{aggregator.Combine, 0}, {aggregator.FetchAdd, wire.FlagWantSum}} {
		for _, size := range [][2]int{{1, 1000}, {10, 1000}, {1, aggregator.MaxSlots}, {10, aggregator.MaxSlots}} {
			stripes, spread := size[0], size[1]
			b.Run(fmt.Sprintf("%v/ranks=%d/stripes=%d", c.mode, spread, stripes), func(b *testing.B) {
				d := open(b)
				job := aggregator.JobConfig{Mode: c.mode, Slots: aggregator.MaxSlots}
				if err := conformance.StartJob(d, job); err != nil {
					b.Fatal(err)
				}
				frames := hotFrames(b, job, stripes, spread, c.flags)
				base := newFeeder(b, frames, newIdle(b, len(frames[0])))
				feed := newFeeder(b, frames, d.objects.Aggregate)
				b.ResetTimer()
				total := feed.run(b, frames[0], b.N, xdpTx)
				b.StopTimer()
				own := base.run(b, frames[0], b.N, xdpPass)
				b.ReportMetric(total-own, "ns/frame")
				b.ReportMetric((total-own)/float64(stripes*wire.Lanes), "ns/pair")
				b.ReportMetric(own, "feeder-ns")
				j, err := d.JobCounters(job.ID)
				if err != nil {
					b.Fatal(err)
				}
				if j.Applied < uint64(min(b.N, 1<<20)) {
					b.Fatalf("%d frames, but %+v", b.N, j)
				}
			})
		}
	}
}

func BenchmarkModel(b *testing.B) {
	for _, stripes := range []int{1, 10} {
		b.Run(fmt.Sprintf("stripes=%d", stripes), func(b *testing.B) {
			m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
			if err != nil {
				b.Fatal(err)
			}
			job := aggregator.JobConfig{Slots: aggregator.MaxSlots}
			if err := conformance.StartJob(m, job); err != nil {
				b.Fatal(err)
			}
			frames := hotFrames(b, job, stripes, job.Slots, 0)
			reply := make([]byte, aggregator.MaxReply)
			src := netip.AddrPortFrom(conformance.Host(0).IP, wire.DefaultPort)
			seq := uint32(0)
			for b.Loop() {
				seq++
				payload := frames[seq%variants][wire.EnvelopeLen:]
				binary.BigEndian.PutUint32(payload[8:], seq)
				m.ProcessPayload(src, payload, reply)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*stripes*wire.Lanes), "ns/pair")
		})
	}
}

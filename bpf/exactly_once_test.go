// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

const (
	crowd     = 8  // senders
	blockSeqs = 64 // sequence numbers of each sender in a block
	variants  = 16 // frames of a sender with different pairs
)

// delivery is one frame that reaches the aggregator.
type delivery struct {
	sender int
	seq    uint32
}

// block returns the deliveries to two CPUs at a time during one block of all senders' sequence
// numbers. Every new frame is delivered, in random order: every third one to both CPUs at once, the
// others to either. In between, frames of this and earlier blocks are repeated.
func block(seed uint64, index int) [][2]delivery {
	rng := rand.New(rand.NewPCG(seed, uint64(index)))
	first := index * blockSeqs
	fresh := make([]delivery, 0, crowd*blockSeqs)
	for s := range crowd {
		for k := range blockSeqs {
			fresh = append(fresh, delivery{s, uint32(wire.FirstSeq + first + k)})
		}
	}
	rng.Shuffle(len(fresh), func(i, k int) { fresh[i], fresh[k] = fresh[k], fresh[i] })
	// Repetitions are from up to 40 blocks before, that is, also from far behind the window.
	again := func() delivery {
		oldest := max(0, first-40*blockSeqs)
		return delivery{rng.IntN(crowd), uint32(wire.FirstSeq + oldest + rng.IntN(first+blockSeqs-oldest))}
	}
	var steps [][2]delivery
	for len(fresh) > 0 {
		step := [2]delivery{fresh[0], fresh[0]}
		fresh = fresh[1:]
		switch rng.IntN(6) {
		case 0, 1:
		case 2:
			step[rng.IntN(2)] = again()
		default:
			if len(fresh) > 0 {
				step[1] = fresh[0]
				fresh = fresh[1:]
			}
		}
		steps = append(steps, step)
	}
	return steps
}

// senderFrames returns the frames of a sender, by sequence number modulo
// variants, sealed with sequence number 0.
func senderFrames(t *testing.T, rng *rand.Rand, job aggregator.JobConfig, sender int) [][]byte {
	t.Helper()
	var flags wire.Flags
	if job.Mode == aggregator.FetchAdd {
		flags = wire.FlagWantSum
	}
	frames := make([][]byte, variants)
	for i := range frames {
		stripes := 1 + rng.IntN(2)
		frames[i] = denseFrame(t, rng, 0, job, 0, flags, stripes, job.Slots, func() float32 { return float32(rng.NormFloat64()) })
		from := crowdSender(sender)
		copy(frames[i][6:], from.MAC[:])
		copy(frames[i][26:], from.IP.AsSlice())
		binary.BigEndian.PutUint16(frames[i][wire.EnvelopeLen+4:], from.ID)
		if job.Arithmetic == aggregator.Fixed { // so small that no sum saturates
			setPairs(frames[i], stripes, func() uint32 { return uint32(int32(rng.IntN(201) - 100)) })
		}
		conformance.Repair(frames[i])
	}
	return frames
}

func crowdSender(i int) aggregator.SenderConfig {
	h := conformance.Host(i)
	return aggregator.SenderConfig{ID: uint16(i + 1), MAC: h.MAC, IP: h.IP}
}

// numbered returns a copy in buf of a frame that was sealed with sequence number 0, with a
// different number.
func numbered(buf, frame []byte, seq uint32) []byte {
	buf = append(buf[:0], frame...)
	binary.BigEndian.PutUint32(buf[seqAt:], seq)
	sum := uint32(^binary.BigEndian.Uint16(buf[checksumAt:])) + seq>>16 + seq&0xffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	check := ^uint16(sum)
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(buf[checksumAt:], check)
	return buf
}

// deliver sends frames of eight senders to a new job, n deliveries on two CPUs, and gives each
// frame once to a model. It returns the differences between the job and the model's, if any.
func deliver(t *testing.T, d *device, job aggregator.JobConfig, n int) error {
	t.Helper()
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(21, uint64(job.ID)))
	frames := make([][][]byte, crowd)
	for _, p := range []aggregator.Plane{d, m} {
		if err := p.AddJob(job); err != nil {
			t.Fatal(err)
		}
		for i := range crowd {
			if err := p.AddSender(job.ID, crowdSender(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range frames {
		frames[i] = senderFrames(t, rng, job, i)
	}

	const perBlock = crowd * blockSeqs * 4 / 3 // deliveries, approximately
	blocks := max(1, n/perBlock)
	var sent, dropped [2]int
	onEachCPU(t, d.Aggregator, func(cpu int, d *device, barrier func(int)) {
		reply := make([]byte, aggregator.MaxReply)
		var buf []byte
		at := 0
		for b := range blocks {
			for _, step := range block(uint64(job.ID), b) {
				at++
				barrier(at)
				f := step[cpu]
				buf = numbered(buf, frames[f.sender][f.seq%variants], f.seq)
				for {
					_, n, err := d.Process(buf, reply)
					sent[cpu]++
					if err != nil {
						t.Errorf("CPU %d: %v", cpu, err)
						return
					}
					if n > 0 {
						break
					}
					dropped[cpu]++ // as a sender does
				}
				if h, err := wire.ParseHeader(reply[wire.EnvelopeLen:]); err != nil || h.Type != wire.TypeAck {
					t.Errorf("CPU %d: frame %d of sender %d is answered by %+v, %v", cpu, f.seq, f.sender, h, err)
					return
				}
			}
		}
	})

	reply := make([]byte, aggregator.MaxReply)
	var buf []byte
	distinct := uint64(blocks * crowd * blockSeqs)
	for seq := range uint32(blocks * blockSeqs) {
		for s := range crowd {
			buf = numbered(buf, frames[s][(seq+wire.FirstSeq)%variants], seq+wire.FirstSeq)
			if v, _ := m.Process(buf, reply); v.Action != aggregator.Reply {
				t.Fatalf("the model's verdict is %v", v)
			}
		}
	}
	t.Logf("%v %v: %d deliveries of %d frames, %d dropped", job.Arithmetic, job.Mode, sent[0]+sent[1], distinct, dropped[0]+dropped[1])
	return differences(d, m, job.ID, aggregator.JobCounters{
		Applied:    distinct,
		Duplicates: uint64(sent[0]+sent[1]-dropped[0]-dropped[1]) - distinct,
		Raced:      uint64(dropped[0] + dropped[1]),
	})
}

// differences compares a job's bank and counters with the model's. want has no pairs.
func differences(d aggregator.Plane, m *aggregator.Model, id uint16, want aggregator.JobCounters) error {
	model, err := m.JobCounters(id)
	if err != nil {
		return err
	}
	want.Pairs = model.Pairs
	got, err := d.JobCounters(id)
	if err != nil {
		return err
	}
	var errs []error
	if got != want {
		errs = append(errs, fmt.Errorf("counters are %+v, want %+v", got, want))
	}
	gotBank, err := d.Swap(id)
	if err != nil {
		return err
	}
	wantBank, err := m.Swap(id)
	if err != nil {
		return err
	}
	if gotBank.Frames != wantBank.Frames || gotBank.Pairs != wantBank.Pairs {
		errs = append(errs, fmt.Errorf("%d frames with %d pairs were added, want %d with %d",
			gotBank.Frames, gotBank.Pairs, wantBank.Frames, wantBank.Pairs))
	}
	if !slices.Equal(gotBank.Slots, wantBank.Slots) {
		errs = append(errs, errors.New("sums differ from the model's"))
	}
	return errors.Join(errs...)
}

// orderless are jobs whose sums do not depend on the order of frames. Their units are so coarse
// that ten million frames overflow no sum.
var orderless = []aggregator.JobConfig{
	{ID: 30, Arithmetic: aggregator.Exact, Exp: -20, Mode: aggregator.Combine, Slots: 100},
	{ID: 31, Arithmetic: aggregator.Exact, Exp: -20, Mode: aggregator.FetchAdd, Slots: 100},
	{ID: 32, Arithmetic: aggregator.Fixed, Exp: -20, Mode: aggregator.Combine, Slots: 100},
	{ID: 33, Arithmetic: aggregator.Fixed, Exp: -20, Mode: aggregator.FetchAdd, Slots: 100},
}

// No update is lost or doubled, whatever the network does.
func TestExactlyOnce(t *testing.T) {
	d := open(t)
	for _, job := range orderless {
		if err := deliver(t, d, job, *deliveries/len(orderless)); err != nil {
			t.Errorf("%v %v: %v", job.Arithmetic, job.Mode, err)
		}
	}
}

// The test above must notice a broken filter or lock.
func TestExactlyOnceNoticesFaults(t *testing.T) {
	for _, fault := range []struct {
		name  string
		lines []string // of the program, disabled
	}{
		{"no filter", []string{"*place_of(sender, f->seq) = f->seq;"}},
		{"no lock", []string{"__sync_val_compare_and_swap(&job->lock", "__sync_fetch_and_sub(&job->lock"}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			err := deliver(t, openFaulty(t, fault.lines), orderless[0], 50_000)
			if err == nil {
				t.Error("nothing was noticed")
			}
			t.Log(err)
		})
	}
}

// openFaulty loads the program without the stores of some lines of its source.
func openFaulty(t *testing.T, lines []string) *device {
	t.Helper()
	needPrivileges(t)
	spec, err := loadAggregate()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		disable(t, spec.Programs[aggregateProgAggregate], line)
	}
	a, err := openSpec(spec, Options{Address: conformance.Aggregator.IP, Budget: -1})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return &device{Aggregator: a}
}

// disable removes a program's stores and atomic operations in source lines that contain a text. A
// compare-and-swap then seems to succeed: its result is in the register of the expected value.
func disable(t *testing.T, program *ebpf.ProgramSpec, text string) {
	t.Helper()
	line := "" // applies to all instructions up to the next one with a line
	n := 0
	for i := range program.Instructions {
		ins := &program.Instructions[i]
		if source := ins.Source(); source != nil {
			line = source.String()
		}
		if strings.Contains(line, text) && ins.OpCode.Class() == asm.StXClass && ins.Dst != asm.RFP { // not on the stack
			// A jump to the next instruction.
			*ins = asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja), Metadata: ins.Metadata}
			n++
		}
	}
	if n == 0 {
		t.Fatalf("the program stores nothing in a line with %q", text)
	}
}

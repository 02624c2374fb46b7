// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

var lutFrames = flag.Int("lut-frames", 300, "number of random frames of lut arithmetic that a differential test compares")

func TestLUTEqualsModel(t *testing.T) { testLUT(t, openWithLUT(t, nil)) }

// testLUT passes the golden sums of package lut through ports, and random frames.
func testLUT(t *testing.T, d device) {
	p := pair(t, d, lutJobs)
	passGoldenSums(t, p)
	verdicts, err := p.Run(1, *lutFrames)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d frames: %v", *lutFrames, verdicts)
	if verdicts[aggregator.Reply] == 0 || verdicts[aggregator.Broadcast] == 0 {
		t.Errorf("verdicts are %v", verdicts)
	}
}

// passGoldenSums adds the pairs of numbers in lut's testdata: each lane gets first one of them and
// then the other, and the answer has their sum. It harvests in between.
func passGoldenSums(t *testing.T, p *conformance.Pair) {
	t.Helper()
	text, err := os.ReadFile("../lut/testdata/sums.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Sums []string } }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var pairs [][2]uint32
	for _, g := range file.Groups {
		for _, line := range g.Sums {
			var a, b, sum uint32
			if _, err := fmt.Sscanf(line, "%x %x %x", &a, &b, &sum); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			const infinite = 0xff << 23
			if a&infinite != infinite && b&infinite != infinite { // others are refused
				pairs = append(pairs, [2]uint32{a, b})
			}
		}
	}
	if len(pairs) < 1000 {
		t.Fatalf("%d pairs of finite numbers", len(pairs))
	}
	e, err := wire.NewEnvelope(conformance.Host(0), conformance.Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	job := lutJobs[0]
	job.ID = 23
	for _, plane := range []aggregator.Plane{p.Device, p.Model} {
		if err := conformance.StartJob(plane, job); err != nil {
			t.Fatal(err)
		}
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	seq := uint32(wire.FirstSeq)
	for first := 0; first < len(pairs); first += wire.Lanes {
		for which := range 2 {
			wire.Header{
				Type: wire.TypeHot, Flags: wire.FlagWantSum, Job: job.ID, Sender: conformance.Sender(0).ID, Epoch: job.Epoch, Seq: seq,
			}.Put(frame[e.Len():])
			seq++
			s := wire.StripeAt(frame[e.Len():], 0)
			s.Clear()
			for lane, numbers := range pairs[first:min(first+wire.Lanes, len(pairs))] {
				s.SetMask(s.Mask() | 1<<lane)
				s.SetBits(lane, numbers[which])
			}
			e.Seal(frame)
			if _, err := p.Process(frame); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Harvest(job.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// lutEntriesOf returns the number of entries in a switch's tables of lut arithmetic.
func lutEntriesOf(f *fake) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, t := range f.program.tables {
		if strings.Contains(name, lutTablePath) {
			n += t.len()
		}
	}
	return n
}

// The first job of lut arithmetic loads the tables, and no other. Loading continues where it was
// interrupted, and other calls are served in the meantime.
func TestLUTTablesAreLoadedOnce(t *testing.T) {
	t.Parallel()
	const all = 344_601
	f, target, _ := startFake(t)
	var p *Plane
	last, interrupt := 0, true
	progress := func(done, total int) {
		if done <= last || done > total || total != all {
			t.Errorf("%d of %d entries, after %d", done, total, last)
		}
		last = done
		if _, err := p.Counters(); err != nil {
			t.Error(err)
		}
		if interrupt && done > all/2 {
			interrupt = false
			f.Fail(codes.Unavailable)
		}
	}
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP, Progress: progress})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for id, a := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed} {
		if err := p.AddJob(aggregator.JobConfig{ID: uint16(id), Slots: 100, Arithmetic: a}); err != nil {
			t.Fatal(err)
		}
	}
	if n := lutEntriesOf(f); n != 0 || last != 0 {
		t.Errorf("without a job of lut arithmetic the switch has %d entries of it", n)
	}
	job := aggregator.JobConfig{ID: 9, Slots: 100, Arithmetic: aggregator.LUT}
	f.Fail(codes.ResourceExhausted)
	if err := p.AddJob(job); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "(0 of 344601 entries are loaded)") {
		t.Errorf("into a full table: %v", err)
	}
	if err := p.AddJob(job); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "of 344601 entries are loaded)") {
		t.Errorf("a switch that goes away: %v", err)
	}
	p.lut.done -= lutBatch // the answer to a message was lost
	last = p.lut.done
	if err := p.AddJob(job); err != nil {
		t.Fatal(err)
	}
	if n := lutEntriesOf(f); n != all || last != all {
		t.Errorf("%d entries are loaded, and %d were announced, of %d", n, last, all)
	}
	before := f.writes
	job.ID++
	if err := p.AddJob(job); err != nil {
		t.Fatal(err)
	}
	if n := f.writes - before; n > 2 {
		t.Errorf("the second job of lut arithmetic writes %d times", n)
	}
}

// A plane that is closed while it loads the tables has its own error, not one that blames the
// switch.
func TestCloseWhileTablesAreLoaded(t *testing.T) {
	t.Parallel()
	_, target, _ := startFake(t)
	var p *Plane
	closed := make(chan error, 1)
	progress := func(done, _ int) {
		if done == lutBatch {
			closed <- p.Close()
		}
	}
	p, err := Open(Options{Target: target, Address: conformance.Aggregator.IP, Progress: progress})
	if err != nil {
		t.Fatal(err)
	}
	err = p.AddJob(aggregator.JobConfig{ID: 9, Slots: 100, Arithmetic: aggregator.LUT})
	if !errors.Is(err, aggregator.ErrClosed) || errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "(4096 of 344601 entries are loaded)") {
		t.Errorf("a job of a plane that is closed: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
	"github.com/libra-ina/libra/wire"
	"github.com/libra-ina/libra/wire/golden"
)

func TestAggregateEqualsModel(t *testing.T) {
	inNamespace(t, 1, func() {
		p := openPair(t, "port0", "host0")
		verdicts, err := p.Run(1, *frames)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d frames: %v", *frames, verdicts)
		for a := aggregator.Pass; a <= aggregator.Forward; a++ {
			if verdicts[a] == 0 {
				t.Errorf("no frame with verdict %v among %d", a, *frames)
			}
		}
	})
}

func TestTimes(t *testing.T) {
	for _, sample := range []int{0, 1, 64} {
		d := openWith(t, Options{Address: conformance.Aggregator.IP, Budget: -1, Sample: sample})
		conformance.TestTimes(t, d, sample)
	}
	if _, err := Open(Options{Address: conformance.Aggregator.IP, Sample: 3}); !errors.Is(err, aggregator.ErrConfig) {
		t.Errorf("a sample of 3: %v", err)
	}
}

func TestReadmission(t *testing.T) { conformance.TestReadmission(t, open(t)) }

// The differential test is only as good as the cases that its frames reach.
func TestGeneratorReachesEveryRefusal(t *testing.T) {
	p := openPair(t)
	g := conformance.NewGenerator(2)
	for range 50_000 {
		if _, err := p.Process(g.Frame()); err != nil { // all by port 0
			t.Fatal(err)
		}
	}
	c, err := p.Model.Counters()
	if err != nil {
		t.Fatal(err)
	}
	refused := c.Refused
	var duplicates uint64
	for _, j := range conformance.Jobs {
		c, err := p.Model.JobCounters(j.ID)
		if err != nil {
			t.Fatal(err)
		}
		duplicates += c.Duplicates
		for code, n := range c.Refused {
			refused[code] += n
		}
	}
	for code := range refused {
		code := wire.Code(code)
		// An aggregator knows no row dimension.
		if refused[code] == 0 && code != 0 && code != wire.CodeDimension {
			t.Errorf("no frame was refused for: %v", code)
		}
	}
	for name, n := range map[string]uint64{
		"truncated": c.Truncated, "bad checksum": c.BadChecksum, "partial checksum": c.PartialChecksum, "short": c.Short,
		"unexpected": c.Unexpected, "forwarded": c.Forwarded, "passed": c.Passed, "duplicate": duplicates,
	} {
		if n == 0 {
			t.Errorf("no frame was %s", name)
		}
	}
}

// Values of all exponents, and sums of all magnitudes, at the ends and in the
// middle of the possible units.
func TestConversionsEqualModel(t *testing.T) {
	p := openPair(t)
	rng := rand.New(rand.NewPCG(12, 13))
	for i, exp := range []int{fixedpoint.MinExp, -99, -63, -47, fixedpoint.DefaultExp, -1, 1, 59, fixedpoint.MaxExp} {
		job := aggregator.JobConfig{ID: uint16(110 + i), Mode: aggregator.FetchAdd, Slots: wire.Lanes, Exp: exp}
		for _, plane := range []aggregator.Plane{p.Device, p.Model} {
			if err := conformance.StartJob(plane, job); err != nil {
				t.Fatal(err)
			}
		}
		for seq := range uint32(1000) {
			frame := denseFrame(t, rng, 0, job, seq+1, wire.FlagWantSum, 1, wire.Lanes, func() float32 {
				// From 2^-3 to 2^64 units; most often small beside the sums.
				e := 127 + exp - 3 + rng.IntN(rng.IntN(67)+1)
				return math.Float32frombits(uint32(min(max(e, 0), 255))<<23 | rng.Uint32()&0x807fffff)
			})
			if _, err := p.Process(frame); err != nil {
				t.Fatalf("unit 2^%d: %v", exp, err)
			}
		}
		if err := p.Harvest(job.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGoldenFramesEqualModel(t *testing.T) {
	p := openPair(t)
	cases, err := golden.Load("../wire/testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if len(c.Bytes) < 14 || len(c.Bytes) > testRunRoom {
			continue // the kernel delivers no frame without an Ethernet header; TestFrameOf26Stripes has the longest
		}
		for _, time := range []string{"first", "again"} {
			if _, err := p.Process(c.Bytes); err != nil {
				t.Errorf("%s, %s: %v", c.Name, time, err)
			}
		}
	}
	for _, j := range conformance.Jobs {
		if err := p.Harvest(j.ID); err != nil {
			t.Error(err)
		}
	}
	if err := p.CompareCounters(); err != nil {
		t.Error(err)
	}
	if c, _ := p.Model.JobCounters(3); c.Applied == 0 {
		t.Error("no golden frame was applied")
	}
}

// FuzzAggregateEqualsModel gives the fuzzer's frames to the program and to the model. Sums and
// duplicate filters carry over from frame to frame.
func FuzzAggregateEqualsModel(f *testing.F) {
	needPrivileges(f)
	g := conformance.NewGenerator(3)
	for range 100 {
		f.Add(append([]byte(nil), g.Frame()...), true)
	}
	p := openPair(f)
	f.Fuzz(func(t *testing.T, frame []byte, repair bool) {
		if len(frame) < 14 || len(frame) > testRunRoom {
			return // not an Ethernet frame, or larger than the test run's buffer
		}
		frame = append([]byte(nil), frame...)
		if repair {
			conformance.Repair(frame)
		}
		if _, err := p.Process(frame); err != nil {
			t.Fatal(err)
		}
	})
}

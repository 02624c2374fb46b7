// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// newWorld returns a model set up as [conformance.Generator] needs it.
func newWorld(t *testing.T) *aggregator.Model {
	t.Helper()
	m, err := aggregator.NewModel(aggregator.Config{Address: conformance.Aggregator.IP})
	if err != nil {
		t.Fatal(err)
	}
	if err := conformance.Setup(m); err != nil {
		t.Fatal(err)
	}
	for _, r := range conformance.Routes {
		if err := m.AddRoute(r.Host.MAC, r.Port); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// answerOf returns type and flags of an answer, if there is one.
func answerOf(frame []byte) string {
	p, err := wire.ParseFrame(frame, 0)
	if err != nil {
		return ""
	}
	h, err := wire.ParseHeader(p.Payload)
	if err != nil {
		return ""
	}
	return h.Type.String() + " " + h.FlagNames()
}

// A comparison with the model is only as good as the cases that the generator's frames reach: every
// verdict, and every applicable counter in every job.
func TestGeneratorReachesEverything(t *testing.T) {
	m := newWorld(t)
	g := conformance.NewGenerator(1)
	verdicts, answers := make(map[aggregator.Action]int), make(map[string]uint64)
	reply := make([]byte, aggregator.MaxReply)
	for range 100_000 {
		frame := g.Frame()
		v, n := m.ProcessFrom(g.Port(), frame, reply)
		verdicts[v.Action]++
		g.Hear(reply[:n])
		answers[answerOf(reply[:n])]++
	}
	reached := func(what string, n uint64) {
		t.Helper()
		if n == 0 {
			t.Errorf("no frame: %s", what)
		}
	}
	for a := aggregator.Pass; a <= aggregator.Broadcast; a++ {
		reached(a.String(), uint64(verdicts[a]))
	}
	for _, kind := range []string{"ACK TAKEN", "ACK ALL|TAKEN", "ACK TAKEN|COVER", "ACK SUM", "ACK SUM|ALL"} {
		reached("answered by "+kind, answers[kind])
	}
	c, err := m.Counters()
	if err != nil {
		t.Fatal(err)
	}
	reached("passed", c.Passed)
	reached("forwarded", c.Forwarded)
	reached("truncated", c.Truncated)
	reached("bad checksum", c.BadChecksum)
	reached("partial checksum", c.PartialChecksum)
	reached("short", c.Short)
	reached("unexpected", c.Unexpected)
	for _, code := range []wire.Code{wire.CodeWrongVersion, wire.CodeType, wire.CodeUnknownJob} {
		reached(code.String(), c.Refused[code])
	}
	for _, cfg := range conformance.Jobs {
		cfg, err := cfg.Complete()
		if err != nil {
			t.Fatal(err)
		}
		c, err := m.JobCounters(cfg.ID)
		if err != nil {
			t.Fatal(err)
		}
		name := cfg.Mode.String() + " with " + cfg.Arithmetic.String() + ": "
		reached(name+"applied", c.Applied)
		reached(name+"duplicate", c.Duplicates)
		codes := []wire.Code{
			wire.CodeUnknownSender, wire.CodeWrongEpoch, wire.CodeSlotRange, wire.CodeNotFinite, wire.CodeLength, wire.CodeLayout, wire.CodeMode,
		}
		switch cfg.Arithmetic {
		case aggregator.Exact:
			codes = append(codes, wire.CodeOverflow)
		default:
			reached(name+"saturated", c.Saturated)
		}
		if cfg.Mode.HasRounds() {
			reached(name+"round", c.Rounds)
			codes = append(codes, wire.CodeRound)
		}
		negotiates := cfg.Arithmetic == aggregator.Fixed && cfg.Workers > 0
		if negotiates {
			reached(name+"scale", c.Scales)
			codes = append(codes, wire.CodeRound)
		}
		for _, code := range codes {
			switch {
			case code == wire.CodeNotFinite && cfg.Arithmetic == aggregator.Fixed && !negotiates:
				// Every integer is a number.
			case code == wire.CodeMode && cfg.Mode == aggregator.FetchAdd && negotiates:
				// Has all operations.
			case code == wire.CodeLayout && cfg.Pages() > 1:
				// Takes both layouts, and pages.
			default:
				reached(name+code.String(), c.Refused[code])
			}
		}
	}
}

// Two models are equal, with harvests, new epochs, and senders that are admitted and removed.
func TestRunComparesModels(t *testing.T) {
	p := &conformance.Pair{Device: conformance.ModelDevice(newWorld(t)), Model: newWorld(t)}
	if _, err := p.Run(2, 20_000); err != nil {
		t.Fatal(err)
	}
}

// forgetful is a device that forgets a sender's frames at a time when no test checks.
type forgetful struct {
	conformance.Device
	frames int
}

func (d *forgetful) ProcessFrom(port int, frame, reply []byte) (aggregator.Verdict, int, error) {
	v, n, err := d.Device.ProcessFrom(port, frame, reply)
	if d.frames++; d.frames == 500 {
		job := conformance.Jobs[0].ID
		if err := d.RemoveSender(job, conformance.Sender(0).ID); err != nil {
			return v, n, err
		}
		if err := d.AddSender(job, conformance.Sender(0)); err != nil {
			return v, n, err
		}
	}
	return v, n, err
}

func TestRunNoticesADifference(t *testing.T) {
	p := &conformance.Pair{Device: &forgetful{Device: conformance.ModelDevice(newWorld(t))}, Model: newWorld(t)}
	if _, err := p.Run(2, 5000); err == nil {
		t.Error("a device that forgets a sender's duplicate filter and counters is taken for equal")
	}
}

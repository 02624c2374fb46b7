// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/aggregator"
)

// Device is a data plane that processes frames one at a time.
type Device interface {
	aggregator.Plane
	// ProcessFrom is [aggregator.Model.ProcessFrom]. The port of a Forward is -1 if the device does
	// not report it. The job of a Broadcast is not compared: the answer contains it.
	ProcessFrom(port int, frame, reply []byte) (v aggregator.Verdict, n int, err error)
}

// ModelDevice makes a device of a model, to compare models and to replay vectors.
func ModelDevice(m *aggregator.Model) Device { return modelDevice{m} }

type modelDevice struct{ *aggregator.Model }

func (d modelDevice) ProcessFrom(port int, frame, reply []byte) (v aggregator.Verdict, n int, err error) {
	v, n = d.Model.ProcessFrom(port, frame, reply)
	return v, n, nil
}

// Pair is a device and the model that it must equal.
type Pair struct {
	Device Device
	Model  *aggregator.Model
	// Jobs are the jobs of both; nil means [Jobs].
	Jobs []aggregator.JobConfig

	got, want [aggregator.MaxReply]byte
	answer    []byte // the model's, to the last frame
}

// Process is ProcessFrom with port 0.
func (p *Pair) Process(frame []byte) (aggregator.Verdict, error) { return p.ProcessFrom(0, frame) }

// ProcessFrom gives a frame from a port to both. It returns the verdict, or an error that describes
// the difference.
func (p *Pair) ProcessFrom(port int, frame []byte) (aggregator.Verdict, error) {
	want, wantLen := p.Model.ProcessFrom(port, frame, p.want[:])
	p.answer = p.want[:wantLen]
	got, gotLen, err := p.Device.ProcessFrom(port, frame, p.got[:])
	if err != nil {
		return want, err
	}
	if got.Port < 0 {
		got.Port = want.Port
	}
	got.Job = want.Job
	if got != want {
		return want, fmt.Errorf("frame %x: verdict is %v, the model's %v", frame, got, want)
	}
	if !bytes.Equal(p.got[:gotLen], p.want[:wantLen]) {
		return want, fmt.Errorf("frame  %x:\nreply  %x\nmodel's %x", frame, p.got[:gotLen], p.want[:wantLen])
	}
	return want, nil
}

// Harvest swaps the banks of a job in both, compares the frozen ones and clears them. For a job
// with rounds, which has no harvest, both must return that error.
func (p *Pair) Harvest(job uint16) error {
	got, gotErr := p.Device.Swap(job)
	want, wantErr := p.Model.Swap(job)
	if errors.Is(wantErr, aggregator.ErrMode) && errors.Is(gotErr, aggregator.ErrMode) {
		return nil
	}
	if gotErr != nil || wantErr != nil {
		return fmt.Errorf("swap: %w", errors.Join(gotErr, wantErr))
	}
	if !slices.Equal(got.Slots, want.Slots) {
		for r := range want.Slots {
			if got.Slots[r] != want.Slots[r] {
				return fmt.Errorf("job %d: sum of rank %d is %d, the model's %d", job, r, got.Slots[r], want.Slots[r])
			}
		}
	}
	if diff := cmp.Diff(*want, *got, cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "Slots"
	}, cmp.Ignore())); diff != "" {
		return fmt.Errorf("job %d: bank differs (-model +device):\n%s", job, diff)
	}
	if err := p.Device.Clear(got); err != nil {
		return err
	}
	return p.Model.Clear(want)
}

func (p *Pair) jobs() []aggregator.JobConfig {
	if p.Jobs == nil {
		return Jobs
	}
	return p.Jobs
}

// CompareCounters compares all counters of both. All jobs of [Setup] must be running.
func (p *Pair) CompareCounters() error {
	for _, j := range p.jobs() {
		job := fmt.Sprintf("job %d", j.ID)
		if err := same(p, job+": ", func(d aggregator.Plane) (aggregator.JobCounters, error) {
			return d.JobCounters(j.ID)
		}); err != nil {
			return err
		}
		for i := range Senders {
			err := same(p, fmt.Sprintf("%s, sender %d: ", job, i), func(d aggregator.Plane) (aggregator.SenderCounters, error) {
				return d.SenderCounters(j.ID, senderID(i))
			})
			if err != nil {
				return err
			}
		}
	}
	return same(p, "", aggregator.Plane.Counters)
}

// same compares counters of both.
func same[T any](p *Pair, whose string, read func(aggregator.Plane) (T, error)) error {
	got, err := read(p.Device)
	if err != nil {
		return err
	}
	want, err := read(p.Model)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("%scounters differ (-model +device):\n%s", whose, diff)
	}
	return nil
}

// Run sends n random frames through both, with harvests, and with starts and ends of jobs and
// senders in between. Both must be set up with [Setup]. It returns the number of frames by verdict.
func (p *Pair) Run(seed uint64, n int) (map[aggregator.Action]int, error) {
	const round = 1000
	g := NewGenerator(seed, p.jobs()...)
	verdicts := make(map[aggregator.Action]int)
	for i := range n {
		if i%round == round-1 {
			if err := p.disturb(g); err != nil {
				return verdicts, fmt.Errorf("seed %d, before frame %d: %w", seed, i, err)
			}
		}
		frame := g.Frame()
		v, err := p.ProcessFrom(g.Port(), frame)
		if err != nil {
			return verdicts, fmt.Errorf("seed %d, frame %d: %w", seed, i, err)
		}
		g.Hear(p.answer)
		verdicts[v.Action]++
	}
	for _, j := range p.jobs() {
		for range 2 {
			if err := p.Harvest(j.ID); err != nil {
				return verdicts, fmt.Errorf("seed %d, at the end: %w", seed, err)
			}
		}
	}
	return verdicts, p.CompareCounters()
}

// disturb changes a job between two frames.
func (p *Pair) disturb(g *Generator) error {
	if err := p.CompareCounters(); err != nil {
		return err
	}
	k := g.rng.IntN(len(g.jobs))
	job := g.jobs[k]
	switch g.rng.IntN(32) { // all but harvests wait for the kernel, so they are rare
	case 0:
		return p.restart(g, k)
	case 1, 2, 3, 4:
		if err := p.readmit(g, k, g.rng.IntN(Senders)); err != nil {
			return err
		}
		if job.Workers > 0 { // the sender cannot return, which stops the rounds
			return p.restart(g, k)
		}
		return nil
	}
	return p.Harvest(job.ID)
}

// restart ends one of Jobs and starts it again.
func (p *Pair) restart(g *Generator, k int) error {
	g.restart(k)
	for _, plane := range []aggregator.Plane{p.Device, p.Model} {
		if err := plane.RemoveJob(g.jobs[k].ID); err != nil {
			return err
		}
		if err := g.Start(plane, k); err != nil {
			return err
		}
	}
	return nil
}

// readmit removes a sender and admits it again, which a job with rounds must refuse.
func (p *Pair) readmit(g *Generator, k, i int) error {
	g.readmit(k, i)
	job, s := g.jobs[k], g.senders[k][i]
	for _, plane := range []aggregator.Plane{p.Device, p.Model} {
		if err := plane.RemoveSender(job.ID, s.ID); err != nil {
			return err
		}
		err := plane.AddSender(job.ID, s)
		switch {
		case job.Workers == 0 && err != nil:
			return err
		case job.Workers > 0 && !errors.Is(err, aggregator.ErrTooManySenders):
			return errors.Join(fmt.Errorf("job %d with %d workers: one more sender is not refused as one too many", job.ID,
				job.Workers), err)
		}
	}
	return nil
}

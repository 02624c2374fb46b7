// SPDX-License-Identifier: Apache-2.0

package vectors

import (
	"fmt"
	"reflect"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
)

// Replay replays a file on a device with the file's address and routes and without jobs. It returns
// an error with the difference and its place.
func (f *File) Replay(d conformance.Device) error {
	got := &File{Name: f.Name, About: f.About, Address: f.Address, Routes: f.Routes}
	for i, want := range f.Steps {
		s := want
		if want.Frame != nil {
			s.Frame = &Frame{About: want.Frame.About, From: want.Frame.From, Bytes: want.Frame.Bytes}
		}
		if want.Harvest != nil {
			s.Harvest = &Harvest{Job: want.Harvest.Job}
		}
		if err := got.play(d, s); err != nil {
			return fmt.Errorf("%s: step %d: %w", f.Name, i, err)
		}
		if fr := s.Frame; fr != nil && fr.Verdict == aggregator.Forward.String() && fr.Port < 0 {
			fr.Port = want.Frame.Port // the device does not report it
		}
		if fr := s.Frame; fr != nil && !reflect.DeepEqual(*fr, *want.Frame) {
			return fmt.Errorf("%s: step %d, %s: frame %x:\nverdict is %s, port %d, answer %x\nwant       %s, port %d, answer %x",
				f.Name, i, fr.About, fr.Bytes, fr.Verdict, fr.Port, fr.Answer, want.Frame.Verdict, want.Frame.Port,
				want.Frame.Answer)
		}
		if s.Harvest != nil && !reflect.DeepEqual(s.Harvest, want.Harvest) {
			return fmt.Errorf("%s: step %d: harvest is %+v, want %+v", f.Name, i, *s.Harvest, *want.Harvest)
		}
	}
	if err := got.count(d); err != nil {
		return fmt.Errorf("%s: at the end: %w", f.Name, err)
	}
	if !reflect.DeepEqual(got.End, f.End) {
		return fmt.Errorf("%s: counters are %+v\nwant         %+v", f.Name, got.End, f.End)
	}
	return nil
}

// Record fills in the device's result of each step, and its counters.
func (f *File) Record(d conformance.Device) error {
	steps := f.Steps
	f.Steps = nil
	for i, s := range steps {
		if err := f.play(d, s); err != nil {
			return fmt.Errorf("%s: step %d: %w", f.Name, i, err)
		}
	}
	return f.count(d)
}

// play appends a step and fills in the device's result.
func (f *File) play(d conformance.Device, s Step) error {
	f.Steps = append(f.Steps, s)
	switch {
	case s.AddJob != nil:
		return addJob(d, s.AddJob)
	case s.RemoveJob != nil:
		return d.RemoveJob(*s.RemoveJob)
	case s.AddSender != nil:
		return d.AddSender(s.AddSender.Job, s.AddSender.Sender.Config())
	case s.RemoveSender != nil:
		return d.RemoveSender(s.RemoveSender.Job, s.RemoveSender.Sender)
	case s.Frame != nil:
		return s.Frame.process(d)
	case s.Harvest != nil:
		return s.Harvest.take(d)
	}
	return fmt.Errorf("the step is empty")
}

func addJob(d conformance.Device, j *Job) error {
	cfg, err := j.Config()
	if err != nil {
		return err
	}
	if err := d.AddJob(cfg); err != nil {
		return err
	}
	for _, s := range j.Senders {
		if err := d.AddSender(j.ID, s.Config()); err != nil {
			return err
		}
	}
	return nil
}

func (f *Frame) process(d conformance.Device) error {
	reply := make([]byte, aggregator.MaxReply)
	v, n, err := d.ProcessFrom(f.From, f.Bytes, reply)
	if err != nil {
		return err
	}
	f.Verdict, f.Port, f.Answer = v.Action.String(), v.Port, nil
	if n > 0 {
		f.Answer = reply[:n]
	}
	return nil
}

func (h *Harvest) take(d conformance.Device) error {
	b, err := d.Swap(h.Job)
	if err != nil {
		return err
	}
	h.Slots, h.Frames, h.Pairs = make(map[int]int64), b.Frames, b.Pairs
	for rank, n := range b.Slots {
		if n != 0 {
			h.Slots[rank] = n
		}
	}
	return d.Clear(b)
}

// count reads the counters of all remaining jobs and senders.
func (f *File) count(d conformance.Device) error {
	c, err := d.Counters()
	if err != nil {
		return err
	}
	f.End = Counters{Aggregator: counts(c), Jobs: make(map[uint16]Counts), Senders: make(map[uint16]map[uint16]Counts)}
	for _, s := range f.Steps {
		switch {
		case s.RemoveJob != nil:
			delete(f.End.Jobs, *s.RemoveJob)
			delete(f.End.Senders, *s.RemoveJob)
		case s.AddJob != nil:
			f.End.Jobs[s.AddJob.ID] = nil
			senders := make(map[uint16]Counts)
			for _, sender := range s.AddJob.Senders {
				senders[sender.ID] = nil
			}
			f.End.Senders[s.AddJob.ID] = senders
		case s.AddSender != nil:
			f.End.Senders[s.AddSender.Job][s.AddSender.Sender.ID] = nil
		case s.RemoveSender != nil:
			delete(f.End.Senders[s.RemoveSender.Job], s.RemoveSender.Sender)
		}
	}
	for job, senders := range f.End.Senders {
		c, err := d.JobCounters(job)
		if err != nil {
			return err
		}
		f.End.Jobs[job] = counts(c)
		for sender := range senders {
			c, err := d.SenderCounters(job, sender)
			if err != nil {
				return err
			}
			senders[sender] = counts(c)
		}
	}
	return nil
}

// counts returns the fields of a structure of counters that are not 0.
func counts(c any) Counts {
	out := make(Counts)
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if codes, ok := v.Field(i).Interface().(aggregator.Refusals); ok {
			for code, n := range codes {
				if n > 0 {
					out[fmt.Sprintf("refused %d", code)] = n
				}
			}
		} else if n := v.Field(i).Uint(); n > 0 {
			out[name] = n
		}
	}
	return out
}

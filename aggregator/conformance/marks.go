// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Push gives a device a HOT frame of a job's sender, with one number for rank 0. The answer must be
// an ACK or an ERROR, whichever is wanted, to this frame.
func Push(t *testing.T, d Device, job uint16, s aggregator.SenderConfig, seq uint32, value float32, want wire.Type) {
	t.Helper()
	push(t, d, fmt.Sprintf("frame %d of sender %d", seq, s.ID), job, s, seq, value, want)
}

func push(t *testing.T, d Device, what string, job uint16, s aggregator.SenderConfig, seq uint32, value float32,
	want wire.Type) {
	t.Helper()
	p := make([]byte, wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: job, Sender: s.ID, Epoch: s.Epoch, Seq: seq}.Put(p)
	wire.StripeAt(p, 0).SetMask(1)
	wire.StripeAt(p, 0).SetValue(0, value)
	host := wire.Endpoint{MAC: s.MAC, IP: s.IP, Port: wire.DefaultPort}
	e, err := wire.NewEnvelope(host, Aggregator)
	if err != nil {
		t.Fatal(err)
	}
	frame, reply := append(make([]byte, e.Len()), p...), make([]byte, aggregator.MaxReply)
	e.Seal(frame)
	_, n, err := d.ProcessFrom(0, frame, reply)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := wire.ParseFrame(reply[:n], host.Port)
	if err != nil {
		t.Fatalf("%s: the answer: %v", what, err)
	}
	h, err := wire.ParseHeader(answer.Payload)
	if err != nil || h.Type != want || h.Epoch != s.Epoch || h.Seq != seq {
		t.Errorf("%s: answered with %+v, %v; want %v", what, h, err, want)
	}
}

// MarkOf returns the mark of a sender of which just the frames with the given numbers were applied,
// up to newest. The numbers are at most W below it.
func MarkOf(s aggregator.SenderConfig, newest uint32, applied ...uint32) aggregator.Mark {
	m := aggregator.Mark{Sender: s.ID, Epoch: s.Epoch, Newest: newest}
	for _, seq := range applied {
		m.Applied[(newest-seq)/64] |= 1 << ((newest - seq) % 64)
	}
	return m
}

// TestMarks harvests on a device without jobs whose banks have marks, after each of the things that
// can happen to a sender's frames.
func TestMarks(t *testing.T, d Device) {
	t.Helper()
	job := aggregator.JobConfig{ID: 5, Epoch: 2, Slots: 1}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	push := func(s aggregator.SenderConfig, seq uint32, value float32, want wire.Type) {
		t.Helper()
		Push(t, d, job.ID, s, seq, value, want)
	}
	harvest := func(what string, want ...aggregator.Mark) {
		t.Helper()
		b, err := d.Swap(job.ID)
		must(err)
		if b.Marks == nil || !slices.Equal(b.Marks, want) {
			t.Errorf("%s: the marks are\n%v, want\n%v", what, b.Marks, want)
		}
		must(d.Clear(b))
	}
	a, b := Sender(0), Sender(1)
	a.Epoch, b.Epoch = 7, 65535
	must(d.AddJob(job))
	harvest("no sender")
	const ack, refused = wire.TypeAck, wire.TypeError
	const half = 1 << 62 // of the range of a sum
	idle := MarkOf(b, 0, 0)
	must(d.AddSender(job.ID, b))
	must(d.AddSender(job.ID, a))
	harvest("no frame", MarkOf(a, 0, 0), idle)
	push(a, 1, half, ack)
	push(a, 3, 1, ack)
	harvest("frame 2 is late", MarkOf(a, 3, 0, 1, 3), idle)
	harvest("no further frame", MarkOf(a, 3, 0, 1, 3), idle)
	push(a, 1, half, ack) // a repetition
	harvest("a repetition", MarkOf(a, 3, 0, 1, 3), idle)
	push(a, 2, half, ack)
	push(a, 4, half, refused)
	push(b, 1, 1, ack)
	harvest("frame 4 is refused", MarkOf(a, 4, 0, 1, 2, 3), MarkOf(b, 1, 0, 1))
	push(a, 4, half, refused) // although there would be room now
	push(a, 5, 1, ack)
	harvest("its copy is", MarkOf(a, 5, 0, 1, 2, 3, 5), MarkOf(b, 1, 0, 1))
	push(a, 515, half, ack)
	push(a, 516, half, refused)
	harvest("the newest frame is refused", MarkOf(a, 516, 5, 515), MarkOf(b, 1, 0, 1))
	push(a, 6, 1, ack)
	harvest("the end of the window", MarkOf(a, 516, 5, 6, 515), MarkOf(b, 1, 0, 1))
	push(a, 1030, 1, ack) // takes the place of frame 6
	push(a, 519, 1, ack)
	harvest("the next turn of the filter", MarkOf(a, 1030, 519, 1030), MarkOf(b, 1, 0, 1))

	push(b, 3, 1, ack)
	must(d.RemoveSender(job.ID, b.ID))
	harvest("the other sender is withdrawn", MarkOf(a, 1030, 519, 1030), MarkOf(b, 3, 0, 1, 3))
	harvest("no frame since it was", MarkOf(a, 1030, 519, 1030))
	b.Epoch = 0
	must(d.AddSender(job.ID, b))
	harvest("it is admitted again", MarkOf(a, 1030, 519, 1030), MarkOf(b, 0, 0))
	push(b, 1, 1, ack)
	push(b, 2, 1, ack)
	harvest("it sends again", MarkOf(a, 1030, 519, 1030), MarkOf(b, 2, 0, 1, 2))
	push(b, 3, 1, ack)
	must(d.RemoveSender(job.ID, b.ID))
	b.Epoch = 1
	must(d.AddSender(job.ID, b))
	harvest("it comes back between two swaps", MarkOf(a, 1030, 519, 1030), MarkOf(b, 0, 0))
	push(b, 1, 1, ack)
	must(d.RemoveSender(job.ID, b.ID))
	b.Epoch = 2
	must(d.AddSender(job.ID, b))
	must(d.RemoveSender(job.ID, b.ID))
	harvest("it is withdrawn twice between two swaps", MarkOf(a, 1030, 519, 1030), MarkOf(b, 0, 0))
	must(d.RemoveJob(job.ID))
	must(d.AddJob(job))
	must(d.AddSender(job.ID, b))
	harvest("a new job", MarkOf(b, 0, 0))
}

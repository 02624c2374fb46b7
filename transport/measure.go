// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"slices"
	"time"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// How the endpoints measure (docs/telemetry.md). Worker and server draw the same frames, by their
// numbers. A drawn frame asks for an answer at once. An endpoint reads its clock only for drawn
// frames, and writes what it has measured into its recorder, which others read without entering the
// loop.

// recorderFor returns the recorder of an endpoint on a link, nil if it measures nothing. A
// simulated endpoint has a gate, and a clock that does not show the kernel's time.
func recorderFor(l link.Link, sample int, clock func() retransmit.Time, gate func()) (*telemetry.Recorder, error) {
	if err := telemetry.CheckSample(sample); err != nil {
		return nil, fmt.Errorf("%w: sample: %w", ErrConfig, err)
	}
	if gate != nil {
		return telemetry.NewRecorder(sample, nil, nil), nil
	}
	if sample != 0 {
		link.StampArrivals(l, sample) // records say of each packet whether it says when it arrived
	}
	own := func() time.Duration { return time.Duration(clock()) }
	return telemetry.NewRecorder(sample, own, sys.KernelClock), nil
}

// Recorder returns what the worker has measured so far, to be read, also after its end: nothing
// with a Sample of 0. Reading does not wait for the worker.
func (w *Worker) Recorder() *telemetry.Recorder { return w.recorder }

// opOf is the operation of a frame that is measured. STEP frames are not: their answers wait for
// other workers.
func opOf(t wire.Type) (op telemetry.Op, measured bool) {
	switch t {
	case wire.TypeHot:
		return telemetry.Hot, true
	case wire.TypeCold, wire.TypeColdAt:
		return telemetry.Cold, true
	case wire.TypePull:
		return telemetry.Pull, true
	case wire.TypeFind:
		return telemetry.Find, true
	}
	return 0, false
}

// measureAnswer is processAnswer for the answer to a drawn frame.
func (w *Worker) measureAnswer(f *flow, h wire.Header, p *link.Packet) verdict {
	payload := p.Payload
	e, outstanding := f.window.Sending(h.Seq)
	var op telemetry.Op
	if outstanding {
		// The frame as it was sent: afterwards its buffer belongs to another.
		sent, _ := wire.ParseHeader(w.link.Payload(framePlace(e.Cookie).frameBuffer()))
		op, outstanding = opOf(sent.Type)
	}
	if !outstanding || h.Type == wire.TypeError {
		return w.processAnswer(f, h, payload)
	}
	begin := w.clock()
	v := w.processAnswer(f, h, payload)
	if v != taken {
		return v
	}
	end := w.clock()
	rec := telemetry.Record{
		Time: time.Duration(end), Job: h.Job, Worker: h.Sender, Server: telemetry.NoServer, Epoch: h.Epoch,
		Number: h.Seq, Op: op, Total: end.Sub(e.First), Request: e.Len, Response: uint32(len(payload)),
	}
	if !f.hot {
		rec.Server = uint16(f.serverIndex())
	}
	at := telemetry.Key{Op: op, Part: telemetry.Total, Peer: f.peerOf()}
	w.recorder.Time(at, rec.Total)
	if rec.Repeated = e.Copies > 1; rec.Repeated {
		rec.Repeat = e.Last.Sub(e.First)
		at.Part = telemetry.Repeat
		w.recorder.Time(at, rec.Repeat)
	} else {
		var arrived time.Duration
		arrived, rec.Stamped = w.recorder.Arrival(p.Arrived, time.Duration(e.First), time.Duration(w.now))
		rec.Queue, rec.Process = time.Duration(begin)-arrived, end.Sub(begin)
		at.Part = telemetry.WorkerQueue
		w.recorder.Time(at, rec.Queue)
		at.Part = telemetry.WorkerProcess
		w.recorder.Time(at, rec.Process)
	}
	w.recorder.Write(&rec)
	return taken
}

// peerOf is what the flow leads to.
func (f *flow) peerOf() telemetry.Peer {
	if f.hot {
		return telemetry.Aggregator
	}
	return telemetry.Server(uint16(f.serverIndex()))
}

// pushTimes are the times of a push. The zero value is that of one that is not measured.
type pushTimes struct {
	drawn       bool
	called      retransmit.Time
	first, last retransmit.Time // first transmissions of its first and of its last frame
	frames      bool            // there are some
}

// drawPush begins to measure a push, if it is drawn: pushes are, by their own number.
func (w *Worker) drawPush(o *operation) {
	if w.recorder == nil || !w.draw.Draws(w.drawn.Add(1)) {
		return
	}
	o.times = pushTimes{drawn: true, called: w.clock()}
}

// anyDrawn reports whether a group of pushes has to be measured.
func anyDrawn(pushes []*operation) bool {
	return slices.ContainsFunc(pushes, func(o *operation) bool { return o.times.drawn })
}

// noteSending records when an answered frame of the push was sent.
func (t *pushTimes) noteSending(e retransmit.Entry) {
	if !t.frames {
		t.first, t.last, t.frames = e.First, e.First, true
	}
	t.first, t.last = min(t.first, e.First), max(t.last, e.First)
}

// recordPush records the times of a push, or of the drawn members of a group, when its last frame
// is answered.
func (w *Worker) recordPush(o *operation) {
	t := &o.times
	if !t.frames || o.failure != nil {
		return
	}
	at := telemetry.Key{Op: telemetry.Push, Peer: telemetry.All}
	record := func(part telemetry.Part, d time.Duration) {
		at.Part = part
		w.recorder.Time(at, d)
	}
	one := [1]*operation{o}
	members := o.members
	if len(members) == 0 {
		members = one[:]
	}
	for _, m := range members {
		if !m.times.drawn {
			continue
		}
		record(telemetry.Submit, t.first.Sub(m.times.called))
		record(telemetry.Send, t.last.Sub(t.first))
		record(telemetry.Answer, w.now.Sub(t.last))
	}
}

// drawnFrames is what a server measures of a batch.
type drawnFrames struct {
	received retransmit.Time
	records  [endpoint.Batch]telemetry.Record
	n        int
}

// beginBatch returns the drawn frames of a batch, a bit for each, and notes when they were
// received.
func (s *Server) beginBatch(pkts []link.Packet) (drawn uint64) {
	draw := s.draw
	for i := range pkts {
		if p := pkts[i].Payload; len(p) >= wire.HeaderLen && draw.Draws(wire.SeqOf(p)) {
			drawn |= 1 << i
		}
	}
	if drawn != 0 {
		s.batch.received = s.clock()
	}
	return drawn
}

// noteFrame keeps what is measured of a drawn frame, which is served, until its batch is answered.
// A refused one is not measured: perhaps no worker of the job has sent it.
func (s *Server) noteFrame(p *link.Packet, h wire.Header, begin retransmit.Time, request int) {
	op, measured := opOf(h.Type)
	if !measured {
		return
	}
	end := s.clock()
	b := &s.batch
	received := time.Duration(b.received)
	arrived, stamped := s.recorder.Arrival(p.Arrived, received-telemetry.StampLimit, received)
	b.records[b.n] = telemetry.Record{
		Time: time.Duration(end), Job: h.Job, Worker: h.Sender, Server: s.cfg.Index, Epoch: h.Epoch, Number: h.Seq, Op: op,
		Repeated: h.Flags&wire.FlagRetx != 0, Stamped: stamped,
		Queue: time.Duration(begin) - arrived, Process: end.Sub(begin), Request: uint32(request), Response: uint32(p.Reply),
	}
	b.n++
}

// recordBatch records the drawn frames of a batch when all of it is ready to be answered.
func (s *Server) recordBatch() {
	now := time.Duration(s.clock())
	for i := range s.batch.n {
		rec := &s.batch.records[i]
		rec.Queue += now - rec.Time
		rec.Total, rec.Time = rec.Queue+rec.Process, now
		at := telemetry.Key{Op: rec.Op, Part: telemetry.ServerQueue, Peer: telemetry.Worker(rec.Worker)}
		s.recorder.Time(at, rec.Queue)
		at.Part = telemetry.ServerProcess
		s.recorder.Time(at, rec.Process)
		s.recorder.Write(rec)
	}
	s.batch.n = 0
}

// Recorder returns what the server has measured so far, to be read, also after its end: nothing
// with a Sample of 0. Reading does not wait for the server.
func (s *Server) Recorder() *telemetry.Recorder { return s.recorder }

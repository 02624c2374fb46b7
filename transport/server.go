// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport/endpoint"
	"github.com/libra-ina/libra/wire"
)

// Handler stores the rows of a [Server], usually a *ps.Store. The server's
// goroutine calls it.
type Handler interface {
	// Accumulate adds the rows of a COLD frame: all of them, or none with a
	// [wire.Refusal] for the sender. Any other error ends the server.
	// The rows are valid until Accumulate returns.
	Accumulate(rows wire.Rows) error
	// AccumulateAt is Accumulate for the rows of a COLD_AT frame, which have numbers
	// instead of keys. It refuses numbers that Find has not assigned in this numbering.
	AccumulateAt(rows wire.Rows) error
	// Find stores the row number of each key in numbers, from 1 on, or 0 for a key without
	// a row. A row keeps its number as long as the numbering is the same. Both slices
	// have the same length, and are valid until Find returns.
	Find(keys []uint64, numbers []uint32) (numbering uint32)
	// Read copies the rows of keys into dst, len(keys) × Dim floats. Both slices are valid
	// until Read returns.
	Read(keys []uint64, dst []float32)
}

// ServerConfig describes a parameter server's endpoint.
type ServerConfig struct {
	// Link carries the frames. The server owns and closes it once NewServer succeeds.
	Link link.Link
	Job  uint16
	// Dim is the number of floats in a row.
	Dim     int
	Handler Handler
	// Codec is that of the job's workers, which code the gradients of cold rows with it; the zero
	// value refuses coded frames.
	Codec codec.Config
	// NoWeights refuses pulls and row numbers, because the handler keeps no rows of earlier
	// steps (ps.None).
	NoWeights bool
	// Index is the server's among those of the job.
	Index uint16
	// Sample is the number of frames of which one is measured; see [WorkerConfig.Sample] and
	// [Server.Latencies].
	Sample int
	// Arrive is called by the server's goroutine when a sender has reached the end of a step whose
	// sums the server does not have; it may be called again for the same sender. It reports whether
	// [Server.GiveSums] or [Server.RefuseSteps] will be called, and may call them itself; otherwise
	// the sender has to ask the control service. Nil refuses all.
	Arrive func(sender, epoch uint16, end wire.StepEnd) bool
	// Look is the longest time to poll for frames before sleeping. Polling yields the processor to
	// others, and is reduced while it finds nothing. 0 means [DefaultLook], a negative value no
	// polling.
	Look time.Duration
	// Gate is for simulations; see [endpoint.Config].
	Gate func()
}

// Server receives the cold gradients of one job and answers its pulls. Frames of
// senders that were not admitted change nothing.
type Server struct {
	base
	cfg     ServerConfig
	senders map[uint16]*admitted
	keys    []uint64
	rows    []float32 // of keys
	numbers []uint32  // of keys
	decoder *decoder  // nil if the job has no codec
	steps   steps
	stats   ServerStats

	clock    func() retransmit.Time
	draw     telemetry.Draw
	recorder *telemetry.Recorder // nil if nothing is drawn
	batch    drawnFrames
}

// admitted is the state of an admitted sender.
type admitted struct {
	from  netip.AddrPort
	epoch uint16
	last  uint32 // the newest sequence number seen
	seen  retransmit.Filter

	// Ends of steps in frames before stepsFrom do not count, if bounded, and none counts while held.
	held, bounded bool
	stepsFrom     uint32
}

// mayArrive reports whether an end of a step with a sequence number counts.
func (a *admitted) mayArrive(seq uint32) bool {
	if int32(a.last-a.stepsFrom) > 1<<30 {
		a.bounded = false // no copy is as old
	}
	return !a.held && (!a.bounded || int32(seq-a.stepsFrom) >= 0)
}

// reachesSeq records a sequence number, or returns false if it is more than a window ahead of
// the newest one seen, where the sender cannot be.
func (a *admitted) reachesSeq(seq uint32) bool {
	ahead := int32(seq - a.last)
	if ahead > wire.DefaultWindow {
		return false
	}
	if ahead > 0 {
		a.last = seq
	}
	return true
}

// ServerStats holds the counters of a server.
type ServerStats struct {
	Applied    uint64 // COLD and COLD_AT frames
	Rows       uint64 // rows in them
	RowsAt     uint64 // those of them in COLD_AT frames
	Duplicates uint64 // COLD and COLD_AT frames acknowledged again without being applied
	Pulls      uint64 // PULL frames answered
	KeysPulled uint64
	Finds      uint64 // FIND frames answered
	Steps      uint64 // STEP frames answered
	Sums       uint64 // SUMS frames sent

	Coded       uint64 // applied frames whose gradients were coded
	CodedValues uint64 // gradients in them
	CodedBytes  uint64 // codes of these

	Refusals [wire.CodeCoding + 2]uint64 // as in [WorkerStats]

	Malformed  uint64 // payloads without a whole header; not answered
	Unexpected uint64 // ACK, ERROR, ROWS, FOUND and SUMS frames; not answered

	Link link.Stats
}

// NewServer starts a server without senders; see [Server.Admit].
func NewServer(cfg ServerConfig) (*Server, error) {
	switch {
	case cfg.Link == nil:
		return nil, fmt.Errorf("%w: ServerConfig.Link is nil", ErrConfig)
	case cfg.Handler == nil:
		return nil, fmt.Errorf("%w: ServerConfig.Handler is nil", ErrConfig)
	case cfg.Codec != (codec.Config{}) && !codedFits(cfg.Link.Limits().MaxPayload, cfg.Dim):
		return nil, codedTooLong(cfg.Link.Limits().MaxPayload, cfg.Dim)
	case cfg.Dim < 1 || wire.ColdCap(cfg.Link.Limits().MaxPayload, cfg.Dim) < 1:
		return nil, fmt.Errorf("%w: a row of %d floats does not fit a payload of %d bytes", ErrConfig, cfg.Dim,
			cfg.Link.Limits().MaxPayload)
	}
	s := &Server{
		cfg:     cfg,
		senders: map[uint16]*admitted{},
		clock:   clockFrom(time.Now()),
		draw:    telemetry.NewDraw(cfg.Sample),
		keys:    make([]uint64, wire.PullCap(cfg.Link.Limits().MaxPayload, cfg.Dim)),
	}
	err := checkCodec(cfg.Codec)
	if err != nil {
		return nil, err
	}
	s.decoder = newDecoder(cfg.Codec)
	if s.recorder, err = recorderFor(cfg.Link, cfg.Sample, s.clock, cfg.Gate); err != nil {
		return nil, err
	}
	s.recorder.SetLoop(&s.loop)
	s.rows, s.numbers = make([]float32, len(s.keys)*cfg.Dim), make([]uint32, len(s.keys))
	s.initLoop(endpoint.Config{Link: cfg.Link, Look: cfg.Look, Gate: cfg.Gate})
	s.steps.initSteps(cfg)
	s.loop.Start(func() error {
		return s.loop.Serve(s.handleBatch, s.sendSums)
	}, func(error) { s.stats.Link = s.link.Stats() })
	return s, nil
}

// Admit accepts frames of a sender from now on, if they come from its address and
// port and carry the epoch of this admission. The first one has the sequence number
// [wire.FirstSeq]. A sender that restarts must be removed and admitted again in
// another epoch, which distinguishes its frames from late frames of its predecessor.
func (s *Server) Admit(ctx context.Context, sender uint16, from netip.AddrPort, epoch uint16) error {
	from = seen(from)
	if !from.IsValid() || from.Port() == 0 {
		return fmt.Errorf("%w: sender %d: frames cannot come from %v: it is not a host's address and port", ErrConfig,
			sender, from)
	}
	exists := false
	err := s.Do(ctx, func() {
		if _, exists = s.senders[sender]; !exists {
			s.senders[sender] = &admitted{from: from, epoch: epoch, last: wire.FirstSeq - 1}
		}
	})
	if err == nil && exists {
		err = fmt.Errorf("%w: sender %d of job %d is admitted already", ErrConfig, sender, s.cfg.Job)
	}
	return err
}

// Remove stops accepting frames of a sender. Its contributions stay.
func (s *Server) Remove(ctx context.Context, sender uint16) error {
	return s.Do(ctx, func() {
		delete(s.senders, sender)
		s.steps.forgetSender(sender)
	})
}

// Stats returns the server's counters, after its end the final ones.
func (s *Server) Stats(ctx context.Context) (ServerStats, error) {
	var st ServerStats
	err := s.Do(ctx, func() {
		st = s.stats
		st.Link = s.link.Stats()
	})
	select {
	case <-s.Done():
		return s.stats, nil
	default:
		return st, err
	}
}

// handleBatch answers a batch of requests, each in place.
func (s *Server) handleBatch(pkts []link.Packet) error {
	var drawn uint64 // a bit for each packet
	if s.recorder != nil {
		drawn = s.beginBatch(pkts)
	}
	for i := range pkts {
		p := &pkts[i]
		h, err := wire.ParseHeader(p.Payload)
		switch {
		case errors.Is(err, wire.ErrTruncated):
			s.stats.Malformed++
			continue
		case h.Type == wire.TypeAck || h.Type == wire.TypeError || h.Type == wire.TypeRows || h.Type == wire.TypeFound ||
			h.Type == wire.TypeSums:
			// Answering answers could cause an endless exchange.
			s.stats.Unexpected++
			continue
		}
		var begin retransmit.Time
		if drawn>>i&1 != 0 {
			begin = s.clock()
		}
		length := len(p.Payload)
		n, refusal, err := s.answerRequest(p, h, err)
		if err != nil {
			return err
		}
		if refusal.Code != 0 {
			s.stats.Refusals[min(int(refusal.Code), len(s.stats.Refusals)-1)]++
			n = len(wire.PutError(p.Payload[:wire.ErrorLen], h, refusal))
		}
		p.Reply = n
		if drawn>>i&1 != 0 && refusal.Code == 0 && n > 0 {
			s.noteFrame(p, h, begin, length)
		}
	}
	if drawn != 0 {
		s.recordBatch()
	}
	return nil
}

// answerRequest serves one request and returns the length of the answer written over it, 0 for
// none, or a refusal. An error ends the server.
func (s *Server) answerRequest(p *link.Packet, h wire.Header, version error) (int, wire.Refusal, error) {
	switch {
	case version != nil:
		return 0, wire.Refusal{Code: wire.CodeWrongVersion, Value: wire.Version}, nil
	case h.Type != wire.TypeCold && h.Type != wire.TypeColdAt && h.Type != wire.TypePull && h.Type != wire.TypeFind &&
		h.Type != wire.TypeStep:
		return 0, wire.Refusal{Code: wire.CodeType}, nil
	case h.Job != s.cfg.Job:
		return 0, wire.Refusal{Code: wire.CodeUnknownJob}, nil
	}
	from := s.senders[h.Sender]
	if from == nil || from.from != p.Src.AddrPort() {
		return 0, wire.Refusal{Code: wire.CodeUnknownSender}, nil
	}
	if h.Epoch != from.epoch {
		return 0, wire.Refusal{Code: wire.CodeWrongEpoch, Value: uint32(from.epoch)}, nil
	}
	if !from.reachesSeq(h.Seq) {
		return 0, wire.Refusal{Code: wire.CodeWindow, Value: from.last + wire.DefaultWindow}, nil
	}
	if h.Type == wire.TypeStep {
		n, refusal := s.answerStep(p, h, from)
		return n, refusal, nil
	}
	rows, err := s.decoder.parseRows(p.Payload, h)
	switch {
	case s.cfg.NoWeights && h.Type != wire.TypeCold:
		return 0, wire.Refusal{Code: wire.CodeNoWeights}, nil
	case errors.Is(err, errNoCodec):
		return 0, wire.Refusal{Code: wire.CodeCoding}, nil
	case err != nil:
		return 0, wire.Refusal{Code: wire.CodeLength, Value: uint32(s.link.Limits().MaxPayload)}, nil
	case rows.Dim != s.cfg.Dim:
		return 0, wire.Refusal{Code: wire.CodeDimension, Value: uint32(s.cfg.Dim)}, nil
	case h.Type == wire.TypePull || h.Type == wire.TypeFind:
		return s.answerPull(p, h, rows, from)
	}
	fresh := from.seen.Fresh(h.Seq)
	if !fresh {
		if r, refused := from.seen.Refusal(h.Seq); refused {
			return 0, r, nil
		}
		s.stats.Duplicates++
	} else if err := s.accumulateRows(h.Type, rows); err != nil {
		var r wire.Refusal
		if errors.As(err, &r) {
			from.seen.Refuse(h.Seq, r) // a copy must not be applied when the reason is gone
			return 0, r, nil
		}
		return 0, r, fmt.Errorf("transport: server of job %d: %w", s.cfg.Job, err)
	} else {
		from.seen.Mark(h.Seq)
		s.stats.Applied++
		if h.Flags&wire.FlagCoded != 0 {
			s.stats.Coded++
			s.stats.CodedValues += uint64(rows.Count * rows.Dim)
			s.stats.CodedBytes += uint64(len(p.Payload) - wire.CodedLen(h.Type, rows.Count, 0))
		}
		s.stats.Rows += uint64(rows.Count)
	}
	switch {
	case h.Flags&(wire.FlagQuiet|wire.FlagCover) == 0:
		return len(wire.PutAck(p.Payload, h)), wire.Refusal{}, nil
	case fresh && h.Flags&wire.FlagQuiet != 0 && from.seen.Applied(h.Seq-1):
		return 0, wire.Refusal{}, nil // a later frame asks for an ACK
	}
	return len(wire.PutCover(p.Payload, h, from.seen.Cover(h.Seq))), wire.Refusal{}, nil
}

func (s *Server) accumulateRows(t wire.Type, rows wire.Rows) error {
	if t == wire.TypeCold {
		return s.cfg.Handler.Accumulate(rows)
	}
	err := s.cfg.Handler.AccumulateAt(rows)
	if err == nil {
		s.stats.RowsAt += uint64(rows.Count)
	}
	return err
}

// answerPull overwrites a PULL with the rows, or a FIND with the row numbers. Duplicates are
// answered like new requests: they change nothing.
func (s *Server) answerPull(p *link.Packet, h wire.Header, asked wire.Rows, from *admitted) (int, wire.Refusal, error) {
	if asked.Count > len(s.keys) {
		return 0, wire.Refusal{Code: wire.CodeLength, Value: uint32(wire.PullLen(len(s.keys)))}, nil
	}
	if from.seen.Fresh(h.Seq) {
		from.seen.Mark(h.Seq) // keeps the filter's entries young, see retransmit.Filter
	}
	keys := s.keys[:asked.Count] // the rows overwrite the keys
	for i := range keys {
		keys[i] = asked.Key(i)
	}
	if h.Type == wire.TypeFind {
		return s.answerFind(p, h, keys), wire.Refusal{}, nil
	}
	payload := p.Payload[:wire.RowsLen(len(keys), s.cfg.Dim)]
	rows := wire.PutRows(payload, wire.TypeRows, len(keys), s.cfg.Dim)
	s.cfg.Handler.Read(keys, s.rows[:len(keys)*s.cfg.Dim])
	for i := range keys {
		rows.SetRow(i, s.rows[i*s.cfg.Dim:])
	}
	h.Type, h.Flags = wire.TypeRows, 0
	h.Put(payload)
	s.stats.Pulls++
	s.stats.KeysPulled += uint64(len(keys))
	return len(payload), wire.Refusal{}, nil
}

// answerFind overwrites a FIND, which is at least as long, with the row numbers of keys.
func (s *Server) answerFind(p *link.Packet, h wire.Header, keys []uint64) int {
	numbers := s.numbers[:len(keys)]
	numbering := s.cfg.Handler.Find(keys, numbers)
	payload := p.Payload[:wire.FoundLen(len(keys))]
	wire.PutNumbered(payload, wire.TypeFound, len(keys), s.cfg.Dim, numbering).SetNumbers(numbers)
	h.Type, h.Flags = wire.TypeFound, 0
	h.Put(payload)
	s.stats.Finds++
	return len(payload)
}

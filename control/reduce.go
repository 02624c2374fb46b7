// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Sums are the sums of a step: keys in ascending order, and a row of floats for each of them.
type Sums struct {
	Keys []uint64
	Rows []float32
}

// DroppedError means that gradients of a worker were refused, that it left in the middle of the
// step, or that a sum is too large for a float32, so that the step changed nothing.
type DroppedError struct {
	Key      uint64
	KeyKnown bool
	Sum      bool // the sum of the key is too large
}

func (e *DroppedError) Error() string {
	if e.Sum {
		return fmt.Sprintf("the step was dropped for all: the sum of key %d is too large for a float32: "+
			"scale the gradients down", e.Key)
	}
	if e.KeyKnown {
		return fmt.Sprintf("a gradient of one of the workers was refused, so that the step was dropped for all: key %d", e.Key)
	}
	return "the step was dropped for all: gradients of one of the workers were refused, or it left before the end of the step"
}

// Message returns the error as a message for the service.
func (e *DroppedError) Message() *pb.Dropped {
	m := &pb.Dropped{Sum: e.Sum}
	if e.KeyKnown {
		m.Key = &e.Key
	}
	return m
}

func droppedOf(m *pb.Dropped) *DroppedError {
	if m == nil {
		return nil
	}
	return &DroppedError{Key: m.GetKey(), KeyKnown: m.Key != nil, Sum: m.Sum}
}

// HotFrames describes the frames of a worker's admission for the aggregator. Both numbers wrap:
// that of the next frame, and that of the first unanswered one.
type HotFrames struct{ Sent, Answered uint32 }

// reduce ends a step whose sums workers want, or one that is dropped.
func (s *ParameterServer) reduce(step uint64, r *round) (err error) {
	quiet := s.quiet(r)
	instance, _ := s.generation.currentInstance()
	if r.dropped != nil {
		err = s.cfg.Drop(r.ctx, step, quiet)
	} else {
		r.sums.Sums, err = s.cfg.Reduce(r.ctx, step, quiet)
		var why *DroppedError
		if errors.As(err, &why) {
			s.barrier.dropStep(r, why)
			err = nil
		}
	}
	if err == nil && !quiet {
		s.harvested, s.harvestedAt = r.hot, instance
	}
	return err
}

// quiet reports whether all frames for the aggregator were answered before an earlier harvest. The
// workers must be the same as then: one that has finished, or is new, may have sent more than it
// reported.
func (s *ParameterServer) quiet(r *round) bool {
	if s.HasFenced() {
		return true // there is no aggregator
	}
	if instance, _ := s.generation.currentInstance(); instance != s.harvestedAt {
		return false // the numbers of an earlier generation
	}
	if len(r.hot) != r.workers || len(s.harvested) != r.workers {
		return false
	}
	for worker, now := range r.hot {
		if before, ok := s.harvested[worker]; !ok || now.Sent != before.Answered {
			return false
		}
	}
	return true
}

// Arrive records that a worker has reached the end of a step whose sums it gets in frames, in place
// of a call of Reduce; hot are its frames for the aggregator. It reports whether the worker will
// get the sums or a refusal: otherwise, and after a refusal, the worker calls Reduce, which has the
// reason. If the worker is the last one and there is nothing to harvest, the step ends in this
// call, by [ParameterServerConfig.ReduceHere].
func (s *ParameterServer) Arrive(worker, epoch uint16, step uint64, hot HotFrames) bool {
	// The worker is admitted now, in the store's goroutine, in which a rewind is.
	w := wish{sums: true, epoch: epoch, hot: &hot, rewinds: s.barrier.rewindCount()}
	r, commit, err := s.barrier.arriveWorker(worker, step, w)
	switch {
	case err != nil || r.hasEnded():
		return false
	case commit && r.dropped == nil && s.quiet(r):
		s.cfg.ReduceHere(step, func(sums Sums, dropped *DroppedError) {
			r.sums.Sums = sums
			if dropped != nil {
				s.barrier.dropStep(r, dropped)
			}
			s.barrier.releaseRound(r, nil)
		})
	case commit:
		go s.barrier.runCommit(r, step)
	}
	return true
}

// give reports the end of a round to the workers that wait for frames.
func (s *ParameterServer) give(step uint64, r *round) {
	if s.cfg.Give != nil && r.reduces {
		s.cfg.Give(step, r.sums.Sums, r.err == nil && r.dropped == nil)
	}
}

func (r *round) hasEnded() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Reduce implements the service.
func (s *ParameterServer) Reduce(req *pb.ReduceRequest, stream grpc.ServerStreamingServer[pb.ReducedRows]) error {
	m, err := s.member(stream.Context(), req.Job, req.Sender, req.Token)
	if err != nil {
		return err
	}
	if s.cfg.Reduce == nil {
		return s.noSteps()
	}
	if err := s.generation.refusalOf(req.Instance); err != nil {
		return err
	}
	w := wish{sums: true, refused: droppedOf(req.Refused), epoch: m.Epoch, instance: req.Instance, rewinds: m.before}
	if h := req.Hot; h != nil {
		w.hot = &HotFrames{Sent: h.Sent, Answered: h.Answered}
	}
	r, err := s.barrier.joinRound(stream.Context(), m.ID, req.Step, w)
	switch {
	case err != nil:
		return s.uncommitted(stream.Context(), err)
	case r.dropped != nil:
		return stream.Send(&pb.ReducedRows{Dropped: r.dropped.Message()})
	}
	return r.sums.sendRows(stream, s.cfg.Dimension)
}

// reducedBytes bounds keys and sums of a message, so that the message with its framing is below 32
// KB, like chunkSums.
const reducedBytes = 31 << 10

// roundSums are the sums of a round. They are encoded once for all workers.
type roundSums struct {
	Sums

	once    sync.Once
	encoded []*grpc.PreparedMsg
	err     error
}

// sendRows sends the rows in messages of bounded size, at least one. All streams belong to one
// server, which encodes messages in the same way for each.
func (r *roundSums) sendRows(stream grpc.ServerStream, dim int) error {
	r.once.Do(func() { r.err = r.encodeRows(stream, dim) })
	if r.err != nil {
		return r.err
	}
	for _, m := range r.encoded {
		if err := stream.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

func (r *roundSums) encodeRows(stream grpc.ServerStream, dim int) error {
	each := max(1, reducedBytes/(8+4*dim))
	total := uint64(len(r.Keys))
	for first := 0; first == 0 || first < len(r.Keys); first += each {
		end := min(first+each, len(r.Keys))
		m := &pb.ReducedRows{Rows: total, Keys: make([]byte, 8*(end-first)), Sums: make([]byte, 4*dim*(end-first))}
		for i, key := range r.Keys[first:end] {
			binary.LittleEndian.PutUint64(m.Keys[8*i:], key)
		}
		for i, x := range r.Rows[first*dim : end*dim] {
			binary.LittleEndian.PutUint32(m.Sums[4*i:], math.Float32bits(x))
		}
		encoded := new(grpc.PreparedMsg)
		if err := encoded.Encode(stream, m); err != nil {
			return err
		}
		r.encoded = append(r.encoded, encoded)
	}
	return nil
}

// roomAtOnce bounds the floats for which ReceiveSums allocates because of a message's announcement.
const roomAtOnce = 1 << 24

// ReceiveSums receives the service's answer to a call of Reduce, of rows of dim floats. The error
// is a [*DroppedError] if the step was dropped.
func ReceiveSums(stream grpc.ServerStreamingClient[pb.ReducedRows], dim int) (sums Sums, err error) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return sums, nil
		}
		if err != nil {
			return Sums{}, err
		}
		if m.Dropped != nil {
			return Sums{}, droppedOf(m.Dropped)
		}
		n := len(m.Keys) / 8
		if len(m.Keys) != 8*n || len(m.Sums) != 4*dim*n || uint64(len(sums.Keys)+n) > m.Rows {
			return Sums{}, fmt.Errorf("the parameter server sent %d bytes of keys and %d bytes of sums, for rows of %d floats",
				len(m.Keys), len(m.Sums), dim)
		}
		if sums.Keys == nil && n > 0 {
			all := int(min(m.Rows, uint64(max(n, roomAtOnce/dim))))
			sums = Sums{Keys: make([]uint64, 0, all), Rows: make([]float32, 0, all*dim)}
		}
		for i := range n {
			sums.Keys = append(sums.Keys, binary.LittleEndian.Uint64(m.Keys[8*i:]))
		}
		for i := range n * dim {
			sums.Rows = append(sums.Rows, math.Float32frombits(binary.LittleEndian.Uint32(m.Sums[4*i:])))
		}
	}
}

// status is the answer to a call of Barrier. Other answers also have the code Aborted, but not the
// detail.
func (e *DroppedError) status() error {
	s := status.New(codes.Aborted, e.Error())
	if detailed, err := s.WithDetails(e.Message()); err == nil {
		s = detailed
	}
	return s.Err()
}

// droppedIn returns why a step was dropped, if the error of a call of Barrier contains it, and
// otherwise the error.
func droppedIn(err error) error {
	for _, detail := range status.Convert(err).Details() {
		if m, ok := detail.(*pb.Dropped); ok {
			return droppedOf(m)
		}
	}
	return err
}

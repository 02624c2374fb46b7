// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Log keeps the hot frames of a worker that the aggregator has acknowledged, until the server has them;
// a transport.Worker is one.
type Log interface {
	// Committed tells it which frames the server has.
	Committed(ctx context.Context, mark aggregator.Mark) error
	// Settle asks for the last mark, and returns when the server has all frames that it lacks. next is the
	// number of the worker's next frame for the server; from before the question until the end, the worker
	// reports no end of a step in frames.
	Settle(ctx context.Context, ask func(ctx context.Context, next uint32) (aggregator.Mark, error)) error
}

// kept is what a membership knows of the job's generation.
type kept struct {
	mu       sync.Mutex
	instance uint64          // to which the worker's frames go; 0: to none
	told     uint64          // that the server has told last
	heard    bool            // in a message after its answer to the join
	mark     *pb.HarvestMark // that the server has told last, and the log does not know yet; or nil
	news     chan struct{}   // holds a token when either has changed
	settled  chan struct{}   // closed when instance has become that told
}

// hear takes a message of the stream of the server that decides.
func (k *kept) hear(m *pb.Membership) {
	k.mu.Lock()
	k.told, k.heard = m.Instance, true
	if m.Committed != nil {
		k.mark = m.Committed
	}
	k.mu.Unlock()
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// hasChanged reports whether the server has told another instance than that which it gave at first.
func (k *kept) hasChanged(first uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.heard && k.told != first
}

// current returns the instance for calls, and what is closed when it has ended and the worker has settled.
func (k *kept) current() (instance uint64, settled <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.instance, k.settled
}

// KeepLog gives a worker's log what the server tells of it, and settles when the server has lost the
// aggregator, until ctx or the admission ends. When full has a token, the log has no room, and the
// server harvests at once. Without KeepLog, a membership with KeepsLog must not be used. The error is
// why the worker cannot go on.
func (m *Membership) KeepLog(ctx context.Context, log Log, full <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()
	var asks sync.WaitGroup
	defer asks.Wait()
	defer cancel(nil)
	asks.Go(func() { m.askForHarvests(ctx, full) })
	k := &m.kept
	for {
		k.mu.Lock()
		mark, ends := k.mark, k.told != k.instance
		k.mark = nil
		k.mu.Unlock()
		var err error
		switch {
		case ends:
			err = m.settle(ctx, log)
		case mark != nil:
			var committed aggregator.Mark
			if committed, err = markOfMessage(mark); err == nil {
				err = log.Committed(ctx, committed)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-k.news:
		case <-ctx.Done():
			return nil
		}
	}
}

// askForHarvests makes the server harvest whenever the log is full: the next harvest may be due in an
// hour. It is a goroutine of its own, because that waits for the settlement if the generation ends.
func (m *Membership) askForHarvests(ctx context.Context, full <-chan struct{}) {
	for {
		select {
		case <-full:
		case <-ctx.Done():
			return
		}
		_ = m.Report(ctx, 0, 0, false) // or the worker's other calls say why
		select {
		case <-time.After(markEvery): // the mark makes no room before
		case <-ctx.Done():
			return
		}
	}
}

// settle ends the worker's part in a generation.
func (m *Membership) settle(ctx context.Context, log Log) error {
	k := &m.kept
	instance, _ := k.current()
	s := &m.servers[0]
	err := log.Settle(ctx, func(ctx context.Context, next uint32) (aggregator.Mark, error) {
		var answer *pb.SettleResponse
		err := Repeat(ctx, func(ctx context.Context) (err error) {
			answer, err = s.Settle(ctx, &pb.SettleRequest{Job: m.job, Sender: m.worker, Token: s.token, Instance: instance,
				Epoch: uint32(m.AggregatorEpoch), Next: next})
			return err
		})
		if err != nil {
			return aggregator.Mark{}, access.CallError(s.role, "settle", err)
		}
		return markOfMessage(answer.Mark)
	})
	if err != nil {
		return fmt.Errorf("settling after the loss of the aggregator: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.instance = 0
	close(k.settled)
	k.settled = make(chan struct{})
	return nil
}

func markOfMessage(m *pb.HarvestMark) (aggregator.Mark, error) {
	var one Harvest
	if err := one.takeMarks(&pb.HarvestChunk{Marks: []*pb.HarvestMark{m}}); err != nil {
		return aggregator.Mark{}, err
	}
	return one.Marks[0], nil
}

// inGeneration makes a call of a server for the current generation. If that has ended, it makes the call
// again when the worker has settled.
func (m *Membership) inGeneration(ctx context.Context, call func(ctx context.Context, instance uint64) error) error {
	for {
		instance, settled := m.kept.current()
		err := call(ctx, instance)
		if !isFenced(err) {
			return err
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// aggregatorLost is called when the aggregator's stream has ended. A worker that keeps a log waits for
// the server, which decides whether the aggregator is lost; but the aggregator may also have withdrawn
// this worker alone.
func (m *Membership) aggregatorLost(cfg *JoinConfig, err error) {
	if m.KeepsLog && status.Code(err) != codes.PermissionDenied {
		cfg.logger().Warn("the aggregator has ended, or is out of reach: the worker waits for the server to notice",
			"error", err)
		return
	}
	m.lose(access.CallError(access.SwitchDaemon, "withdrew this worker", err), cfg.Lost)
}

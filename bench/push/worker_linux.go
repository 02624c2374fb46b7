package push

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
)

// window is how many frames of a flow may be unacknowledged. The server is what
// workers wait for: whatever more is in flight waits in its rings, where it takes
// room in the caches and, with eight workers, would be dropped.
const window = 64

// work is a worker's process.
func (c *childConfig) work(ctx context.Context) (err error) {
	ranked, err := openKeys()
	if err != nil {
		return err
	}
	hot, err := hotSet(ranked)
	if err != nil {
		return err
	}
	part, err := harness.MapShared(workloadFD, int64(shareOffset(c.Worker.Batch, c.Worker.Number)), shareSize(c.Worker.Batch), unix.PROT_READ)
	if err != nil {
		return err
	}
	load := batches{size: c.Worker.Batch}
	load.keys, load.grads = splitShare(part)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends the admission
	client, hangUp, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp()
	worker, err := c.StartWorker(ctx, client, transport.WorkerConfig{
		Job: job, Sender: uint16(c.Worker.Number + 1), ServerEpoch: coldEpoch, HotSet: hot,
		Server: c.Worker.Server, Flow: retransmit.Config{Size: window},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, worker.Close()) }()

	var (
		pushes   atomic.Uint64
		stopped  atomic.Bool
		finished = make(chan struct{})
	)
	push := sync.OnceFunc(func() {
		go func() {
			if err := pushAll(ctx, worker, load, &pushes, stopped.Load); err != nil {
				cancel(err)
				return
			}
			close(finished)
		}()
	})
	return answer(ctx, pushes.Load, push, func(ctx context.Context) error {
		stopped.Store(true)
		push() // which has been done before, or ends at once
		select {
		case <-finished:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// batches is what one worker pushes.
type batches struct {
	size  int // pairs in a batch
	keys  []uint64
	grads []float32
}

// keysOf and gradsOf return the n-th push.
func (b *batches) keysOf(n int) []uint64   { return b.keys[n%batchesEach*b.size:][:b.size] }
func (b *batches) gradsOf(n int) []float32 { return b.grads[n%batchesEach*b.size:][:b.size] }

// pushAll pushes the batches of a worker in turn until stop returns true, InFlight of
// them at a time, and returns when all are acknowledged.
func pushAll(ctx context.Context, w *transport.Worker, load batches, pushes *atomic.Uint64, stop func() bool) error {
	var tickets [InFlight]*transport.Ticket
	wait := func(t *transport.Ticket) error {
		if t == nil {
			return nil
		}
		if err := t.Wait(ctx); err != nil {
			return err
		}
		pushes.Add(1)
		return nil
	}
	n := 0
	for ; !stop(); n++ {
		if err := wait(tickets[n%InFlight]); err != nil {
			return err
		}
		var err error
		if tickets[n%InFlight], err = w.PushLater(ctx, load.keysOf(n), load.gradsOf(n)); err != nil {
			return err
		}
	}
	for i := range InFlight {
		if err := wait(tickets[(n+i)%InFlight]); err != nil {
			return err
		}
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/sys"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// Requests to the processes of all baselines. Each is answered with a mark.
const (
	opStart = "start" // workers begin to push
	opMark  = "mark"
	opStop  = "stop" // a worker waits for what is in flight; a server stores its sums
)

// mark is the state of a process at a moment.
type mark struct {
	At     int64  `json:"at_ns"`     // CLOCK_MONOTONIC
	Pushes uint64 `json:"pushes"`    // acknowledged so far; 0 of a server
	User   uint64 `json:"user_ns"`   // CPU time of the process so far
	Kernel uint64 `json:"kernel_ns"` // CPU time of the process so far, in the kernel
}

func ownMark(pushes uint64) (mark, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return mark{}, os.NewSyscallError("clock_gettime", err)
	}
	u, err := sys.OwnUsage()
	return mark{At: ts.Nano(), Pushes: pushes, User: u.User, Kernel: u.Kernel}, err
}

// Descriptors under which processes find the shared memory.
const (
	workloadFD = 3
	sumsFD     = 4 // servers only
)

// childConfig is what a process of Libra is told.
type childConfig struct {
	harness.Place
	Server *serverConfig `json:",omitempty"`
	Worker *workerConfig `json:",omitempty"`
}

type serverConfig struct {
	Workers []netip.AddrPort // by number
	Harvest time.Duration    // between two harvests
}

type workerConfig struct {
	Number int // from 0 on; the sender id is one more
	Batch  int // pairs in a push
	Server wire.Endpoint

	Unprepared bool // the worker looks up the keys of each push
}

// RunChild is a process of Libra, on a host of the test bed. It is of no use by
// itself.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c childConfig) (err error) {
		switch {
		case c.Server != nil:
			err = c.serve(ctx)
		case c.Worker != nil:
			err = c.work(ctx)
		}
		if err != nil {
			return fmt.Errorf("push: %w", err)
		}
		return nil
	})
}

// answer serves requests until ctx ends or the process is told to end. start and
// stop do what the requests ask for.
func answer(ctx context.Context, pushes func() uint64, start func(), stop func(context.Context) error) error {
	return child.Serve(ctx, func(ctx context.Context, op string, _ json.RawMessage) (any, error) {
		switch op {
		case opStart:
			start()
		case opMark:
		case opStop:
			if err := stop(ctx); err != nil {
				return nil, err
			}
		default:
			return nil, child.Unknown(op)
		}
		return ownMark(pushes())
	})
}

// openKeys maps the keys of the workload, the hottest first.
func openKeys() ([]uint64, error) {
	mem, err := sys.MapShared(workloadFD, 0, 8*Keys, unix.PROT_READ)
	return view[uint64](mem), err
}

func hotSet(ranked []uint64) (*packer.HotSet, error) {
	return packer.NewHotSet(1, ranked[:HotKeys], nil, packer.Meta{})
}

// job is the number of the one job.
const job = 1

// newStore returns a store with all keys of the workload in it, as it is after
// some time of training: a server that is still growing would be measured for
// its growth.
func newStore(keys []uint64) (*ps.Store, error) {
	store, err := ps.New(ps.Config{Dim: 1, Exp: ps.DefaultExp, Capacity: len(keys)})
	if err != nil {
		return nil, err
	}
	return store, store.Push(keys, make([]float32, len(keys)))
}

// serve is the parameter server's process. The sums stay in the store's open step,
// because the baselines do not apply an optimiser either.
func (c *childConfig) serve(ctx context.Context) error {
	keys, err := openKeys()
	if err != nil {
		return err
	}
	sums, err := sys.MapShared(sumsFD, 0, sumsSize, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	store, err := newStore(keys)
	if err != nil {
		return err
	}
	hot, err := hotSet(keys)
	if err != nil {
		return err
	}
	fingerprint := hot.Fingerprint()
	spec := &pb.JobSpec{
		Job: job, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Slots: HotKeys, HotSet: fingerprint[:], HarvestPeriodUs: uint32(c.Server.Harvest / time.Microsecond),
	}
	return c.WithJob(ctx, spec, func(held context.Context, _ pb.AggregatorClient, owned *control.Owned) error {
		if err := c.serveJob(held, owned, store, keys, sums); err != nil {
			return err
		}
		return owned.Remove(ctx) // which ends held
	})
}

// serveJob sums until the process is told to end.
func (c *childConfig) serveJob(ctx context.Context, owned *control.Owned, store *ps.Store, keys []uint64, sums []byte) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	loop, err := c.startLoop(ctx, store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()
	harvester := control.NewHarvester(owned, func(h *control.Harvest) error {
		var failed error
		err := loop.Do(ctx, func() {
			_, failed = store.ApplyHarvest(ps.Harvest{Number: h.Number, Ranks: h.Ranks, Sums: h.Sums}, keys[:HotKeys])
		})
		return errors.Join(err, failed)
	}, slog.Default())
	go func() { cancel(harvester.Run(ctx)) }()
	go func() { <-loop.Done(); cancel(loop.Err()) }()

	return answer(ctx, func() uint64 { return 0 }, func() {}, func(ctx context.Context) error {
		if err := harvester.Now(ctx); err != nil {
			return err
		}
		var rows []row
		if err := loop.Do(ctx, func() {
			for key, units := range store.Pending() {
				rows = append(rows, row{key: key, units: units[0]})
			}
		}); err != nil {
			return err
		}
		putRows(sums, rows)
		return nil
	})
}

// coldEpoch is that of the flows to the server, where each worker joins once.
const coldEpoch = 1

func (c *childConfig) startLoop(ctx context.Context, store *ps.Store) (*transport.Server, error) {
	link, err := c.OpenLink()
	if err != nil {
		return nil, err
	}
	loop, err := transport.NewServer(transport.ServerConfig{Link: link, Job: job, Dim: 1, Handler: store})
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	for i, worker := range c.Server.Workers {
		if err := loop.Admit(ctx, uint16(i+1), worker, coldEpoch); err != nil {
			return nil, errors.Join(err, loop.Close())
		}
	}
	return loop, nil
}

// window is how many frames of a flow may be unacknowledged. The server is what
// workers wait for: whatever more is in flight waits in its rings, where it takes
// room in the caches and, with eight workers, would be dropped.
const window = 64

func (c *childConfig) work(ctx context.Context) (err error) {
	ranked, err := openKeys()
	if err != nil {
		return err
	}
	hot, err := hotSet(ranked)
	if err != nil {
		return err
	}
	part, err := sys.MapShared(workloadFD, int64(shareOffset(c.Worker.Batch, c.Worker.Number)), shareSize(c.Worker.Batch), unix.PROT_READ)
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
	defer func() { _ = hangUp() }()
	worker, err := c.StartWorker(ctx, client, transport.WorkerConfig{
		Job: job, Sender: uint16(c.Worker.Number + 1), ServerEpoch: coldEpoch, HotSet: hot,
		Server: c.Worker.Server, Flow: retransmit.Config{Size: window},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, worker.Close()) }()
	if !c.Worker.Unprepared {
		if err := load.prepare(ctx, worker); err != nil {
			return err
		}
	}

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

	prepared []*transport.Prepared // nil: they are not
}

// prepare looks the keys of all batches up, and has the server tell the numbers of their rows, as
// it has done when batches are pushed again and again.
func (b *batches) prepare(ctx context.Context, w *transport.Worker) error {
	b.prepared = make([]*transport.Prepared, batchesEach)
	for n := range b.prepared {
		var err error
		if b.prepared[n], err = w.Prepare(b.keysOf(n)); err != nil {
			return err
		}
		if err := b.prepared[n].Locate(ctx); err != nil {
			return err
		}
	}
	return nil
}

// push queues the n-th push.
func (b *batches) push(ctx context.Context, w *transport.Worker, n int) (*transport.Ticket, error) {
	if b.prepared == nil {
		return w.PushLater(ctx, b.keysOf(n), b.gradsOf(n))
	}
	return b.prepared[n%batchesEach].PushLater(ctx, b.gradsOf(n))
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
		if tickets[n%InFlight], err = load.push(ctx, w, n); err != nil {
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

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
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/linux/sys"
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

	// Requests to workers of Libra.
	opTrips = "trips" // after stop: push one at a time
)

// mark is the state of a process at a moment.
type mark struct {
	At     int64  `json:"at_ns"`     // CLOCK_MONOTONIC
	Pushes uint64 `json:"pushes"`    // acknowledged so far; 0 of a server
	User   uint64 `json:"user_ns"`   // CPU time of the process so far
	Kernel uint64 `json:"kernel_ns"` // CPU time of the process so far, in the kernel

	Frames   uint64 `json:"frames,omitempty"`   // frames that a worker of Libra has sent, repeated ones too
	Repeated uint64 `json:"repeated,omitempty"` // how many of them were repeated

	Trip time.Duration `json:"trip_ns,omitempty"` // answer to opTrips
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

// childConfig configures a process of Libra.
type childConfig struct {
	harness.HostConfig
	ServerEnd wire.Endpoint
	// MoreServers are the servers after the first.
	MoreServers []wire.Endpoint `json:",omitempty"`
	Server      *serverConfig   `json:",omitempty"`
	Worker      *workerConfig   `json:",omitempty"`
	Agent       *agentConfig    `json:",omitempty"`
	Dense       *denseConfig    `json:",omitempty"`
}

type serverConfig struct {
	Index   int              // 0 owns the job and takes its harvests
	Workers []netip.AddrPort // workers by number
	Harvest time.Duration    // between two harvests
	Marks   string           // folder of the workers that are told their marks; "": they keep no log
}

type workerConfig struct {
	Number     int    // number from 0 on
	Unprepared bool   // the keys of each push are looked up
	Socket     string // socket of the agent whose client it is; "": it is a worker of its own
	Marks      string // folder in which it is told its marks; "": it keeps no log
}

// RunChild is a process of Libra, on a host of the test bed. It is of no use by
// itself.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c childConfig) (err error) {
		if c.Spin < 0 {
			// It shares its CPU, and with more processors Go's monitor thread would wake up
			// thousands of times a second.
			runtime.GOMAXPROCS(1)
		}
		switch {
		case c.Server != nil:
			err = c.runServer(ctx)
		case c.Dense != nil:
			err = c.runDense(ctx)
		case c.Agent != nil:
			err = c.serveClients(ctx)
		case c.Worker.Socket != "":
			err = c.Worker.pushThroughAgent(ctx)
		default:
			err = c.runWorker(ctx)
		}
		if err != nil {
			return fmt.Errorf("push: %w", err)
		}
		return nil
	})
}

// answer serves requests until ctx ends or the process is told to end. others do what the requests
// ask for, and fill in what a mark does not contain by itself; opMark needs nothing.
func answer(ctx context.Context, pushes func() uint64, others map[string]func(context.Context, *mark) error) error {
	return child.Serve(ctx, func(ctx context.Context, op string, _ json.RawMessage) (any, error) {
		var told mark
		if do := others[op]; do != nil {
			if err := do(ctx, &told); err != nil {
				return nil, err
			}
		} else if op != opMark {
			return nil, child.Unknown(op)
		}
		now, err := ownMark(pushes())
		now.Trip, now.Frames, now.Repeated = told.Trip, told.Frames, told.Repeated
		return now, err
	})
}

// openHeader reads the header of the workload.
func openHeader() (header, error) {
	mem, err := sys.MapShared(workloadFD, 0, page, unix.PROT_READ)
	if err != nil {
		return header{}, err
	}
	defer func() { _ = unix.Munmap(mem) }()
	return headerOf(mem), nil
}

// openKeys maps the keys of the workload, the hottest first, and makes the hot set of them.
func openKeys() (ranked []uint64, hot *packer.HotSet, err error) {
	h, err := openHeader()
	if err != nil {
		return nil, nil, err
	}
	mem, err := sys.MapShared(workloadFD, page, 8*h.keys, unix.PROT_READ)
	if err != nil {
		return nil, nil, err
	}
	ranked = view[uint64](mem)
	hot, err = packer.NewHotSet(h.dim, ranked[:h.hot], nil, packer.Meta{})
	return ranked, hot, err
}

const job = 1

// newStore returns a store with all keys of the workload in it, as it is after
// some time of training: a server that is still growing would be measured for
// its growth.
func newStore(keys []uint64, dim int) (*ps.Store, error) {
	store, err := ps.New(ps.Config{Dim: dim, Exp: ps.DefaultExp, Capacity: len(keys)})
	if err != nil {
		return nil, err
	}
	return store, store.Push(keys, make([]float32, len(keys)*dim))
}

// runServer is the parameter server's process. The sums stay in the store's open step,
// because the baselines do not apply an optimiser either.
func (c *childConfig) runServer(ctx context.Context) error {
	keys, hot, err := openKeys()
	if err != nil {
		return err
	}
	sums, err := sys.MapShared(sumsFD, 0, sumsSize(len(keys), hot.Dim()), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	store, err := newStore(keys, hot.Dim())
	if err != nil {
		return err
	}
	if c.Server.Index > 0 {
		return c.serveJob(ctx, nil, store, nil, hot.Dim(), sums)
	}
	fingerprint := hot.Fingerprint()
	spec := &pb.JobSpec{
		Job: job, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Slots: uint32(hot.Slots()), HotSet: fingerprint[:], HarvestPeriodUs: uint32(c.Server.Harvest / time.Microsecond),
	}
	return c.WithJob(ctx, spec, func(held context.Context, _ pb.AggregatorClient, owned *control.Owned) error {
		if err := c.serveJob(held, owned, store, keys[:hot.Len()], hot.Dim(), sums); err != nil {
			return err
		}
		return owned.Remove(ctx) // which ends held
	})
}

// serveJob sums until the process is told to end. Only the first server owns the job.
func (c *childConfig) serveJob(ctx context.Context, owned *control.Owned, store *ps.Store, hot []uint64,
	dim int, sums []byte) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	loop, err := c.startLoop(ctx, store, dim)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()
	harvest := func(context.Context) error { return nil }
	if owned != nil {
		harvester := control.NewHarvester(owned, func(h *control.Harvest) error {
			var failed error
			err := loop.Do(ctx, func() {
				_, failed = store.ApplyHarvest(ps.Harvest{Number: h.Number, Ranks: h.Ranks, Sums: h.Sums}, hot)
			})
			if err = errors.Join(err, failed); err == nil && c.Server.Marks != "" {
				err = c.Server.tellMarks(h.Marks)
			}
			return err
		}, slog.Default())
		go func() { cancel(harvester.Run(ctx)) }()
		harvest = harvester.Now
	}
	go func() { <-loop.Done(); cancel(loop.Err()) }()

	return answer(ctx, func() uint64 {
		return 0
	}, map[string]func(context.Context, *mark) error{opStop: func(ctx context.Context, _ *mark) error {
		if err := harvest(ctx); err != nil {
			return err
		}
		var rows []row
		if err := loop.Do(ctx, func() {
			for key, units := range store.Pending() {
				if !slices.ContainsFunc(units, func(sum int64) bool { return sum != 0 }) {
					continue // the store has all keys
				}
				rows = append(rows, row{key: key, units: slices.Clone(units)})
			}
		}); err != nil {
			return err
		}
		putRows(sums, rows)
		return nil
	}})
}

// coldEpoch is that of the flows to the server, where each worker joins once.
const coldEpoch = 1

func (c *childConfig) startLoop(ctx context.Context, store *ps.Store, dim int) (*transport.Server, error) {
	link, err := c.OpenLink()
	if err != nil {
		return nil, err
	}
	loop, err := transport.NewServer(transport.ServerConfig{Link: link, Job: job, Dim: dim, Handler: store, Look: c.Look})
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

func (c *childConfig) runWorker(ctx context.Context) error {
	load, err := openShare(c.Worker.Number)
	if err != nil {
		return err
	}
	return c.withWorker(ctx, c.Worker.Number, func(ctx context.Context, worker *transport.Worker, _ *packer.HotSet) error {
		p := pusher[*transport.Ticket]{wait: func(ctx context.Context, t *transport.Ticket) error { return t.Wait(ctx) }}
		if c.Worker.Unprepared {
			p.push = func(ctx context.Context, n int) (*transport.Ticket, error) {
				return worker.PushLater(ctx, load.keysOf(n), load.gradsOf(n))
			}
			return drive(ctx, p, 0, frames(worker))
		}
		prepared := make([]*transport.Prepared, load.countPairs())
		for n := range prepared {
			if prepared[n], err = worker.Prepare(load.keysOf(n)); err != nil {
				return err
			}
			// As if batches had been pushed before, the server reports the numbers of their rows.
			if err := prepared[n].Locate(ctx); err != nil {
				return err
			}
		}
		p.push = func(ctx context.Context, n int) (*transport.Ticket, error) {
			return prepared[n%len(prepared)].PushLater(ctx, load.gradsOf(n))
		}
		return drive(ctx, p, 0, frames(worker))
	})
}

// withWorker calls do with the worker of a number, from 0 on; its sender id is one more.
func (c *childConfig) withWorker(ctx context.Context, number int,
	do func(context.Context, *transport.Worker, *packer.HotSet) error) error {
	_, hot, err := openKeys()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the admission
	client, hangUp, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = hangUp() }()
	var more []transport.Peer
	for _, at := range c.MoreServers {
		more = append(more, transport.Peer{At: at, Epoch: coldEpoch})
	}
	worker, end, err := c.startLogged(ctx, client, transport.WorkerConfig{
		MoreServers: more,
		Job:         job, Sender: uint16(number + 1), ServerEpoch: coldEpoch, HotSet: hot, Server: c.ServerEnd,
		Flow: retransmit.Config{Size: window},
	})
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, worker, hot), end(), worker.Close())
}

// frames returns the function that reports how many frames a worker has sent.
func frames(w *transport.Worker) func(context.Context, *mark) error {
	return func(ctx context.Context, told *mark) error {
		s, err := w.Stats(ctx)
		told.Repeated = s.Hot.Retransmitted + s.Cold.Retransmitted
		told.Frames = s.Hot.Sent + s.Cold.Sent + told.Repeated
		return err
	}
}

// pusher pushes the batches of one worker.
type pusher[Ticket any] struct {
	push func(ctx context.Context, n int) (Ticket, error) // the n-th push
	wait func(ctx context.Context, ticket Ticket) error
}

// drive pushes as the requests ask for, beginning with push number from. frames tells what a mark
// has of the frames; nil: they are another process's.
func drive[T any](ctx context.Context, p pusher[T], from int, frames func(context.Context, *mark) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		pushes   atomic.Uint64
		stopped  atomic.Bool
		finished = make(chan struct{})
	)
	pushes.Store(uint64(from))
	push := sync.OnceFunc(func() {
		go func() {
			if err := pushAll(ctx, p, &pushes, stopped.Load); err != nil {
				cancel(err)
				return
			}
			close(finished)
		}()
	})
	return answer(ctx, pushes.Load, map[string]func(context.Context, *mark) error{
		opMark:  frames,
		opStart: func(context.Context, *mark) error { push(); return nil },
		opStop: func(ctx context.Context, _ *mark) error {
			stopped.Store(true)
			push() // which has been done before, or ends at once
			select {
			case <-finished:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		opTrips: func(ctx context.Context, told *mark) (err error) {
			told.Trip, err = measureTrips(ctx, p, &pushes)
			return err
		},
	})
}

func openShare(worker int) (batches, error) {
	h, err := openHeader()
	if err != nil {
		return batches{}, err
	}
	s := h.shares[worker%len(h.shares)]
	mem, err := sys.MapShared(workloadFD, int64(s.offset), s.shareBytes(h.dim), unix.PROT_READ)
	if err != nil {
		return batches{}, err
	}
	return s.splitMemory(mem, h.dim), nil
}

// pushAll pushes the batches of a worker in turn, after those that were pushed before, until stop
// returns true, InFlight of them at a time, and returns when all are acknowledged.
func pushAll[T any](ctx context.Context, p pusher[T], pushes *atomic.Uint64, stop func() bool) error {
	var tickets [InFlight]T
	first := int(pushes.Load())
	waited, pushed := first, first
	wait := func() error {
		if err := p.wait(ctx, tickets[waited%InFlight]); err != nil {
			return err
		}
		waited++
		pushes.Add(1)
		return nil
	}
	for !stop() {
		if pushed-waited == InFlight {
			if err := wait(); err != nil {
				return err
			}
		}
		var err error
		if tickets[pushed%InFlight], err = p.push(ctx, pushed); err != nil {
			return err
		}
		pushed++
	}
	for waited < pushed {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// opTrips makes roundTrips pushes, one at a time, but takes about tripsLimit at most: a machine may
// be busy.
const roundTrips, tripsLimit = 2000, 5 * time.Second

// measureTrips returns the median time from a push to its acknowledgement, without others on their
// way.
func measureTrips[T any](ctx context.Context, p pusher[T], pushes *atomic.Uint64) (time.Duration, error) {
	times := make([]time.Duration, 0, roundTrips)
	for begin := time.Now(); len(times) < roundTrips && (len(times) == 0 || time.Since(begin) < tripsLimit); {
		start := time.Now()
		ticket, err := p.push(ctx, int(pushes.Load()))
		if err == nil {
			err = p.wait(ctx, ticket)
		}
		if err != nil {
			return 0, err
		}
		pushes.Add(1)
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

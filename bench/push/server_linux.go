package push

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

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
	sums, err := harness.MapShared(sumsFD, 0, sumsSize, unix.PROT_READ|unix.PROT_WRITE)
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

// startLoop starts the server's endpoint and admits the workers.
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

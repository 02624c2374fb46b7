package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// job is the number of the one job.
const job = 1

// dialLimit is how long a process waits for the aggregator's control service.
const dialLimit = 10 * time.Second

// openKeys maps the keys of the workload, the hottest first.
func openKeys() ([]uint64, error) {
	mem, err := mapShared(workloadFD, 0, 8*Keys, unix.PROT_READ)
	if err != nil {
		return nil, fmt.Errorf("%w; this command is for the harness to call", err)
	}
	return view[uint64](mem), nil
}

// hotSet makes the hot set of ranked keys.
func hotSet(ranked []uint64) (*packer.HotSet, error) {
	return packer.NewHotSet(1, ranked[:HotKeys], nil, packer.Meta{})
}

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
func (c *peerConfig) serve() (err error) {
	keys, err := openKeys()
	if err != nil {
		return err
	}
	sums, err := mapShared(sumsFD, 0, sumsSize, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	store, err := newStore(keys)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	conn, err := control.Dial(ctx, "aggregator", c.Control, control.Security{}, dialLimit, slog.Default())
	if err != nil {
		return err
	}
	defer conn.Close()
	owned, err := c.createJob(ctx, pb.NewAggregatorClient(conn), keys)
	if err != nil {
		return err
	}
	if err := owned.Hold(ctx, cancel); err != nil {
		return err
	}
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

	orders := follow(func() uint64 { return 0 })
	if err := proc.AnnounceReady(os.Stdout, true); err != nil {
		return err
	}
	select {
	case <-orders.stopped:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
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
	// The harvest's end is ctx's, but not that of this call.
	if err := owned.Remove(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	return orders.mark(0, true)
}

func (c *peerConfig) createJob(ctx context.Context, aggregator pb.AggregatorClient, keys []uint64) (*control.Owned, error) {
	hot, err := hotSet(keys)
	if err != nil {
		return nil, err
	}
	fingerprint := hot.Fingerprint()
	return control.CreateJob(ctx, aggregator, &pb.JobSpec{
		Job: job, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT,
		Slots: HotKeys, HotSet: fingerprint[:], HarvestPeriodUs: uint32(c.Harvest / time.Microsecond),
	}, dialLimit, slog.Default())
}

// coldEpoch is that of the flows to the server, where each worker joins once.
const coldEpoch = 1

// startLoop starts the server's endpoint and admits the workers.
func (c *peerConfig) startLoop(ctx context.Context, store *ps.Store) (*transport.Server, error) {
	link, err := c.openLink()
	if err != nil {
		return nil, err
	}
	loop, err := transport.NewServer(transport.ServerConfig{Link: link, Job: job, Dim: 1, Handler: store})
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	ip := c.FirstWorker
	for i := range c.Workers {
		if err := loop.Admit(ctx, uint16(i+1), netip.AddrPortFrom(ip, c.Local.Port()), coldEpoch); err != nil {
			return nil, errors.Join(err, loop.Close())
		}
		ip = ip.Next()
	}
	return loop, nil
}

// hardwareAddr returns the Ethernet address of an interface.
func hardwareAddr(name string) ([]byte, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	return i.HardwareAddr, nil
}

package push

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// window is how many frames of a flow may be unacknowledged. The server is what
// workers wait for: whatever more is in flight waits in its rings, where it takes
// room in the caches and, with eight workers, would be dropped.
const window = 64

// work is a worker's process.
func (c *peerConfig) work() (err error) {
	ranked, err := openKeys()
	if err != nil {
		return err
	}
	hot, err := hotSet(ranked)
	if err != nil {
		return err
	}
	part, err := mapShared(workloadFD, int64(shareOffset(c.Batch, c.Worker)), shareSize(c.Batch), unix.PROT_READ)
	if err != nil {
		return err
	}
	load := batches{size: c.Batch}
	load.keys, load.grads = splitShare(part)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // ends the admission
	conn, err := control.Dial(ctx, "aggregator", c.Control, control.Security{}, dialLimit, slog.Default())
	if err != nil {
		return err
	}
	defer conn.Close()
	admission, err := c.join(ctx, pb.NewAggregatorClient(conn), hot)
	if err != nil {
		return err
	}
	worker, err := c.startWorker(ctx, admission, hot)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, worker.Close()) }()

	var pushes atomic.Uint64
	orders := follow(pushes.Load)
	if err := proc.AnnounceReady(os.Stdout, true); err != nil {
		return err
	}
	<-orders.started
	if err := pushAll(ctx, worker, load, &pushes, orders.stopping); err != nil {
		return err
	}
	return orders.mark(pushes.Load(), true)
}

// join admits the worker at the aggregator, until ctx ends.
func (c *peerConfig) join(ctx context.Context, aggregator pb.AggregatorClient, hot *packer.HotSet) (*pb.Admission, error) {
	mac, err := hardwareAddr(c.Interface)
	if err != nil {
		return nil, err
	}
	fingerprint := hot.Fingerprint()
	stream, err := aggregator.Join(ctx, &pb.JoinRequest{
		Job: job, Sender: uint32(c.Worker + 1), Ip: c.Local.Addr().AsSlice(), Mac: mac, HotSet: fingerprint[:],
	})
	if err != nil {
		return nil, control.CallError("aggregator", "join", err)
	}
	admission, err := stream.Recv()
	return admission, control.CallError("aggregator", "join", err)
}

func (c *peerConfig) startWorker(ctx context.Context, admission *pb.Admission, hot *packer.HotSet) (*transport.Worker, error) {
	link, err := c.openLink()
	if err != nil {
		return nil, err
	}
	layout := packer.LaneAligned
	if admission.Dense {
		layout = packer.Dense
	}
	worker, err := transport.NewWorker(ctx, transport.WorkerConfig{
		Link: link, Job: job, Sender: uint16(c.Worker + 1), AggregatorEpoch: uint16(admission.Epoch), ServerEpoch: coldEpoch,
		HotSet: hot, Layout: layout, Stripes: int(admission.Stripes),
		Aggregator: wire.Endpoint{IP: c.Aggregator.Addr(), Port: c.Aggregator.Port()},
		Server:     wire.Endpoint{IP: c.Server.Addr(), Port: c.Server.Port()},
		Flow:       retransmit.Config{Size: window},
	})
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	return worker, nil
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

// pushAll pushes the batches of a worker in turn until stop says so, InFlight of
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
		if tickets[n%InFlight], err = w.Queue(ctx, load.keysOf(n), load.gradsOf(n)); err != nil {
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

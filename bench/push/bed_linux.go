package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/testbed"
	"github.com/libra-ina/libra/wire"
)

// bed is the network that a run takes place in: host 0 is the parameter
// server's, host i+1 that of worker i. The switch's ports carry the XDP
// aggregator for the whole run; jobs come and go.
type bed struct {
	net          *testbed.Bed
	aggregator   *bpf.Aggregator
	statistics   interface{ Close() error }
	control      *grpc.Server
	closeService func()
	end          context.CancelFunc // of the control service's streams
}

func newBed(ctx context.Context, workers int) (_ *bed, err error) {
	network, err := testbed.New(ctx, testbed.Config{Hosts: workers + 1, StaticARP: true})
	if err != nil {
		return nil, err
	}
	b := &bed{net: network}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	// The kernel counts the run time of BPF programs as long as the descriptor is
	// open: the setting is back to what it was when this process is gone, however it ends.
	if b.statistics, err = ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME)); err != nil {
		return nil, fmt.Errorf("push: count the run time of BPF programs (needs Linux 5.8): %w", err)
	}
	if b.aggregator, err = harness.OpenSwitch(network); err != nil {
		return nil, err
	}
	return b, network.Switch().Do(b.serve)
}

// serve starts the aggregator's control service in this process.
func (b *bed) serve() error {
	listener, err := net.Listen("tcp", harness.ControlAt(b.net).String())
	if err != nil {
		return fmt.Errorf("push: control service: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.end = cancel
	b.control = control.NewServer(control.Security{})
	service := control.NewAggregator(ctx, control.AggregatorConfig{
		Plane: b.aggregator, Stripes: wire.MaxStripes, Dense: true, Log: slog.New(slog.DiscardHandler),
	})
	pb.RegisterAggregatorServer(b.control, service)
	b.closeService = service.Close
	go func() { _ = b.control.Serve(listener) }() // ends with Stop, for which it has no error
	return nil
}

func (b *bed) close() error {
	var errs []error
	if b.control != nil {
		b.end()
		b.control.Stop()
		b.closeService()
	}
	errs = append(errs, harness.Close(b.aggregator))
	if b.statistics != nil {
		errs = append(errs, b.statistics.Close())
	}
	return errors.Join(append(errs, b.net.Close())...)
}

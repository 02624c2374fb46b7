package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/internal/node"
	"github.com/libra-ina/libra/internal/proc"
)

// peerConfig is what a process is told, as JSON: one member is set.
type peerConfig struct {
	Switch *switchConfig
	Tenant *tenantConfig
	Flood  *floodConfig
	Churn  *churnConfig
}

// endpoint is where a job's process lives, and its aggregator.
type endpoint struct {
	Interface     string
	IP            netip.Addr
	MAC           [6]byte
	Aggregator    netip.Addr
	AggregatorMAC [6]byte
	Control       netip.AddrPort
}

type switchConfig struct {
	Address      netip.Addr
	Control      netip.AddrPort
	Interfaces   []string
	ThreadedNAPI bool
}

// RunPeer is a process of the measurement: Run starts it with one argument after
// Config.PeerCommand, on a node of the test bed. It is of no use by itself.
func RunPeer(args []string) error {
	var c peerConfig
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &c) != nil {
		return errors.New("tenants: this command is for 'libra bench tenants' to call")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case c.Switch != nil:
		return c.Switch.serve(ctx)
	case c.Tenant != nil:
		return c.Tenant.run(ctx)
	case c.Flood != nil:
		return c.Flood.run(ctx)
	case c.Churn != nil:
		return c.Churn.run(ctx)
	}
	return errors.New("tenants: no role")
}

// serve runs the daemon and its data plane as 'libra switch' does.
func (c *switchConfig) serve(ctx context.Context) error {
	cfg := &cluster.Config{Switch: cluster.Switch{
		Address: c.Address, Control: c.Control, Interfaces: c.Interfaces, XDPMode: "native", ThreadedNAPI: c.ThreadedNAPI,
	}}
	cfg.SetDefaults()
	var failed error
	err := node.RunSwitch(ctx, node.Env{
		Config: cfg, Log: slog.New(slog.DiscardHandler),
		Ready: func() { failed = proc.AnnounceReady(os.Stdout, true) },
	})
	return errors.Join(failed, err)
}

// dial connects to the daemon.
func (e *endpoint) dial(ctx context.Context) (*grpc.ClientConn, pb.AggregatorClient, error) {
	conn, err := control.Dial(ctx, "aggregator", e.Control, control.Security{}, startLimit, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, nil, err
	}
	return conn, pb.NewAggregatorClient(conn), nil
}

// join admits a sender of a job for as long as ctx lives.
func (e *endpoint) join(ctx context.Context, client pb.AggregatorClient, job, sender uint32, hotSet []byte) (*pb.Admission, error) {
	stream, err := client.Join(ctx, &pb.JoinRequest{Job: job, Sender: sender, Ip: e.IP.AsSlice(), Mac: e.MAC[:], HotSet: hotSet})
	if err != nil {
		return nil, control.CallError("aggregator", "join", err)
	}
	admission, err := stream.Recv()
	return admission, control.CallError("aggregator", "join", err)
}

// wait lets time pass.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

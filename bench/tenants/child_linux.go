package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/internal/node"
	"github.com/libra-ina/libra/internal/proc"
)

// childConfig is what a process is told: one member is set.
type childConfig struct {
	Switch *switchConfig
	Tenant *tenantConfig
	Flood  *floodConfig
	Churn  *churnConfig
}

// RunChild is a process of the measurement: Run starts it with an argument after
// Config.ChildCommand, on a node of the test bed.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c childConfig) error {
		switch {
		case c.Switch != nil:
			return c.Switch.serve(ctx)
		case c.Tenant != nil:
			return c.Tenant.serve(ctx)
		case c.Flood != nil:
			return c.Flood.serve(ctx)
		case c.Churn != nil:
			return c.Churn.serve(ctx)
		}
		return errors.New("tenants: no role")
	})
}

// opRun makes a tenant, a flooder or a churner do its work.
const opRun = "run"

// whenAsked announces that the process is ready and does its work for [opRun].
func whenAsked[R any](ctx context.Context, work func(context.Context) (R, error)) error {
	return child.Serve(ctx, func(ctx context.Context, op string, _ json.RawMessage) (any, error) {
		if op != opRun {
			return nil, child.Unknown(op)
		}
		return work(ctx)
	})
}

type switchConfig struct {
	Address      netip.Addr
	Control      netip.AddrPort
	Interfaces   []string
	ThreadedNAPI bool
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

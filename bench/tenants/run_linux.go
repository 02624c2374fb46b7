// SPDX-License-Identifier: Apache-2.0

package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// tenants are the jobs that are measured. The host after theirs floods, and the
// last one's jobs and senders come and go. Job i lives on host i-1.
var tenants = []tenantConfig{
	{Job: 1, Mode: aggregator.Combine, Arithmetic: aggregator.Exact},
	{Job: 2, Mode: aggregator.FetchAdd, Arithmetic: aggregator.Fixed},
}

// Run measures, first undisturbed, then beside the other two hosts. It needs root; without,
// the error wraps a testbed.CapabilityError. Wrong sums end it with an error.
// Nothing is left behind, however the process ends.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	if err := errors.Join(cfg.check(), child.Command(&cfg.ChildCommand, "tenants")); err != nil {
		return nil, err
	}
	r := &Report{CPUs: runtime.NumCPU(), Harvest: cfg.Harvest, ThreadedNAPI: cfg.ThreadedNAPI}
	steps := experiment.ProgressCounter{Progress: cfg.Progress, Total: 2}
	for _, disturbed := range []bool{false, true} {
		what := "undisturbed"
		if disturbed {
			what = "disturbed"
		}
		steps.Next(what)
		run, err := measure(ctx, cfg, disturbed)
		if err != nil {
			return nil, fmt.Errorf("tenants, %s: %w", what, err)
		}
		r.Phases = append(r.Phases, *run)
	}
	return r, nil
}

func measure(ctx context.Context, cfg Config, disturbed bool) (_ *Phase, err error) {
	bed, err := testbed.New(ctx, testbed.Config{Hosts: len(tenants) + 2, StaticARP: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	m := &measurement{cfg: cfg, bed: bed, group: proc.NewGroup(ctx, proc.Config{})}
	run, err := m.run(ctx, disturbed)
	// The group knows what failed first, which explains the rest.
	if first := m.group.Stop(); first != nil {
		err = first
	}
	return run, err
}

type measurement struct {
	cfg   Config
	bed   *testbed.Bed
	group *proc.Group
}

// run starts the switch, then the disturbers, then the tenants, and waits for
// what they answer.
func (m *measurement) run(ctx context.Context, disturbed bool) (*Phase, error) {
	var (
		run     = &Phase{Disturbed: disturbed, Seconds: m.cfg.Duration.Seconds()}
		results = make([]tenantResult, len(tenants))
	)
	working, ctx := errgroup.WithContext(ctx)
	work := func(name string, host int, cfg childConfig, result any) error {
		cfg.HostConfig, cfg.Duration = harness.HostConfigOf(m.bed, host), m.cfg.Duration
		cfg.Spin = -1 // it shares the CPUs with others
		c, err := m.start(ctx, name, m.bed.Host(host), cfg, false)
		if err != nil {
			return err
		}
		working.Go(func() error {
			if err := c.Ask(ctx, opRun, nil, result); err != nil {
				return err
			}
			return c.Stop(ctx)
		})
		return nil
	}
	working.Go(func() error {
		sw := switchConfig{Address: m.bed.Switch().IP, Control: harness.ControlAt(m.bed), ThreadedNAPI: m.cfg.ThreadedNAPI}
		for _, h := range m.bed.Hosts() {
			sw.Interfaces = append(sw.Interfaces, h.PortName)
		}
		if _, err := m.start(ctx, "switch", m.bed.Switch(), childConfig{Switch: &sw}, true); err != nil {
			return err
		}
		if disturbed {
			// The flood fills its own host's cable, so the churn has another.
			if err := work("flooder", len(tenants), childConfig{Flood: true}, &run.Flood); err != nil {
				return err
			}
			if err := work("churner", len(tenants)+1, childConfig{Churn: true}, &run.Churn); err != nil {
				return err
			}
		}
		for i, t := range tenants {
			t.Harvest = m.cfg.Harvest
			if err := work(fmt.Sprintf("job %d", t.Job), i, childConfig{Tenant: &t}, &results[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err := working.Wait(); err != nil {
		return nil, err
	}
	for _, r := range results {
		run.Tenants = append(run.Tenants, r.Job)
		run.Dropped, run.Refused = max(run.Dropped, r.Dropped), max(run.Refused, r.Refused)
		run.Throttled = max(run.Throttled, r.Throttled)
	}
	return run, nil
}

func (m *measurement) start(ctx context.Context, name string, at *testbed.Node, cfg childConfig,
	service bool) (*child.Child, error) {
	return child.Launch(ctx, m.group, child.Spec{Name: name, Command: m.cfg.ChildCommand, Config: cfg, Start: at.Start,
		Service: service})
}

// childConfig configures a process: what it is and, but for the switch, where it is and for
// how long tenants push.
type childConfig struct {
	harness.HostConfig
	Duration time.Duration

	Switch       *switchConfig
	Tenant       *tenantConfig
	Flood, Churn bool
}

// RunChild is a process of the measurement: Run starts it with an argument after
// Config.ChildCommand, on a node of the test bed.
func RunChild(args []string) error {
	return child.Main(args, func(ctx context.Context, c childConfig) error {
		switch {
		case c.Switch != nil:
			return c.Switch.serve(ctx)
		case c.Tenant != nil:
			return c.tenant(ctx)
		case c.Flood:
			return c.flood(ctx)
		case c.Churn:
			return c.churn(ctx)
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

package tenants

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/testbed"
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
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.ChildCommand, err = child.Command(cfg.ChildCommand, "tenants"); err != nil {
		return nil, err
	}
	r := &Report{CPUs: runtime.NumCPU(), Harvest: cfg.Harvest, ThreadedNAPI: cfg.ThreadedNAPI}
	steps := harness.Steps{Progress: cfg.Progress, Total: 2}
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

// measure runs the jobs once, on a bed of their own.
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
		flooded floodResult
		churned churnResult
		results = make([]tenantResult, len(tenants))
	)
	working, ctx := errgroup.WithContext(ctx)
	work := func(name string, host int, cfg childConfig, result any) error {
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
			flood, churn := len(tenants), len(tenants)+1
			if err := work("flooder", flood, childConfig{Flood: &floodConfig{m.place(flood), m.cfg.Duration}}, &flooded); err != nil {
				return err
			}
			if err := work("churner", churn, childConfig{Churn: &churnConfig{m.place(churn), m.cfg.Duration}}, &churned); err != nil {
				return err
			}
		}
		for i, t := range tenants {
			t.Place, t.Duration, t.Harvest = m.place(i), m.cfg.Duration, m.cfg.Harvest
			if err := work(fmt.Sprintf("job %d", t.Job), i, childConfig{Tenant: &t}, &results[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err := working.Wait(); err != nil {
		return nil, err
	}
	run := &Phase{
		Disturbed: disturbed, Seconds: m.cfg.Duration.Seconds(),
		FloodFrames: flooded.Frames, FloodSeconds: flooded.Seconds,
		Joins: churned.Joins, Jobs: churned.Jobs, ChurnSeconds: churned.Seconds,
	}
	for _, r := range results {
		run.Tenants = append(run.Tenants, r.Job)
		run.Dropped, run.Refused = max(run.Dropped, r.Dropped), max(run.Refused, r.Refused)
		run.Throttled = max(run.Throttled, r.Throttled)
	}
	return run, nil
}

// start starts a process on a node and waits until it is ready.
func (m *measurement) start(ctx context.Context, name string, at *testbed.Node, cfg childConfig, service bool) (*child.Child, error) {
	c, err := child.Start(m.group, child.Spec{Name: name, Command: m.cfg.ChildCommand, Config: cfg, Start: at.Start, Service: service})
	if err != nil {
		return nil, err
	}
	return c, c.Ready(ctx)
}

// place returns the place of a host, whose process shares the CPUs with others and
// does not spin.
func (m *measurement) place(host int) harness.Place {
	p := harness.PlaceOf(m.bed, host)
	p.Spin = -1
	return p
}

package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/testbed"
)

const (
	controlPort = 7700
	startLimit  = 20 * time.Second
	floodJob    = 3
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
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.PeerCommand == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("tenants: %w", err)
		}
		cfg.PeerCommand = []string{self, "bench", "tenants", "peer"}
	}
	r := &Report{CPUs: runtime.NumCPU(), Harvest: cfg.Harvest, ThreadedNAPI: cfg.ThreadedNAPI}
	for i, disturbed := range []bool{false, true} {
		what := "undisturbed"
		if disturbed {
			what = "disturbed"
		}
		if cfg.Progress != nil {
			cfg.Progress(i, 2, what)
		}
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
	m := &measurement{cfg: cfg, bed: bed, group: proc.NewGroup(ctx, proc.Config{}), run: &Phase{Disturbed: disturbed}}
	err = m.do(ctx)
	// The group knows what failed first, which explains the rest.
	if first := m.group.Stop(); first != nil {
		err = first
	}
	return m.run, err
}

type measurement struct {
	cfg   Config
	bed   *testbed.Bed
	group *proc.Group
	run   *Phase
}

func (m *measurement) do(ctx context.Context) error {
	ready, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %v", startLimit))
	defer cancel()
	sw := switchConfig{Address: m.bed.Switch().IP, Control: m.control(), ThreadedNAPI: m.cfg.ThreadedNAPI}
	for _, h := range m.bed.Hosts() {
		sw.Interfaces = append(sw.Interfaces, h.PortName)
	}
	if _, err := m.start(ready, "switch", m.bed.Switch(), peerConfig{Switch: &sw}, nil); err != nil {
		return err
	}
	var flooder, churner *proc.Child
	var flooded floodResult
	var churned churnResult
	if m.run.Disturbed {
		host := m.bed.Host(len(tenants))
		f := floodConfig{endpoint: m.endpoint(host), Duration: m.cfg.Duration}
		var err error
		if flooder, err = m.start(ready, "flooder", host, peerConfig{Flood: &f}, &flooded); err != nil {
			return err
		}
		host = m.bed.Host(len(tenants) + 1) // the flood fills its own host's cable
		c := churnConfig{endpoint: m.endpoint(host), Duration: m.cfg.Duration}
		if churner, err = m.start(ready, "churner", host, peerConfig{Churn: &c}, &churned); err != nil {
			return err
		}
	}
	results := make([]tenantResult, len(tenants))
	var children []*proc.Child
	for i, t := range tenants {
		host := m.bed.Host(i)
		t.endpoint, t.Duration, t.Harvest = m.endpoint(host), m.cfg.Duration, m.cfg.Harvest
		child, err := m.start(ready, fmt.Sprintf("job %d", t.Job), host, peerConfig{Tenant: &t}, &results[i])
		if err != nil {
			return err
		}
		children = append(children, child)
	}
	for _, child := range children {
		if err := child.Wait(ctx); err != nil {
			return err
		}
	}
	m.run.Seconds = m.cfg.Duration.Seconds()
	for _, r := range results {
		m.run.Tenants = append(m.run.Tenants, r.Job)
		m.run.Dropped, m.run.Refused = max(m.run.Dropped, r.Dropped), max(m.run.Refused, r.Refused)
		m.run.Throttled = max(m.run.Throttled, r.Throttled)
	}
	if flooder == nil {
		return nil
	}
	for _, child := range []*proc.Child{flooder, churner} {
		if err := child.Wait(ctx); err != nil {
			return err
		}
	}
	m.run.FloodFrames, m.run.FloodSeconds = flooded.Frames, flooded.Seconds
	m.run.Joins, m.run.Jobs, m.run.ChurnSeconds = churned.Joins, churned.Jobs, churned.Seconds
	return nil
}

// start starts a process on a node and waits until it is ready. What it prints
// after that is decoded into result; nil means that it runs until it is stopped.
func (m *measurement) start(ctx context.Context, name string, at *testbed.Node, cfg peerConfig, result any) (*proc.Child, error) {
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	args := slices.Concat(m.cfg.PeerCommand[1:], []string{string(text)})
	spec := proc.Spec{Name: name, Cmd: exec.Command(m.cfg.PeerCommand[0], args...), Start: at.Start, Service: result == nil}
	if result != nil {
		spec.OnLine = func(line []byte) {
			_ = json.Unmarshal(line, result) // a bad line leaves zeroes, which the sums' check excludes
		}
	}
	child, err := m.group.Start(spec)
	if err != nil {
		return nil, err
	}
	return child, child.Ready(ctx, nil)
}

func (m *measurement) control() netip.AddrPort {
	return netip.AddrPortFrom(m.bed.Switch().IP, controlPort)
}

func (m *measurement) endpoint(host *testbed.Node) endpoint {
	return endpoint{
		Interface: host.Interface, IP: host.IP, MAC: [6]byte(host.MAC),
		Aggregator: m.bed.Switch().IP, AggregatorMAC: [6]byte(m.bed.Switch().MAC), Control: m.control(),
	}
}

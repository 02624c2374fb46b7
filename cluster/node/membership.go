// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// leaveLimit is how long a process that ends waits for an answer.
const leaveLimit = 2 * time.Second

// join admits a worker, whose frames come from an endpoint. If its admission ends before it leaves,
// cancel is called with the reason.
func join(ctx context.Context, cancel context.CancelCauseFunc, env Env, self cluster.Worker,
	hot *packer.HotSet, shares *allotment, from wire.Endpoint, all *admissions) (*control.Membership, error) {
	c := env.Config
	cfg, err := joinConfig(c, self, hot)
	if err != nil {
		return nil, err
	}
	if c.Job.Plan == "" {
		cfg.Shares = shares.forWorkers()
	} else {
		cfg.Plan = func(p *pb.Plan) ([]control.Share, error) {
			err := shares.takeMessage(c, hot, p)
			return shares.forWorkers(), err
		}
	}
	if cfg.MAC != nil && from.MAC != [6]byte{} {
		cfg.MAC = from.MAC[:] // the interface may have another one by now
	}
	if cfg.Security, err = access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key); err != nil {
		return nil, err
	}
	cfg.Limit, cfg.Dial, cfg.Lost, cfg.Log = startLimit, env.Machine.Client, cancel, env.Log
	cfg.Rewinds = all != nil
	cfg.Random, cfg.KeepsLog = env.Machine.Random, keepsLogs(c)
	switch {
	case !c.Job.Sync: // where steps must be equal anyway
		cfg.Begin = refuseMixture
	case all != nil:
		cfg.Begin = all.checkServer
	}
	m, err := control.Join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := agreeOnFirstStep(m, c.Job.Sync); err != nil {
		m.LeaveAs(control.Departure{Reason: err.Error()}) // the servers end, to be started with another step
		return nil, err
	}
	if all != nil {
		all.noteAdmission(m)
	}
	return m, nil
}

// agreeOnFirstStep refuses synchronous servers with checkpoints of different steps: together they
// are the weights of no moment. Without barriers there is no such moment, and the worker starts at
// the step of the server that has the fewest of its steps.
func agreeOnFirstStep(m *control.Membership, sync bool) error {
	steps := append([]uint64{m.FirstStep}, m.MoreFirstSteps...)
	m.FirstStep = slices.Min(steps)
	if !areOne(m.Trainings) && slices.Max(steps) > 0 {
		return fmt.Errorf("the checkpoints of the servers are of different trainings: %v, by index: "+
			"put files there that belong together, or remove all to start over", m.Trainings)
	}
	if !sync || slices.Max(steps) == m.FirstStep {
		return nil
	}
	differ := fmt.Sprintf("the checkpoints of the servers are of different steps: %v, by index", steps)
	if step, ok := newestOfAll(m.Checkpoints); ok {
		return fmt.Errorf("%s: start all servers with --step %d, the newest step of which each has a checkpoint", differ,
			step)
	}
	return fmt.Errorf("%s, and there is no step of which each has a checkpoint (%v): "+
		"put files there that belong together, or remove all to start over", differ, m.Checkpoints)
}

// refuseMixture refuses servers of which some continue a training, and others have nothing of it:
// their weights would be of two trainings. A worker that has not trained before can do no harm.
func refuseMixture(trainings []string, steps []uint64) error {
	if slices.Max(steps) == 0 || !slices.ContainsFunc(trainings, func(t string) bool { return t != "" }) {
		return nil
	}
	var anew []int
	for i, t := range trainings {
		if t == "" && steps[i] == 0 {
			anew = append(anew, i)
		}
	}
	if anew == nil {
		return nil
	}
	return fmt.Errorf("servers %v (by index, from 0) have no checkpoint of the training that the others continue: "+
		"stop all servers, and put a file there that belongs to those of the others, or remove those of the others to start over",
		anew)
}

// areOne reports whether servers continue the same training. "" is a new one, or one without an
// identity.
func areOne(trainings []string) bool {
	known := slices.DeleteFunc(slices.Clone(trainings), func(t string) bool { return t == "" })
	slices.Sort(known)
	return len(slices.Compact(known)) < 2
}

// newestOfAll returns the largest number that is in all lists.
func newestOfAll(lists [][]uint64) (newest uint64, ok bool) {
	for _, n := range lists[0] {
		inAll := !slices.ContainsFunc(lists, func(l []uint64) bool { return !slices.Contains(l, n) })
		if inAll && (!ok || n > newest) {
			newest, ok = n, true
		}
	}
	return newest, ok
}

// joinConfig returns the addresses of the services, and a worker's data for them.
func joinConfig(c *cluster.Config, self cluster.Worker, hot *packer.HotSet) (cfg control.JoinConfig, err error) {
	fingerprint := hot.Fingerprint()
	cfg = control.JoinConfig{
		Job: c.Job.ID, Worker: self.ID, From: netip.AddrPortFrom(self.Address, c.Port), HotSet: fingerprint[:],
		Pages: pagesOf(hot.Slots()), Aggregator: c.Switch.Control,
	}
	for _, s := range c.Standbys {
		cfg.Standbys = append(cfg.Standbys, s.Control)
	}
	servers := c.AllServers()
	cfg.Server = servers[0].Control
	for _, s := range servers[1:] {
		cfg.MoreServers = append(cfg.MoreServers, s.Control)
	}
	if cfg.Agree, err = agreement(c); err != nil {
		return cfg, err
	}
	cfg.MAC, err = frameMAC(c, self.Host)
	return cfg, err
}

// pagesOf returns the number of pages of a job's slots.
func pagesOf(slots int) int { return aggregator.JobConfig{Slots: slots}.Pages() }

// keepsLogs reports whether workers of a job are to keep what the aggregator acknowledges. Marks
// are of one instance of a job, and a job with several shares has several.
func keepsLogs(c *cluster.Config) bool { return c.Job.ReplayMiB > 0 && !c.Job.HasShares() }

// frameMAC returns the Ethernet address of a host's frames, nil over UDP sockets.
func frameMAC(c *cluster.Config, h cluster.Host) ([]byte, error) {
	if c.Backend != cluster.BackendAFXDP {
		return nil, nil
	}
	i, err := net.InterfaceByName(h.Interface)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", h.Interface, err)
	}
	if len(i.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s has no Ethernet address", h.Interface)
	}
	return i.HardwareAddr, nil
}

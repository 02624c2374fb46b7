// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// linkReading is the state of a host's link at a moment.
type linkReading struct {
	host, port uint64  // ns, of the threads that receive at its ends
	bytes      float64 // bytes in the busier direction, with all that Ethernet adds
	loopback   float64 // the same of the loopback device, in segments as long as the bed's frames
}

// What Ethernet adds to a frame besides its header: preamble, check sequence, gap. A full one has
// what TCP adds, too.
const (
	perFrame    = 8 + 4 + 12
	fullFrame   = wire.MaxMTU + 14 + perFrame
	fullSegment = wire.MaxMTU - 52
)

// readLinks reads the links of the server and of the workers, in a study of scale.
func (b *bed) readLinks(workers int) (links []linkReading, err error) {
	if b.threads == nil {
		return nil, nil
	}
	for i, h := range b.net.Hosts()[:workers+1] {
		var now linkReading
		var errs [3]error
		now.host, errs[0] = sys.TaskTime(b.threads[i][0])
		now.port, errs[1] = sys.TaskTime(b.threads[i][1])
		errs[2] = h.Do(func() error {
			link, err := netlink.LinkByIndex(h.Index)
			if err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			s := link.Attrs().Statistics
			now.bytes = float64(max(s.TxBytes+perFrame*s.TxPackets, s.RxBytes+perFrame*s.RxPackets))
			now.loopback = float64(lo.Attrs().Statistics.TxBytes) * fullFrame / fullSegment
			return nil
		})
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("push: read the link of %s: %w", h.Name, err)
		}
		links = append(links, now)
	}
	return links, nil
}

// measureScale measures what each role costs, with more harvests too, and the rate when each is
// held to its share.
func (r *run) measureScale(ctx context.Context, baseline string, workers int) (Sample, error) {
	o := observation{harvest: r.cfg.Harvest, lasts: r.cfg.Duration}
	s, costs, err := r.observeCluster(ctx, baseline, workers, o)
	if err != nil {
		return s, err
	}
	often, more := s, costs
	if ours(baseline) && baseline != SwitchML {
		o.harvest /= moreHarvests
		if often, more, err = r.observeCluster(ctx, baseline, workers, o); err != nil {
			return s, err
		}
	}
	s.Roles = costs.costOfRoles(s.PairsPerSecond, more, often.PairsPerSecond)
	if len(r.cfg.Traces) > 0 {
		return s, nil
	}

	share := heldShare(workers, runtime.NumCPU())
	slow, held, err := r.observeCluster(ctx, baseline, workers, observation{
		harvest: r.cfg.Harvest, lasts: max(r.cfg.Duration, heldPeriods*sys.GroupPeriod),
		hold: func(c *cluster) (func() error, error) { return r.holdToShare(c, share) },
	})
	if errors.Is(err, sys.ErrNoCPUGroups) {
		experiment.AddUnavailable(&r.report.Unavailable,
			experiment.Unavailable{What: "roles held to a share of a CPU", Reason: err.Error()})
		return s, nil
	}
	s.Held = &Held{
		Share: share, PairsPerSecond: slow.PairsPerSecond, WorkerCPUs: held.worker.inCPUs() / float64(workers),
		ServerCPUs: held.server.inCPUs(),
	}
	return s, err
}

// heldPeriods is how many periods of a control group a measurement lasts at least: the share is
// kept in the mean of many.
const heldPeriods = 100

// holdToShare holds the server and each worker, with the threads that receive at their interfaces,
// to a share of a CPU.
func (r *run) holdToShare(c *cluster, share float64) (release func() error, err error) {
	var groups []*sys.CPUGroup
	release = func() error { return experiment.Close(groups...) }
	for i, p := range slices.Concat(c.servers, c.workers) {
		g, err := sys.NewCPUGroup(fmt.Sprintf("role-%d", i), share)
		if err != nil {
			return nil, errors.Join(err, release())
		}
		groups = append(groups, g)
		if err := errors.Join(g.Add(p.Pid()), g.Add(r.bed.threads[i][0])); err != nil {
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}

// usage is CPU time in ns a second.
type usage struct{ user, kernel float64 }

func (u usage) inCPUs() float64 { return (u.user + u.kernel) / 1e9 }

func (u *usage) addUsage(v usage) { u.user, u.kernel = u.user+v.user, u.kernel+v.kernel }

func (m mark) usageSince(before mark) usage {
	seconds := float64(m.At-before.At) / 1e9
	return usage{float64(m.User-before.User) / seconds, float64(m.Kernel-before.Kernel) / seconds}
}

// rolesUsage is what the roles take, and the bytes a second on the links.
type rolesUsage struct {
	worker, server, sw       usage // the workers together
	workerBytes, serverBytes float64
}

// addLinks adds what the roles' links take, and returns the CPU time of all threads that receive at
// their ends.
func (u *rolesUsage) addLinks(baseline string, before, after []linkReading, seconds float64) (threads float64) {
	for i, from := range before {
		to := after[i]
		role, bytes := &u.worker, &u.workerBytes
		if i == 0 {
			role, bytes = &u.server, &u.serverBytes
		}
		*bytes += (to.bytes - from.bytes) / seconds
		host, port := float64(to.host-from.host)/seconds, float64(to.port-from.port)/seconds
		if ours(baseline) {
			role.kernel += host
			u.sw.kernel += port
		}
		threads += host + port
	}
	if len(before) > 0 && !ours(baseline) {
		u.serverBytes = (after[0].loopback - before[0].loopback) / seconds
		u.workerBytes = u.serverBytes
	}
	return threads
}

// costOfRoles divides what the roles took by the rate, and finds out by a measurement with more
// harvests what those cost.
func (u *rolesUsage) costOfRoles(rate float64, more rolesUsage, moreRate float64) *Roles {
	cost := func(few, many usage) (c RoleCost) {
		var user, kernel float64
		c.NsUser, user = withHarvests(few.user, rate, many.user, moreRate)
		c.NsKernel, kernel = withHarvests(few.kernel, rate, many.kernel, moreRate)
		c.Harvests = (user + kernel) / 1e9
		return c
	}
	return &Roles{
		Worker: RoleCost{NsUser: experiment.Quotient(u.worker.user, rate),
			NsKernel: experiment.Quotient(u.worker.kernel, rate)},
		Server: cost(u.server, more.server), Switch: cost(u.sw, more.sw),
		WorkerBytes: experiment.Quotient(u.workerBytes, rate), ServerBytes: experiment.Quotient(u.serverBytes, rate),
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/telemetry/export"
	"github.com/libra-ina/libra/transport"
)

// show begins to show what a process on an address has measured and counted, if the cluster file
// has a port for that; otherwise it returns nil.
func (e *Env) show(process netip.Addr, security access.Security, cfg export.Config) *export.Exporter {
	if cfg.At = e.Config.Telemetry.At(process); !cfg.At.IsValid() {
		return nil
	}
	cfg.Security, cfg.Log, cfg.Sample = security, e.Log, e.Config.Telemetry.OneIn()
	return export.Start(cfg)
}

// showSwitch shows a switch.
func (e *Env) showSwitch(security access.Security, service *control.Aggregator) *export.Exporter {
	var watch export.Watch[*pb.AggregatorStats]
	return e.show(e.Config.Switch.Control.Addr(), security, export.Config{
		Process: "switch",
		Watch: func(ctx context.Context) {
			watch.Run(ctx, func(ctx context.Context) (*pb.AggregatorStats, error) {
				return service.Stats(ctx, &pb.StatsRequest{})
			})
		},
		Collect: func(set *export.Set) time.Duration {
			stats, age, ok := watch.Latest()
			if ok {
				set.AddSwitch(stats)
			}
			return age
		},
	})
}

// showServer shows a parameter server.
func (s *server) showServer(name string) *export.Exporter {
	var watch export.Watch[*pb.ServerStats]
	job, recorder := s.env.Config.Job.ID, s.loop.Recorder()
	return s.env.show(s.env.Config.Server.Control.Addr(), s.security, export.Config{
		Process: name, Side: export.ServerSide,
		Watch: func(ctx context.Context) { watch.Run(ctx, s.serverStats) },
		Collect: func(set *export.Set) time.Duration {
			stats, age, ok := watch.Latest()
			if ok {
				set.AddServer(job, stats)
			}
			set.AddServerTimes(job, recorder)
			set.AddArrivals(job, s.service.Arrivals())
			return age
		},
		Recorders: func() []*telemetry.Recorder { return []*telemetry.Recorder{recorder} },
	})
}

// showWorker shows a worker.
func (e *Env) showWorker(security access.Security, w *endpoint, address netip.Addr, id uint16) *export.Exporter {
	var watch export.Watch[transport.WorkerStats]
	recorder := w.Recorder()
	return e.show(address, security, export.Config{
		Process: fmt.Sprint("worker ", id), Side: export.WorkerSide,
		Watch: func(ctx context.Context) { watch.Run(ctx, w.Stats) },
		Collect: func(set *export.Set) time.Duration {
			stats, age, ok := watch.Latest()
			shown := &stats
			if !ok {
				shown = nil
			}
			set.AddWorker(fmt.Sprint(e.Config.Job.ID), id, shown, recorder)
			return age
		},
		Recorders: func() []*telemetry.Recorder { return []*telemetry.Recorder{recorder} },
	})
}

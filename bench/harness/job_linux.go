// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bpf"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/linux/netdev"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

const controlPort = 7700

// startLimit bounds the wait for the control service, and for another job with the
// same number to end.
const startLimit = 2 * time.Minute

// ControlAt returns the address of the control service on a bed's switch.
func ControlAt(bed *testbed.Bed) netip.AddrPort {
	return netip.AddrPortFrom(bed.Switch().IP, controlPort)
}

// HostConfig is where on a bed a process of a job lives, and the way to its aggregator.
type HostConfig struct {
	Interface        string
	Self, Aggregator wire.Endpoint
	Control          netip.AddrPort // the aggregator's control service
	Spin             time.Duration  // as in [link.AFXDPConfig]
	MTU              int            // as in [link.AFXDPConfig]
	Look             time.Duration  // as in [transport.WorkerConfig]
	Faults           link.Faults    // faults of the link
}

// HostConfigOf returns the configuration for a process on a host.
func HostConfigOf(bed *testbed.Bed, host int) HostConfig {
	at, sw := bed.Host(host), bed.Switch()
	return HostConfig{
		Interface:  at.Interface,
		Self:       wire.Endpoint{MAC: [6]byte(at.MAC), IP: at.IP, Port: wire.DefaultPort},
		Aggregator: wire.Endpoint{MAC: [6]byte(sw.MAC), IP: sw.IP, Port: wire.DefaultPort},
		Control:    ControlAt(bed),
	}
}

// Dial connects to the control service. The caller calls hangUp.
func (p *HostConfig) Dial(ctx context.Context) (_ pb.AggregatorClient, hangUp func() error, err error) {
	conn, err := access.Dial(ctx, access.TheSwitch(), p.Control, access.Security{}, startLimit, slog.Default())
	if err != nil {
		return nil, nil, err
	}
	return pb.NewAggregatorClient(conn), conn.Close, nil
}

// WithJob creates a job and calls do, whose context ends when the job does. The job
// is kept alive until do returns.
func (p *HostConfig) WithJob(ctx context.Context, spec *pb.JobSpec,
	do func(context.Context, pb.AggregatorClient, *control.Owned) error) error {
	client, hangUp, err := p.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = hangUp() }()
	job, err := control.CreateJob(ctx, client, spec, startLimit, slog.Default())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := job.Hold(ctx, cancel); err != nil {
		return err
	}
	return do(ctx, client, job)
}

// Join admits a sender of a job for as long as ctx lives.
func (p *HostConfig) Join(ctx context.Context, client pb.AggregatorClient, job, sender uint32,
	hotSet []byte) (*pb.Admission, error) {
	stream, err := client.Join(ctx, &pb.JoinRequest{
		Job: job, Sender: sender, Ip: p.Self.IP.AsSlice(), Mac: p.Self.MAC[:], HotSet: hotSet, Pages: wire.MaxPages,
	})
	if err != nil {
		return nil, access.CallError(access.SwitchDaemon, "join", err)
	}
	admission, err := stream.Recv()
	return admission, access.CallError(access.SwitchDaemon, "join", err)
}

// OpenLink opens the AF_XDP link of the place.
func (p *HostConfig) OpenLink() (link.Link, error) {
	l, err := link.OpenAFXDP(link.AFXDPConfig{
		Interface: p.Interface, Local: netip.AddrPortFrom(p.Self.IP, p.Self.Port), Spin: p.Spin, MTU: p.MTU,
	})
	if err != nil || p.Faults == (link.Faults{}) {
		return l, err
	}
	faulty, err := link.WithFaults(l, p.Faults)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return faulty, nil
}

// StartWorker admits a worker for as long as ctx lives and starts it on the place's link.
// cfg contains what the admission does not: job, sender, hot set, server, mode and arithmetic.
func (p *HostConfig) StartWorker(ctx context.Context, client pb.AggregatorClient,
	cfg transport.WorkerConfig) (*transport.Worker, error) {
	fingerprint := cfg.HotSet.Fingerprint()
	admission, err := p.Join(ctx, client, uint32(cfg.Job), uint32(cfg.Sender), fingerprint[:])
	if err != nil {
		return nil, err
	}
	if cfg.Link, err = p.OpenLink(); err != nil {
		return nil, err
	}
	cfg.Aggregator, cfg.AggregatorEpoch, cfg.Look = p.Aggregator, uint16(admission.Epoch), p.Look
	cfg.Stripes, cfg.Exp, cfg.Layout = int(admission.Stripes), int(admission.Exponent), packer.LaneAligned
	if admission.Dense {
		cfg.Layout = packer.Dense
	}
	worker, err := transport.NewWorker(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, cfg.Link.Close())
	}
	return worker, nil
}

// NAPIThreads returns the threads that receive at a host and at its port of the switch, on a bed
// with threaded NAPI. They stand for softirqs and come before all processes.
func NAPIThreads(bed *testbed.Bed, host int) (threads [2]int, err error) {
	h := bed.Host(host)
	for i, end := range []struct {
		at      *testbed.Node
		ifindex int
	}{{h, h.Index}, {bed.Switch(), h.PortIndex}} {
		if err := end.at.Do(func() error {
			if threads[i], err = netdev.NAPIThread(end.ifindex); err != nil {
				return err
			}
			return os.NewSyscallError("setpriority", unix.Setpriority(unix.PRIO_PROCESS, threads[i], -20))
		}); err != nil {
			return threads, fmt.Errorf("threads that receive at the ends of %s: %w", h.Name, err)
		}
	}
	return threads, nil
}

// OpenSwitch puts the XDP aggregator on all ports of a bed's switch and tells it
// the way to the hosts. The caller closes it before the bed.
func OpenSwitch(bed *testbed.Bed) (a *bpf.Aggregator, err error) {
	err = bed.Switch().Do(func() error {
		if a, err = bpf.Open(bpf.Options{Address: bed.Switch().IP}); err != nil {
			return err
		}
		for _, h := range bed.Hosts() {
			if err := a.Attach(h.PortName, afxdp.AttachNative); err != nil {
				return err
			}
			if err := a.AddRoute([6]byte(h.MAC), h.PortName); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && a != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, err
}

// ServeControl serves the control service of a bed's switch for a data plane, until end is called.
func ServeControl(bed *testbed.Bed, plane aggregator.Plane) (end func(), err error) {
	var listener net.Listener
	if err := bed.Switch().Do(func() (err error) {
		listener, err = net.Listen("tcp", ControlAt(bed).String())
		return err
	}); err != nil {
		return nil, fmt.Errorf("control service: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := access.NewServer(access.Security{})
	service := control.NewAggregator(ctx, control.AggregatorConfig{
		Plane: plane, Stripes: wire.MaxStripes, Dense: true, Log: slog.New(slog.DiscardHandler),
	})
	pb.RegisterAggregatorServer(server, service)
	go func() { _ = server.Serve(listener) }() // ends with Stop, for which it has no error
	return func() {
		cancel() // of streams
		server.Stop()
		service.Close()
	}, nil
}

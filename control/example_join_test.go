// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// endpoint stands for a transport.Server, which accepts the frames of admitted workers.
type endpoint struct{}

func (endpoint) Admit(_ context.Context, sender uint16, from netip.AddrPort, _ uint16) error {
	fmt.Println("the server takes the frames of worker", sender, "from", from)
	return nil
}

func (endpoint) Remove(context.Context, uint16) error { return nil }

// A daemon, a parameter server and a worker, each in a few lines.
func ExampleJoin() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	hotSet := []byte("fingerprint") // packer.HotSet.Fingerprint
	serve := func(register func(*grpc.Server)) netip.AddrPort {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		check(err)
		server := access.NewServer(access.Security{})
		register(server)
		context.AfterFunc(ctx, server.Stop)
		go func() { _ = server.Serve(listener) }() // ends with Stop
		return listener.Addr().(*net.TCPAddr).AddrPort()
	}

	// The daemon, beside its data plane.
	model, err := aggregator.NewModel(aggregator.Config{})
	check(err)
	daemon := control.NewAggregator(ctx, control.AggregatorConfig{Plane: model, Stripes: 10, Dense: true, Log: quiet})
	defer daemon.Close()
	aggregatorAt := serve(func(s *grpc.Server) { pb.RegisterAggregatorServer(s, daemon) })

	// The parameter server: it creates the job and admits workers to it.
	conn, err := access.Dial(ctx, access.TheSwitch(), aggregatorAt, access.Security{}, time.Second, quiet)
	check(err)
	defer conn.Close()
	job, err := control.CreateJob(ctx, pb.NewAggregatorClient(conn), &pb.JobSpec{
		Job: 5, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Slots: 100, HotSet: hotSet,
	}, 0, quiet)
	check(err)
	held, release := context.WithCancel(ctx)
	defer release()
	check(job.Hold(held, func(err error) { fmt.Println("lost:", err) }))
	service := control.NewParameterServer(ctx, control.ParameterServerConfig{
		Job: 5, Instance: job.Instance, Port: 19522, Dimension: 1, HotSet: hotSet, Workers: []uint16{1}, Members: endpoint{},
		Commit: func(_ context.Context, step uint64) error { fmt.Println("step", step, "ends"); return nil },
		Log:    quiet,
	})
	defer service.Close()
	serverAt := serve(func(s *grpc.Server) { pb.RegisterParameterServerServer(s, service) })

	// The worker: a transport.Worker needs the fields of its membership.
	m, err := control.Join(ctx, control.JoinConfig{
		Job: 5, Worker: 1, From: netip.MustParseAddrPort("127.0.0.1:19522"), HotSet: hotSet,
		Server: serverAt, Aggregator: aggregatorAt, Log: quiet,
	})
	check(err)
	fmt.Println("arithmetic", m.Arithmetic, "in units of 2 to the power of", m.Exp, "with", m.Stripes, "stripes a frame")
	check(m.Barrier(ctx, m.FirstStep))
	check(m.Done(ctx))
	m.Leave()

	check(service.Wait(ctx)) // until all workers have finished
	release()
	check(job.Remove(ctx))
	// Output:
	// the server takes the frames of worker 1 from 127.0.0.1:19522
	// arithmetic exact in units of 2 to the power of -46 with 10 stripes a frame
	// step 0 ends
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

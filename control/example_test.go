// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// A daemon serves a data plane; a parameter server creates a job there, holds it, and requests a
// harvest.
func Example() {
	quiet := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		panic(err)
	}
	service := control.NewAggregator(ctx, control.AggregatorConfig{Plane: model, Stripes: 10, Dense: true, Log: quiet})
	defer service.Close()
	server := access.NewServer(access.Security{})
	pb.RegisterAggregatorServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() { _ = server.Serve(listener) }() // ends with Stop
	defer server.Stop()

	addr := listener.Addr().(*net.TCPAddr).AddrPort()
	conn, err := access.Dial(ctx, access.TheSwitch(), addr, access.Security{}, 10*time.Second, quiet)
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	job, err := control.CreateJob(ctx, pb.NewAggregatorClient(conn), &pb.JobSpec{
		Job: 5, Mode: pb.Mode_MODE_COMBINE, Arithmetic: pb.Arithmetic_ARITHMETIC_EXACT, Exponent: proto.Int32(-46),
		Slots: 100, HotSet: []byte("fingerprint"),
	}, 0, quiet)
	if err != nil {
		panic(err)
	}
	held, release := context.WithCancel(ctx)
	defer release()
	if err := job.Hold(held, func(err error) { fmt.Println("lost:", err) }); err != nil {
		panic(err)
	}
	harvester := control.NewHarvester(job, func(h *control.Harvest) error {
		fmt.Println("harvest", h.Number, "of", h.Frames, "frames")
		return nil
	}, quiet)
	var ended sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	ended.Go(func() { _ = harvester.Run(running) }) // until it is stopped
	if err := harvester.Now(ctx); err != nil {
		panic(err)
	}
	stop()
	ended.Wait()
	release()
	fmt.Println(job.Remove(ctx))
	// Output:
	// harvest 1 of 0 frames
	// <nil>
}

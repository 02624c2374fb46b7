// SPDX-License-Identifier: Apache-2.0

package reducer_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"sync"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/transport/reducer"
)

// Two workers add three numbers each, over UDP sockets on the loopback interface. In a cluster,
// control.JoinRounds creates the job and admits the workers.
func Example() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	open := func() link.Link {
		l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		check(err)
		return l
	}
	shape := reducer.Shape{Workers: 2, Width: 3, InFlight: 2, Exp: aggregator.DefaultExp(aggregator.Exact)}
	job, err := reducer.Job[float32](shape)
	check(err)
	job.ID, job.Epoch = 1, 1
	model, err := aggregator.NewModel(aggregator.Config{})
	check(err)
	check(model.AddJob(job))
	at := open()
	server, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: at, Model: model})
	check(err)
	defer server.Close()

	var workers []*reducer.Reducer[float32]
	for id := range uint16(shape.Workers) {
		l := open()
		check(model.AddSender(job.ID, aggregator.SenderConfig{ID: id, Epoch: job.Epoch, IP: l.Local().IP, Port: l.Local().Port}))
		r, err := reducer.New[float32](ctx, reducer.Config{
			Link: l, Job: job.ID, Sender: id, Epoch: job.Epoch, Aggregator: at.Local(), Shape: shape,
		})
		check(err)
		defer r.Close()
		workers = append(workers, r)
	}
	var all sync.WaitGroup
	for id, r := range workers {
		all.Go(func() {
			op, err := r.Start([]float32{1, float32(id), 0.25})
			check(err)
			sums := make([]float32, shape.Width)
			check(r.Wait(op, sums))
			if check(r.Barrier()); id == 0 {
				fmt.Println(sums)
			}
		})
	}
	all.Wait()
	// Output: [2 1 0.5]
}

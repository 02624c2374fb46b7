// SPDX-License-Identifier: Apache-2.0

package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// One worker pushes to an aggregator and a parameter server on the loopback
// interface, without privileges. Row 7 is hot, row 8 is not.
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
	const job, epoch, sender, dim = 1, 1, 1, 1
	hot, err := packer.NewHotSet(dim, []uint64{7}, nil, packer.Meta{})
	check(err)

	model, err := aggregator.NewModel(aggregator.Config{})
	check(err)
	config := aggregator.JobConfig{ID: job, Epoch: epoch, Exp: aggregator.DefaultExp(aggregator.Exact), Slots: hot.Slots()}
	check(model.AddJob(config))
	aggLink := open()
	agg, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: aggLink, Model: model})
	check(err)
	defer agg.Close()

	store, err := ps.New(ps.Config{Dim: dim, Exp: config.StoreExp(), Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}})
	check(err)
	serverLink := open()
	server, err := transport.NewServer(transport.ServerConfig{Link: serverLink, Job: job, Dim: dim, Handler: store})
	check(err)
	defer server.Close()

	workerLink := open()
	at := workerLink.Local()
	check(model.AddSender(job, aggregator.SenderConfig{ID: sender, Epoch: epoch, IP: at.IP, Port: at.Port}))
	check(server.Admit(ctx, sender, netip.AddrPortFrom(at.IP, at.Port), epoch))
	worker, err := transport.NewWorker(ctx, transport.WorkerConfig{
		Link: workerLink, Job: job, Sender: sender, AggregatorEpoch: epoch, ServerEpoch: epoch, HotSet: hot,
		Exp:        aggregator.DefaultExp(aggregator.Exact),
		Aggregator: aggLink.Local(), Server: serverLink.Local(),
	})
	check(err)
	defer worker.Close()

	ticket, err := worker.Push(ctx, []uint64{7, 8}, []float32{0.5, 4})
	check(err)
	check(ticket.Wait(ctx))

	bank, err := model.Swap(job)
	check(err)
	fmt.Println("in the aggregator, units of 2^-46:", bank.Slots)
	harvest := ps.Harvest{Number: 1}
	for _, slot := range bank.Slots {
		sum, ok := config.Units(slot, store.Config().Exp)
		if !ok {
			panic("a sum is out of the store's range")
		}
		harvest.Sums = append(harvest.Sums, sum)
	}
	check(model.Clear(bank))
	check(server.Do(ctx, func() {
		_, err := store.ApplyHarvest(harvest, []uint64{7})
		check(err)
		store.Commit()
	}))
	weights := make([]float32, 2*dim)
	check(worker.Pull(ctx, []uint64{7, 8}, weights))
	fmt.Println("weights after a step of SGD:", weights)
	// Output:
	// in the aggregator, units of 2^-46: [35184372088832]
	// weights after a step of SGD: [-0.5 -4]
}

// Batches of a few rows share frames: a worker queues them and waits for the oldest
// ticket only.
func ExampleWorker_PushLater() {
	ctx := context.Background()
	server, worker := openPair(ctx)
	defer server.Close()
	defer worker.Close()

	var tickets []*transport.Ticket
	for key := range uint64(10) {
		ticket, err := worker.PushLater(ctx, []uint64{key}, []float32{1})
		if err != nil {
			panic(err)
		}
		tickets = append(tickets, ticket)
	}
	for _, ticket := range tickets {
		if err := ticket.Wait(ctx); err != nil {
			panic(err)
		}
	}
	stats, err := worker.Stats(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println(stats.RowsCold, "rows in", stats.Cold.Sent, "frame")
	// Output:
	// 10 rows in 1 frame
}

// Batches that are repeated in each epoch are looked up once.
func ExampleWorker_Prepare() {
	ctx := context.Background()
	server, worker := openPair(ctx)
	defer server.Close()
	defer worker.Close()

	batch, err := worker.Prepare([]uint64{7, 8})
	if err != nil {
		panic(err)
	}
	weights, grads := make([]float32, 2), []float32{1, 2}
	for range 3 { // epochs
		if err := batch.Pull(ctx, weights); err != nil {
			panic(err)
		}
		// Here the weights become gradients.
		ticket, err := batch.Push(ctx, grads)
		if err != nil {
			panic(err)
		}
		if err := ticket.Wait(ctx); err != nil {
			panic(err)
		}
	}
	stats, err := worker.Stats(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Println(stats.KeysPulled, "rows pulled,", stats.RowsCold, "pushed")
	// Output:
	// 6 rows pulled, 6 pushed
}

// The error of a refused batch names the gradient; nothing of it is sent.
func ExampleWorker_Push_refused() {
	ctx := context.Background()
	server, worker := openPair(ctx)
	defer server.Close()
	defer worker.Close()

	_, err := worker.Push(ctx, []uint64{3, 4}, []float32{1, float32(math.Inf(1))})
	fmt.Println(err)
	var bad *packer.NotFiniteError
	fmt.Println(errors.As(err, &bad) && bad.Key == 4)
	// Output:
	// packer: gradient 1 (key 4) is +Inf; nothing of the batch was sent: put a finite number there, or leave the row out
	// true
}

// openPair returns a parameter server and a worker of a job without hot rows.
func openPair(ctx context.Context) (*transport.Server, *transport.Worker) {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	store, err := ps.New(ps.Config{Dim: 1, Exp: ps.DefaultExp, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}})
	check(err)
	serverLink, err := link.OpenUDP(loopback)
	check(err)
	server, err := transport.NewServer(transport.ServerConfig{Link: serverLink, Job: 1, Dim: 1, Handler: store})
	check(err)
	workerLink, err := link.OpenUDP(loopback)
	check(err)
	at := workerLink.Local()
	check(server.Admit(ctx, 1, netip.AddrPortFrom(at.IP, at.Port), 1))
	worker, err := transport.NewWorker(ctx, transport.WorkerConfig{
		Link: workerLink, Job: 1, Sender: 1, ServerEpoch: 1, Dim: 1, Server: serverLink.Local(),
	})
	check(err)
	return server, worker
}

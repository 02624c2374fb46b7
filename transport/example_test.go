package transport_test

import (
	"context"
	"fmt"
	"log"
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
	check(model.AddJob(aggregator.JobConfig{ID: job, Epoch: epoch, Exp: aggregator.DefaultExp(aggregator.Exact), Slots: hot.Slots()}))
	aggLink := open()
	agg, err := transport.NewAggregatorServer(aggLink, model)
	check(err)
	defer agg.Close()

	store, err := ps.New(ps.Config{Dim: dim, Exp: ps.DefaultExp, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 1}})
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
	check(server.Do(ctx, func() { store.Commit() }))
	row := make([]float32, dim)
	check(worker.Pull(ctx, []uint64{8}, row))
	fmt.Println("weights after a step of SGD:", row)
	// Output:
	// in the aggregator, units of 2^-46: [35184372088832]
	// weights after a step of SGD: [-4]
}

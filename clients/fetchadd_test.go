// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// fetchAdd is an agent for a job in mode fetchadd, in which the rows 5 and 6 are hot.
func fetchAdd(t *testing.T) *bed {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() link.Link {
		l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		must(err)
		return l
	}
	toAggregator, toServer, own := open(), open(), open()
	at := own.Local()
	hot, err := packer.NewHotSet(dim, []uint64{5, 6}, nil, packer.Meta{})
	must(err)
	model, err := aggregator.NewModel(aggregator.Config{})
	must(err)
	must(model.AddJob(aggregator.JobConfig{ID: 1, Epoch: 1, Mode: aggregator.FetchAdd, Exp: ps.DefaultExp, Slots: hot.Slots()}))
	must(model.AddSender(1, aggregator.SenderConfig{ID: 1, Epoch: 1, IP: at.IP, Port: at.Port}))
	aggregates, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: toAggregator, Model: model})
	must(err)
	store, err := ps.New(ps.Config{Dim: dim, Exp: ps.DefaultExp, Optimizer: config(dim, 1).Optimizer})
	must(err)
	server, err := transport.NewServer(transport.ServerConfig{Link: toServer, Job: 1, Dim: dim, Handler: store})
	must(err)
	must(server.Admit(t.Context(), 1, netip.AddrPortFrom(at.IP, at.Port), 1))
	worker, err := transport.NewWorker(t.Context(), transport.WorkerConfig{
		Link: own, Job: 1, Sender: 1, Dim: dim, Server: toServer.Local(), ServerEpoch: 1, AggregatorEpoch: 1,
		HotSet: hot, Layout: packer.Dense, Mode: aggregator.FetchAdd, Exp: ps.DefaultExp, Aggregator: toAggregator.Local(),
	})
	must(err)
	b := &bed{socket: filepath.Join(openDir(t), "agent.sock"), served: make(chan error, 1)}
	b.agent, err = agent.Listen(agent.Config{Socket: b.socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{
		{Name: jobName, Worker: worker, HotSet: hot, Mode: aggregator.FetchAdd, Exp: ps.DefaultExp},
	}})
	must(err)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { b.served <- b.agent.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-b.served, b.agent.Close(), worker.Close(), server.Close(), aggregates.Close(), model.Close()); err != nil {
			t.Error(err)
		}
	})
	return b
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// fetchAdd is a worker of a job in fetchadd mode, with rows 5 and 6 hot.
func fetchAdd(t *testing.T) (*transport.Worker, *packer.HotSet) {
	t.Helper()
	hot, err := packer.NewHotSet(dim, []uint64{5, 6}, nil, packer.Meta{})
	must(t, err)
	model, err := aggregator.NewModel(aggregator.Config{})
	must(t, err)
	t.Cleanup(func() { _ = model.Close() })
	must(t, model.AddJob(aggregator.JobConfig{ID: 1, Epoch: 1, Mode: aggregator.FetchAdd, Exp: ps.DefaultExp, Slots: hot.Slots()}))
	toAggregator, own := openUDP(t), openUDP(t)
	a, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: toAggregator, Model: model})
	must(t, err)
	t.Cleanup(func() { _ = a.Close() })
	at := own.Local()
	must(t, model.AddSender(1, aggregator.SenderConfig{ID: 1, Epoch: 1, IP: at.IP, Port: at.Port}))
	return onlyWorker(t, nil, transport.WorkerConfig{
		Link: own, AggregatorEpoch: 1, HotSet: hot, Layout: packer.Dense,
		Mode: aggregator.FetchAdd, Exp: ps.DefaultExp, Aggregator: toAggregator.Local(),
	}), hot
}

// In a job in fetchadd mode a push returns the sums of hot rows, prepared or not. Those of cold
// rows do not change.
func TestPushSums(t *testing.T) {
	w, hot := fetchAdd(t)
	socket := filepath.Join(shortDir(t), "agent.sock")
	serve(t, agent.Config{Socket: socket, Log: slog.New(slog.DiscardHandler), Jobs: []agent.Job{
		{Name: jobName, Worker: w, HotSet: hot, Mode: aggregator.FetchAdd, Exp: ps.DefaultExp},
	}})
	c, err := agentclient.Dial(within(t), socket, agentproto.Hello{Job: jobName})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if mode := c.Welcome().Mode; mode != uint8(aggregator.FetchAdd) {
		t.Errorf("mode %d", mode)
	}
	keys := []uint64{5, 9, 6}
	for i := range 3 {
		grads := []float32{1, 2, 3, 4, 5, 6}
		n := float32(i + 1)
		if err := c.PushSums(within(t), keys, grads); err != nil {
			t.Fatal(err)
		}
		if want := []float32{n, 2 * n, 3, 4, 5 * n, 6 * n}; !slices.Equal(grads, want) {
			t.Errorf("after %d pushes the sums are %v, want %v", i+1, grads, want)
		}
	}
	handle, err := c.Prepare(within(t), keys)
	if err != nil {
		t.Fatal(err)
	}
	values, sums := c.Memory().Floats(0, 6), c.Memory().Floats(64, 6)
	copy(values, []float32{1, 1, 1, 1, 1, 1})
	copy(sums, []float32{9, 9, 9, 9, 9, 9})
	failed(t, c, agentproto.Entry{Op: agentproto.PushSums, Dim: dim, Batch: handle, Values: 0, Sums: 64, N: 3}, agentproto.OK)
	if want := []float32{4, 7, 9, 9, 16, 19}; !slices.Equal(sums, want) {
		t.Errorf("sums %v, want %v", sums, want)
	}
	copy(values, []float32{1, -1 << 17, 1, 1, 1, 1})
	failed(t, c, agentproto.Entry{Op: agentproto.PushSums, Dim: dim, Batch: handle, Values: 0, Sums: 64, N: 3}, agentproto.OutOfRange)
	// The aggregator refuses a sum out of range; the error names it and the key.
	copy(values, []float32{1<<17 - 8, 0, 0, 0, 0, 0})
	failed(t, c, agentproto.Entry{Op: agentproto.PushSums, Dim: dim, Batch: handle, Values: 0, Sums: 64, N: 3}, agentproto.OK)
	got := failed(t, c, agentproto.Entry{Op: agentproto.PushSums, Dim: dim, Batch: handle, Values: 0, Sums: 64, N: 3}, agentproto.Refused)
	if got.Peer != agentproto.Aggregator || !got.KeyKnown || got.Key != 5 || got.Refusal == 0 || got.Refused != 1 || got.Acknowledged != 1 {
		t.Errorf("completion %+v", got)
	}
	if err := c.Flush(within(t)); !errors.Is(err, agentproto.OutOfRange) {
		t.Errorf("flush: %v", err)
	}
}

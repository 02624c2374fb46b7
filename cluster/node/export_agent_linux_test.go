// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/telemetry/export"
)

// An agent shows its jobs, its clients and the records of its worker where the worker's frames come
// from, and nothing after its end.
func TestAgentShowsItsJobs(t *testing.T) {
	var log, hosts lines
	from, served := agentJob(t, &log)
	from.Users = nil
	c, err := cluster.Read(from.Cluster, func(c *cluster.Config) { c.Telemetry.Port = freePort(t, c.Switch.Address) })
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(from.Cluster); err != nil {
		t.Fatal(err)
	}
	cfg := &cluster.Agent{Socket: filepath.Join(t.TempDir(), "agent.sock"), Jobs: []cluster.AgentJob{*from}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- runAgent(ctx, cfg, hosts.logger(), func() { close(ready) }, func() error { return nil })
	}()
	<-ready
	client, err := agentclient.Dial(ctx, cfg.Socket, agentproto.Hello{Job: from.Name, Parties: 1, BufferBytes: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	worker := c.Processes()[2]
	want := `libra_agent_client_pushes_total{job="5",peer="client 1"}`
	for !hasSample(shownBy(t, worker, "/metrics"), want) { // it looks at its counters once a second
		if _, err := client.Push(ctx, []uint64{1 << 40}, []float32{1, 2, 3, 4}); err != nil || t.Failed() {
			t.Fatal(err)
		}
	}
	for _, want := range []string{`libra_agent_jobs`, `libra_agent_clients{job="5"}`, `libra_worker_sent_frames_total{job="5",op="cold",worker="1"}`} {
		if text := shownBy(t, worker, "/metrics"); !hasSample(text, want) {
			t.Errorf("it does not show %s: %s", want, text)
		}
	}
	for drawn := 0; drawn == 0; { // of the first 34 frames none is
		if _, err := client.Push(ctx, []uint64{1 << 40}, []float32{1, 2, 3, 4}); err != nil || t.Failed() {
			t.Fatal(err)
		}
		h, records, _, err := export.ReadRecords(strings.NewReader(shownBy(t, worker, "/records")))
		if err != nil || h.Process != worker.Name || h.Side != export.WorkerSide {
			t.Fatalf("%+v, %d records, %v", h, len(records), err)
		}
		drawn = len(records)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if l, err := new(Machine).listen(t.Context(), "test", worker.At); err != nil {
		t.Errorf("after its end: %v", err)
	} else {
		l.Close()
	}
	served.stop()
	if err := <-served.ended; err == nil {
		t.Error("the server ends without its worker")
	}
}

// Jobs with one address and port are shown together. They cannot have different certificates, and
// those with the same number have their names.
func TestAgentsShowSeveralJobs(t *testing.T) {
	config := func(job uint16, port uint16, ca string) *cluster.Config {
		return &cluster.Config{Job: cluster.Job{ID: job}, Telemetry: cluster.Telemetry{Port: port}, TLS: cluster.TLS{CA: ca}}
	}
	self := cluster.Worker{ID: 3, Host: cluster.Host{Address: netip.MustParseAddr("10.0.0.3")}}
	joined := func(name string, c *cluster.Config) *joinedJob {
		j := &joinedJob{env: Env{Config: c}, self: self}
		j.Name = name
		return j
	}
	a, b := joined("a", config(1, 7790, "x")), joined("b", config(2, 7790, "x"))
	r := &openRange{from: &cluster.AgentJob{Name: "r"}, env: Env{Config: config(2, 7791, "")},
		jobs: []rangeLink{{worker: self}, {worker: self}}}
	s, err := newShownAgent([]*joinedJob{a, b, joined("c", config(9, 0, "y"))}, []*openRange{r})
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, p := range s.at {
		at = append(at, p.at.String())
	}
	if diff := cmp.Diff([]string{"10.0.0.3:7790", "10.0.0.3:7791"}, at); diff != "" {
		t.Errorf("places (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "b", "c": "9", "r/0": "r/0", "r/1": "3"}, s.labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	_, err = newShownAgent([]*joinedJob{a, joined("d", config(3, 7790, "y"))}, nil)
	if err == nil || !strings.Contains(err.Error(), "telemetry.port") || !strings.Contains(err.Error(), "10.0.0.3:7790") {
		t.Errorf("different certificates: %v", err)
	}
}

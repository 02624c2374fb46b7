package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const valid = `
backend: udp
job: {id: 3, hot_set: hot.libra, harvest: 20ms}
switch: {address: 127.0.0.2, control: 127.0.0.2:7700}
server: {address: 127.0.0.3, control: 127.0.0.3:7701}
workers:
  - {id: 1, address: 127.0.0.4}
  - {id: 7, address: 127.0.0.5}
model: {kind: lr}
data: {train: train.libfm}
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadFillsInDefaults(t *testing.T) {
	c, err := Read(write(t, valid))
	if err != nil {
		t.Fatal(err)
	}
	if c.Job.Harvest != 20*time.Millisecond || c.Port == 0 || c.Silence == 0 || c.Switch.Stripes == 0 || c.Job.Config().Exp != -46 || c.Job.Arithmetic != "exact" {
		t.Errorf("got %+v", c)
	}
	w, err := c.Worker(7)
	if err != nil || w.Address != netip.MustParseAddr("127.0.0.5") {
		t.Errorf("worker 7: %+v, %v", w, err)
	}
	if s := c.Shard(7); s.Index != 1 || s.Count != 2 {
		t.Errorf("shard of worker 7: %+v", s)
	}
	if _, err := c.Worker(2); err == nil {
		t.Error("found a worker that is not there")
	}
}

func TestWriteAndReadAgree(t *testing.T) {
	c, err := Read(write(t, valid))
	if err != nil {
		t.Fatal(err)
	}
	exp := -30
	c.Job.Exponent = &exp
	path := filepath.Join(t.TempDir(), "again.yaml")
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	again, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	compare := []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})}
	if diff := cmp.Diff(c, again, compare...); diff != "" {
		t.Error(diff)
	}
}

// Every mistake must be named by its field, so that it can be found.
func TestReadNamesMistakes(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"backend":         {"backend: udp", "backend: rdma", "backend"},
		"unknown field":   {"job:", "jobs:", "line 3: field jobs not found"},
		"not yaml":        {"backend: udp", "backend: [", "yaml"},
		"job id":          {"id: 3", "id: 300", "job.id"},
		"hot set":         {"hot_set: hot.libra, ", "", "job.hot_set"},
		"exponent":        {"id: 3", "id: 3, exponent: -200", "job.exponent"},
		"rare harvest":    {"20ms", "2h", "job.harvest"},
		"arithmetic":      {"id: 3", "id: 3, arithmetic: float", "job.arithmetic"},
		"lut exponent":    {"id: 3", "id: 3, arithmetic: lut, exponent: -20", "job.exponent"},
		"slots":           {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, slots: -1", "switch.slots"},
		"threaded napi":   {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, threaded_napi: true", "switch.threaded_napi"},
		"harvest":         {"20ms", "-1ms", "job.harvest"},
		"no address":      {"address: 127.0.0.2, ", "", "switch.address"},
		"bad address":     {"127.0.0.3,", "localhost,", "localhost"},
		"control":         {", control: 127.0.0.3:7701", "", "server.control"},
		"twice":           {"id: 7", "id: 1", "used twice"},
		"worker zero":     {"id: 7", "id: 0", "workers[1].id"},
		"model":           {"kind: lr", "kind: mlp", "model.kind"},
		"optimizer":       {"kind: lr", "kind: lr, optimizer: adam", "model.optimizer"},
		"data":            {"data: {train: train.libfm}", "", "data:"},
		"fault":           {"backend: udp", "backend: udp\nfaults: {loss: 1.5}", "faults.loss"},
		"stripes":         {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: 11", "switch.stripes"},
		"no interface":    {"backend: udp", "backend: afxdp", "workers[0].interface"},
		"negative rate":   {"kind: lr", "kind: lr, learning_rate: -1", "model.learning_rate"},
		"negative epochs": {"kind: lr", "kind: lr, epochs: -1", "model.epochs"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(valid, c.old) {
				t.Fatalf("the valid file does not contain %q", c.old)
			}
			path := write(t, strings.Replace(valid, c.old, c.new, 1))
			_, err := Read(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v; want it to name %q and the file", err, c.want)
			}
		})
	}
}

func TestReadWithoutFile(t *testing.T) {
	if _, err := Read("no/such/file.yaml"); err == nil || !strings.Contains(err.Error(), "no/such/file.yaml") {
		t.Errorf("got %v", err)
	}
}

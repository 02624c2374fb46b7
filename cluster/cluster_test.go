// SPDX-License-Identifier: Apache-2.0

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

// The part of valid that names the backend, and the same with the other one.
const (
	udpSwitch   = "backend: udp\njob: {id: 3, hot_set: hot.libra, harvest: 20ms}\nswitch: {"
	afxdpSwitch = "job: {id: 3, hot_set: hot.libra, harvest: 20ms}\nswitch: {"
)

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
	if c.Job.Harvest != 20*time.Millisecond || c.Job.Staleness != 8 || c.Job.Accumulate != 1 || c.Port == 0 || c.Silence == 0 || c.Switch.Stripes == 0 || c.Job.Config().Exp != -46 || c.Job.Arithmetic != "exact" {
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

// Every mistake must be named by its field, so that it can be found, and the
// message says what to do.
func TestReadNamesMistakes(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"backend":            {"backend: udp", "backend: rdma", `backend: "rdma" is neither`},
		"unknown field":      {"job:", "jobs:", "line 3: jobs: no such field: backend, port,"},
		"not yaml":           {"backend: udp", "backend: [", "yaml"},
		"empty":              {valid, "", "it is empty"},
		"two documents":      {"data: {train: train.libfm}", "data: {train: train.libfm}\n---\nbogus: 1", "a second YAML document"},
		"two valid ones":     {"data: {train: train.libfm}", "data: {train: train.libfm}\n---\nport: 1", "a second YAML document"},
		"silence":            {"backend: udp", "backend: udp\nsilence: -1s", "silence: -1s is negative"},
		"job id":             {"id: 3", "id: 256", "job.id: 256 is not in 0..255"},
		"hot set":            {"hot_set: hot.libra, ", "", "job.hot_set: the path"},
		"exponent":           {"id: 3", "id: 3, exponent: -200", "job.exponent: "},
		"rare harvest":       {"20ms", "1h1us", "job.harvest: 1h0m0.000001s is not in 1µs..1h0m0s"},
		"frequent harvest":   {"20ms", "999ns", "job.harvest: 999ns is not in 1µs..1h0m0s"},
		"harvest":            {"20ms", "-1ms", "job.harvest: -1ms is not in"},
		"sync harvest":       {"harvest: 20ms", "harvest: 20ms, sync: true", "job.harvest: 20ms, but with job.sync"},
		"sync frames":        {"harvest: 20ms", "harvest_frames: 2, sync: true", "job.harvest_frames: 2, but with job.sync"},
		"sync staleness":     {"harvest: 20ms", "staleness: 2, sync: true", "job.staleness: 2, but with job.sync"},
		"staleness":          {"harvest: 20ms", "staleness: -1", "job.staleness: -1 is less than 1"},
		"sync accumulate":    {"harvest: 20ms", "accumulate: 2, sync: true", "job.accumulate: 2, but with job.sync"},
		"accumulate":         {"harvest: 20ms", "accumulate: -1", "job.accumulate: -1 is less than 1"},
		"arithmetic":         {"id: 3", "id: 3, arithmetic: float", `job.arithmetic: "float" is none of`},
		"lut exponent":       {"id: 3", "id: 3, arithmetic: lut, exponent: -20", "job.exponent: -20, but lut"},
		"lut exponent 0":     {"id: 3", "id: 3, arithmetic: lut, exponent: 0", "job.exponent: 0, but lut"},
		"slots":              {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, slots: -1", "switch.slots: -1 is negative"},
		"threaded napi":      {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, threaded_napi: true", "switch.threaded_napi: true, but the udp backend"},
		"xdp mode":           {udpSwitch, afxdpSwitch + "xdp_mode: fast, ", `switch.xdp_mode: "fast" is none of`},
		"xdp mode of udp":    {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, xdp_mode: native", `switch.xdp_mode: "native", but the udp backend`},
		"interfaces of udp":  {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, interfaces: [eth1]", "switch.interfaces: [eth1], but the udp backend"},
		"interface of udp":   {"address: 127.0.0.5", "address: 127.0.0.5, interface: eth0", `workers[1].interface: "eth0", but the udp backend`},
		"queue of udp":       {"address: 127.0.0.3", "address: 127.0.0.3, queue: 1", "server.queue: 1, but the udp backend"},
		"times without file": {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, checkpoint_every: 1s", "server.checkpoint_every: 1s, but server.checkpoint names no file"},
		"seed of no faults":  {"backend: udp", "backend: udp\nfaults: {seed: 3}", "faults.seed: 3, but there are no faults"},
		"stripes":            {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: 26", "switch.stripes: 26 is not in 1..25"},
		"stripes of udp":     {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: 11", "switch.stripes: 11, but the frames of the udp backend have at most 10"},
		"negative stripes":   {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: -1", "switch.stripes: -1 is not in 1..25"},
		"no address":         {"address: 127.0.0.2, ", "", "switch.address: an IP address is required"},
		"no server address":  {"address: 127.0.0.3, ", "", "server.address: an IP address is required"},
		"no worker address":  {", address: 127.0.0.5", "", "workers[1].address: an IP address is required"},
		"bad address":        {"127.0.0.3,", "localhost,", "localhost"},
		"equal workers":      {"127.0.0.5", "127.0.0.4", "workers[1].address: 127.0.0.4 is also workers[0].address: each process needs an address of its own"},
		"worker = server":    {"address: 127.0.0.5", "address: 127.0.0.3", "workers[1].address: 127.0.0.3 is also server.address"},
		"worker = switch":    {"address: 127.0.0.5", "address: 127.0.0.2", "workers[1].address: 127.0.0.2 is also switch.address"},
		"switch = server":    {"address: 127.0.0.3", "address: 127.0.0.2", "server.address: 127.0.0.2 is also switch.address"},
		"mixed families":     {"address: 127.0.0.3", "address: 'fd00::2'", "server.address: fd00::2 is not IPv4"},
		"zone":               {"address: 127.0.0.5", "address: 'fe80::1%eth0'", "workers[1].address: fe80::1%eth0 is not IPv4"},
		"mapped":             {"address: 127.0.0.5", "address: '::ffff:127.0.0.4'", "workers[1].address: ::ffff:127.0.0.4 is not IPv4"},
		"wildcard":           {"address: 127.0.0.5", "address: 0.0.0.0", "workers[1].address: 0.0.0.0 is not the address of a host"},
		"multicast":          {"address: 127.0.0.5", "address: 224.0.0.5", "workers[1].address: 224.0.0.5 is not the address of a host"},
		"broadcast":          {"address: 127.0.0.5", "address: 255.255.255.255", "workers[1].address: 255.255.255.255 is not the address of a host"},
		"control":            {", control: 127.0.0.3:7701", "", "server.control: an IP:port is required"},
		"switch control":     {", control: 127.0.0.2:7700", "", "switch.control: an IP:port is required"},
		"control port":       {"127.0.0.2:7700", "127.0.0.2:0", "switch.control: 127.0.0.2:0 cannot be dialled"},
		"wildcard control":   {"127.0.0.2:7700", "'0.0.0.0:7700'", "switch.control: 0.0.0.0:7700 cannot be dialled"},
		"mapped wildcard":    {"127.0.0.3:7701", "'[::ffff:0.0.0.0]:7701'", "server.control: [::ffff:0.0.0.0]:7701 cannot be dialled"},
		"equal controls":     {"127.0.0.3:7701", "127.0.0.2:7700", "server.control: 127.0.0.2:7700 is also switch.control"},
		"mapped controls":    {"127.0.0.3:7701", "'[::ffff:127.0.0.2]:7700'", "server.control: [::ffff:127.0.0.2]:7700 is also switch.control"},
		"twice":              {"id: 7", "id: 1", "workers[1].id: 1 is used twice"},
		"worker zero":        {"id: 7", "id: 0", "workers[1].id: workers are numbered from 1"},
		"worker 65535":       {"id: 7", "id: 65535", "workers[1].id: 65535 stands for all workers in frames: number workers from 1 to 65534"},
		"no workers":         {"workers:\n  - {id: 1, address: 127.0.0.4}\n  - {id: 7, address: 127.0.0.5}", "", "workers: at least one is required"},
		"queue":              {"address: 127.0.0.5", "address: 127.0.0.5, queue: -1", "workers[1].queue: -1 is negative"},
		"model":              {"kind: lr", "kind: mlp", `model.kind: "mlp" is neither`},
		"factors":            {"kind: lr", "kind: fm, factors: 65", "model.factors: 65 is not in 1..64"},
		"negative factors":   {"kind: lr", "kind: fm, factors: -1", "model.factors: -1 is not in 1..64"},
		"factors of lr":      {"kind: lr", "kind: lr, factors: 8", "model.factors: 8, but lr has none"},
		"scale of lr":        {"kind: lr", "kind: lr, init_scale: 8", "model.init_scale: 8, but lr begins with zeros"},
		"negative scale":     {"kind: lr", "kind: fm, init_scale: -1", "model.init_scale: -1 is not in"},
		"optimizer":          {"kind: lr", "kind: lr, optimizer: adam", `model.optimizer: "adam" is neither`},
		"accumulator of sgd": {"kind: lr", "kind: lr, optimizer: sgd, initial_accumulator: 1", "model.initial_accumulator: 1, but sgd has none"},
		"none, no steps":     {"kind: lr", "kind: lr, optimizer: none", "model.optimizer: none is for jobs whose workers want the sums of the steps that they take together: set job.sync"},
		"none, data":         {"kind: lr", "kind: lr, optimizer: none", "model.optimizer: none keeps no weights, which training and evaluation read: leave data out"},
		"none, rate":         {"kind: lr", "kind: lr, optimizer: none, learning_rate: 1", "model.learning_rate: 1, but optimizer none changes no weights"},
		"none, accumulator":  {"kind: lr", "kind: lr, optimizer: none, initial_accumulator: 1", "model.initial_accumulator: 1, but optimizer none has none"},
		"tiny accumulator":   {"kind: lr", "kind: lr, initial_accumulator: 1e-50", "model.initial_accumulator: 1e-50 is not in"},
		"negative rate":      {"kind: lr", "kind: lr, learning_rate: -1", "model.learning_rate: -1 is not in"},
		"tiny rate":          {"kind: lr", "kind: lr, learning_rate: 1e-60", "model.learning_rate: 1e-60 is not in"},
		"huge rate":          {"kind: lr", "kind: lr, learning_rate: 1e39", "model.learning_rate: 1e+39 is not in"},
		"rate not a number":  {"kind: lr", "kind: lr, learning_rate: .nan", "model.learning_rate: NaN is not in"},
		"negative l2":        {"kind: lr", "kind: lr, l2: -1", "model.l2: -1 is not in"},
		"tiny l2":            {"kind: lr", "kind: lr, l2: 1e-60", "model.l2: 1e-60 is not in"},
		"negative batch":     {"kind: lr", "kind: lr, batch: -1", "model.batch: -1 is less than 1"},
		"negative epochs":    {"kind: lr", "kind: lr, epochs: -1", "model.epochs: -1 is less than 1"},
		"test rows alone":    {"data: {train: train.libfm}", "data: {test: test.libfm}", "data.test: test.libfm, but no training rows are configured"},
		"two logs":           {"train: train.libfm", "train: train.libfm, synthetic: {rows: 5, seed: 1, hot: 2, hot_share: 0.5}", "data: train and synthetic exclude each other"},
		"synthetic rows":     {"train: train.libfm", "synthetic: {rows: -5}", "data.synthetic.rows: -5 is less than 1"},
		"synthetic first":    {"train: train.libfm", "synthetic: {first: -5}", "data.synthetic.first: -5 is negative"},
		"synthetic hot":      {"train: train.libfm", "synthetic: {hot: -5}", "data.synthetic.hot: -5 is less than 1"},
		"synthetic share":    {"train: train.libfm", "synthetic: {hot_share: 1}", "data.synthetic.hot_share: 1 is not between 0 and 1"},
		"fault":              {"backend: udp", "backend: udp\nfaults: {loss: 1}", "faults.loss: probability 1 is not in [0, 1)"},
		"negative fault":     {"backend: udp", "backend: udp\nfaults: {reorder: -0.5}", "faults.reorder: probability -0.5"},
		"fault nan":          {"backend: udp", "backend: udp\nfaults: {duplicate: .nan}", "faults.duplicate: probability NaN"},
		"no interface":       {"backend: udp", "backend: afxdp", "workers[0].interface: required"},
		"no switch ports":    {"backend: udp", "backend: afxdp", "switch.interfaces: at least one"},
		"half tls":           {"backend: udp", "backend: udp\ntls: {ca: ca.pem}", "tls: ca, cert and key belong together"},
		"tls without key":    {"backend: udp", "backend: udp\ntls: {ca: ca.pem, cert: cert.pem}", "tls: ca, cert and key belong together"},
		"tls without ca":     {"backend: udp", "backend: udp\ntls: {cert: ca.pem, key: cert.pem}", "tls: ca, cert and key belong together"},
		"checkpoint time":    {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, checkpoint_every: -1s", "server.checkpoint_every: -1s is negative"},
		"checkpoint steps":   {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, checkpoint: x, checkpoint_steps: 5", "server.checkpoint_steps: 5, but only jobs with job.sync"},
		"no checkpoint":      {"harvest: 20ms}\nswitch: {address: 127.0.0.2, control: 127.0.0.2:7700}\nserver: {", "sync: true}\nswitch: {address: 127.0.0.2, control: 127.0.0.2:7700}\nserver: {checkpoint_steps: 5, ", "server.checkpoint_steps: 5, but server.checkpoint names no file"},
		"rejoin":             {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, rejoin: -1s", "server.rejoin: -1s is negative"},
		"rows":               {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, max_rows: -1", "server.max_rows: -1 is not in 1.."},
		"many rows":          {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, max_rows: 2147483648", "server.max_rows: 2147483648 is not in 1..2147483647"},
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

// The smallest and the largest value of each range are taken.
func TestReadTakesTheEndsOfRanges(t *testing.T) {
	for name, c := range map[string]struct{ old, new string }{
		"job 0":             {"id: 3", "id: 0"},
		"job 255":           {"id: 3", "id: 255"},
		"least exponent":    {"id: 3", "id: 3, exponent: -100"},
		"greatest exponent": {"id: 3", "id: 3, exponent: 60"},
		"lut":               {"id: 3", "id: 3, arithmetic: lut"},
		"often":             {"20ms", "1us"},
		"seldom":            {"20ms", "1h"},
		"by frames":         {"20ms", "20ms, harvest_frames: 1"},
		"sync":              {"harvest: 20ms", "sync: true"},
		"one stripe":        {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: 1"},
		"ten stripes":       {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, stripes: 10"},
		"one slot":          {"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, slots: 1"},
		"port 1":            {"127.0.0.2:7700", "127.0.0.2:1"},
		"other families":    {"127.0.0.2:7700", "'[::1]:7700'"},
		"one row":           {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, max_rows: 1"},
		"many rows":         {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, max_rows: 2147483647"},
		"no checkpoint":     {"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, checkpoint_every: 0s"},
		"worker 65534":      {"id: 7", "id: 65534"},
		"one factor":        {"kind: lr", "kind: fm, factors: 1"},
		"64 factors":        {"kind: lr", "kind: fm, factors: 64"},
		"one float a row":   {"kind: lr", "dim: 1"},
		"65 floats a row":   {"kind: lr", "dim: 65"},
		"dim said twice":    {"kind: lr", "kind: fm, factors: 15, dim: 16"},
		"one row a batch":   {"kind: lr", "kind: lr, batch: 1"},
		"one epoch":         {"kind: lr", "kind: lr, epochs: 1"},
		"tiny":              {"kind: lr", "kind: lr, learning_rate: 1.5e-45, l2: 1.5e-45"},
		"huge":              {"kind: lr", "kind: lr, learning_rate: 3.4e38, initial_accumulator: 3.4e38"},
		"small log":         {"train: train.libfm", "synthetic: {rows: 1, hot: 1, hot_share: 0.001}"},
		"no faults":         {"backend: udp", "backend: udp\nfaults: {loss: 0, duplicate: 0.999}"},
		"tls":               {"backend: udp", "backend: udp\ntls: {ca: a, cert: b, key: c}"},
		"impatient":         {"backend: udp", "backend: udp\nsilence: 1ns"},
	} {
		if !strings.Contains(valid, c.old) {
			t.Fatalf("the valid file does not contain %q", c.old)
		}
		if _, err := Read(write(t, strings.Replace(valid, c.old, c.new, 1))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// And what only the afxdp backend has.
	text := strings.NewReplacer("backend: udp", "backend: afxdp",
		"control: 127.0.0.2:7700", "control: 127.0.0.2:7700, interfaces: [eth1], threaded_napi: true, xdp_mode: native",
		"control: 127.0.0.3:7701", "control: 127.0.0.3:7701, interface: eth0, queue: 0",
		"address: 127.0.0.4", "address: 127.0.0.4, interface: eth0, queue: 3",
		"address: 127.0.0.5", "address: 127.0.0.5, interface: eth0").Replace(valid)
	for written, mode := range map[string]string{", xdp_mode: native": "native", ", xdp_mode: generic": "generic", ", xdp_mode: auto": "auto", "": "auto"} {
		if c, err := Read(write(t, strings.Replace(text, ", xdp_mode: native", written, 1))); err != nil || c.Switch.XDPMode != mode {
			t.Errorf("afxdp, %q: %+v, %v", written, c, err)
		}
	}
}

func TestAnyFault(t *testing.T) {
	for f, want := range map[Faults]bool{
		{}: false, {Seed: 1}: false, {Loss: 0.1}: true, {Duplicate: 0.1}: true, {Reorder: 0.1}: true,
	} {
		if got := f.Any(); got != want {
			t.Errorf("%+v: %v", f, got)
		}
	}
}

// The floats of a row stand for kind and factors, and hosts agree on them with any spelling.
func TestDimIsOfRows(t *testing.T) {
	for written, same := range map[string]string{"dim: 1": "kind: lr", "dim: 16": "kind: fm, factors: 15", "kind: fm, dim: 3": "kind: fm, factors: 2"} {
		var read [2]*Config
		for i, model := range []string{written, same} {
			var err error
			if read[i], err = Read(write(t, strings.Replace(valid, "kind: lr", model, 1))); err != nil {
				t.Fatalf("%s: %v", model, err)
			}
		}
		if diff := cmp.Diff(read[1].Agreement(), read[0].Agreement()); diff != "" {
			t.Errorf("%s (-%s):\n%s", written, same, diff)
		}
		path := filepath.Join(t.TempDir(), "again.yaml")
		if err := read[0].Write(path); err != nil {
			t.Fatal(err)
		}
		if again, err := Read(path); err != nil || again.Model != read[0].Model {
			t.Errorf("%s is written as %+v, %v", written, again, err)
		}
	}
	_, err := Read(write(t, strings.Replace(valid, "kind: lr", "kind: lr, dim: 16", 1)))
	if want := "model.dim: 16, but rows of kind lr with 0 factors have 1 floats: leave kind and factors out, or dim"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// Hosts whose files differ in something that training depends on must not agree.
func TestAgreementNamesWhatDiffers(t *testing.T) {
	read := func(old, new string) *Config {
		t.Helper()
		if !strings.Contains(valid, old) {
			t.Fatalf("the valid file does not contain %q", old)
		}
		c, err := Read(write(t, strings.Replace(valid, old, new, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	base := read("", "").Agreement()
	for field, c := range map[string]struct{ old, new, want string }{
		"port":                      {"job:", "port: 20001\njob:", "20001"},
		"telemetry.sample":          {"job:", "telemetry: {sample: 0}\njob:", "0"},
		"codec.bound":               {"job:", "codec: {bound: 10}\njob:", "10"},
		"job.sync":                  {"harvest: 20ms", "sync: true", "true"},
		"job.arithmetic":            {"id: 3", "id: 3, arithmetic: fixed, exponent: -46", "fixed"},
		"job.exponent":              {"id: 3", "id: 3, exponent: 0", "0"},
		"workers":                   {"id: 7", "id: 8", "[1 8]"},
		"model.seed":                {"kind: lr", "kind: lr, seed: 5", "5"},
		"model.l2":                  {"kind: lr", "kind: lr, l2: 0.1", "0.1"},
		"model.batch":               {"kind: lr", "kind: lr, batch: 65", "65"},
		"model.epochs":              {"kind: lr", "kind: lr, epochs: 2", "2"},
		"model.learning_rate":       {"kind: lr", "kind: lr, learning_rate: 0.0625", "0.0625"},
		"model.initial_accumulator": {"kind: lr", "kind: lr, initial_accumulator: 2", "2"},
		"data":                      {"train: train.libfm", "synthetic: {rows: 3, first: 4, seed: 5, hot: 6, hot_share: 0.25}", "synthetic, rows 3 from 4, seed 5, hot 6 with share 0.25"},
	} {
		got := read(c.old, c.new).Agreement()
		if got[field] != c.want {
			t.Errorf("%s is %q, want %q", field, got[field], c.want)
		}
		for f, value := range got {
			if (value != base[f]) != (f == field) {
				t.Errorf("%s: field %s is %q, and %q without the change", field, f, value, base[f])
			}
		}
	}
	fm := read("kind: lr", "kind: fm, factors: 5, init_scale: 0.5").Agreement()
	if fm["model.kind"] != "fm" || fm["model.factors"] != "5" || fm["model.init_scale"] != "0.5" || base["model.kind"] != "lr" {
		t.Errorf("%v", fm)
	}
	if sgd := read("kind: lr", "kind: lr, optimizer: sgd").Agreement(); sgd["model.optimizer"] != "sgd" {
		t.Errorf("%v", sgd)
	}
	// What only one host knows is not compared.
	if diff := cmp.Diff(base, read("train: train.libfm", "train: /elsewhere/train.libfm").Agreement()); diff != "" {
		t.Error(diff)
	}
}

func TestFingerprintOfAFile(t *testing.T) {
	print := func(content []byte) string {
		t.Helper()
		path := write(t, string(content))
		s, err := Data{Train: path}.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if got, want := print([]byte("abc")), "3 bytes, sha256 of the first MiB ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	large := make([]byte, 1<<20+1)
	same, size := print(large), print(large[:1<<20])
	large[1<<20] = 1 // beyond the first MiB
	if print(large) != same || same == size {
		t.Errorf("%q, %q, %q", same, print(large), size)
	}
	large[1<<20-1] = 1
	if print(large) == same {
		t.Error("the last byte of the first MiB changes nothing")
	}
	if _, err := (Data{Train: "no/such/file"}).Fingerprint(); err == nil || !strings.Contains(err.Error(), "data.train") || !strings.Contains(err.Error(), "no/such/file") {
		t.Errorf("absent file: %v", err)
	}
	s := &Synthetic{Rows: 1, First: 2, Seed: 3, Hot: 4, HotShare: 0.5}
	if got, err := (Data{}).Fingerprint(); err != nil || got != "none" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := (Data{Synthetic: s}).Fingerprint(); err != nil || got != "synthetic, rows 1 from 2, seed 3, hot 4 with share 0.5" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestReadWithoutFile(t *testing.T) {
	if _, err := Read("no/such/file.yaml"); err == nil || !strings.Contains(err.Error(), "no/such/file.yaml") {
		t.Errorf("got %v", err)
	}
}

// The cluster file that docs/operations.md shows is one.
func TestPageShowsAClusterFile(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "```yaml\n")
	text, _, ended := strings.Cut(text, "```")
	if !found || !ended {
		t.Fatal("docs/operations.md shows no YAML")
	}
	c, err := Read(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Workers) != 2 || c.Server.Checkpoint != "weights.libra" || c.Model.Factors != 8 {
		t.Errorf("%+v", c)
	}
}

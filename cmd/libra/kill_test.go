// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"flag"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/internal/test/testlog"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// kills is the number of kills in TestKilledServerGoesOn.
var kills = flag.Int("kills", 3, "how often TestKilledServerGoesOn kills the server of each backend")

// killBed is a cluster whose processes a test starts and kills.
type killBed struct {
	config *cluster.Config
	path   string // of the file
	start  []func(*exec.Cmd) error
	bed    *testbed.Bed // nil on the loopback interface
}

// Indices of the processes in killBed.start.
const (
	theSwitch = iota
	theServer
	firstWorker
)

// newKillBed creates a synchronous cluster of two workers that trains for a second or two and
// writes checkpoints all the time.
func newKillBed(t *testing.T, backend string) *killBed {
	t.Helper()
	return newStandbyBed(t, backend, 0)
}

// newStandbyBed is newKillBed with standbys, whose places are after those of the workers.
func newStandbyBed(t *testing.T, backend string, standbys int) *killBed {
	t.Helper()
	return newKillBedOf(t, backend, func(bed *killBed) {
		c := bed.config
		if backend == cluster.BackendUDP {
			bed.onLoopback(t)
			for i := range standbys {
				address := bed.config.Switch.Address.Next().Next().Next().Next()
				for range i {
					address = address.Next()
				}
				c.Standbys = append(c.Standbys, cluster.Standby{Address: address,
					Control: netip.AddrPortFrom(address, uint16(freePort(t, address.String())))})
				bed.start = append(bed.start, (*exec.Cmd).Start)
			}
			return
		}
		hosts := bed.inNamespaces(t, 2+standbys).Hosts()
		c.Workers = c.Workers[:2]
		for _, h := range hosts[1+2:] {
			c.Standbys = append(c.Standbys, cluster.Standby{Address: h.IP, Control: netip.AddrPortFrom(h.IP, 7700),
				Interfaces: []string{h.Interface}})
		}
	})
}

// newKillBedOf is newKillBed with hosts that a function adds.
func newKillBedOf(t *testing.T, backend string, addHosts func(*killBed)) *killBed {
	t.Helper()
	dir := t.TempDir()
	every := 20 * time.Millisecond
	c := &cluster.Config{
		Backend: backend, Silence: 5 * time.Second,
		Job:    cluster.Job{ID: 3, HotSet: filepath.Join(dir, "hot.libra"), Sync: true},
		Server: cluster.Server{Checkpoint: filepath.Join(dir, "weights.libra"), CheckpointEvery: &every, CheckpointSteps: 7},
		Model:  cluster.Model{Kind: "fm", Factors: 3, Batch: 20, Epochs: 2, Seed: 4},
		Data:   cluster.Data{Synthetic: &cluster.Synthetic{Rows: 12_003, Seed: 9, HotShare: 0.6, Hot: 1000}},
	}
	bed := &killBed{config: c, path: filepath.Join(dir, "cluster.yaml")}
	addHosts(bed)
	c.SetDefaults()
	bed.writeWith(t, 500)
	return bed
}

// writeWith writes the files of the cluster, with a hot set of that many rows.
func (b *killBed) writeWith(t *testing.T, hotRows int) {
	t.Helper()
	if err := b.config.Write(b.path); err != nil {
		t.Fatal(err)
	}
	src, err := node.OpenSource(b.config, data.Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	hot, err := node.BuildHotSet(src, node.HotSetOptions{Dim: 1 + b.config.Model.Factors, Rows: hotRows})
	if err != nil {
		t.Fatal(err)
	}
	if err := packer.SaveHotSet(b.config.Job.HotSet, hot); err != nil {
		t.Fatal(err)
	}
}

// trainFor makes a training take more or fewer epochs.
func (b *killBed) trainFor(t *testing.T, epochs int) {
	t.Helper()
	b.config.Model.Epochs = epochs
	if err := b.config.Write(b.path); err != nil {
		t.Fatal(err)
	}
}

func (b *killBed) onLoopback(t *testing.T) {
	t.Helper()
	network := loopback()
	address := func(i int) string { return network + strconv.Itoa(i) }
	b.place(2, func(i int) (netip.Addr, string) { return netip.MustParseAddr(address(i + 1)), "" }, func(i int) uint16 {
		return uint16(freePort(t, address(i+1)))
	})
	b.config.Port = uint16(freePort(t, address(1)))
	for range firstWorker + 2 {
		b.start = append(b.start, (*exec.Cmd).Start)
	}
}

func (b *killBed) inNamespaces(t *testing.T, workers int) *testbed.Bed {
	t.Helper()
	needRoot(t)
	b.useBed(bedtest.New(t, testbed.Config{Hosts: 1 + workers}), workers)
	return b.bed
}

// useBed runs the processes on the hosts of a bed, and the switch on its first one.
func (b *killBed) useBed(bed *testbed.Bed, workers int) {
	b.bed = bed
	b.start = append(b.start, bed.Switch().Start)
	b.config.Switch.Interfaces = bed.Switch().Ports()
	for _, h := range bed.Hosts() {
		b.start = append(b.start, h.Start)
	}
	b.place(workers, func(i int) (netip.Addr, string) {
		if i == theSwitch {
			return bed.Switch().IP, ""
		}
		return bed.Host(i - 1).IP, bed.Host(i - 1).Interface
	}, func(int) uint16 { return 7700 })
}

// place enters the addresses of the processes.
func (b *killBed) place(workers int, host func(int) (netip.Addr, string), port func(int) uint16) {
	c := b.config
	c.Switch.Address, _ = host(theSwitch)
	c.Switch.Control = netip.AddrPortFrom(c.Switch.Address, port(theSwitch))
	c.Server.Address, c.Server.Interface = host(theServer)
	c.Server.Control = netip.AddrPortFrom(c.Server.Address, port(theServer))
	for id := range workers {
		w := cluster.Worker{ID: uint16(id + 1)}
		w.Address, w.Interface = host(firstWorker + id)
		c.Workers = append(c.Workers, w)
	}
}

// child is a started process with its output.
type child struct {
	*exec.Cmd
	out, err testlog.Log
}

func (b *killBed) run(t *testing.T, place int, args ...string) *child {
	t.Helper()
	return b.runWith(t, place, b.path, args...)
}

// runWith is run with another file.
func (b *killBed) runWith(t *testing.T, place int, config string, args ...string) *child {
	t.Helper()
	c := &child{Cmd: libra(context.Background(), append(args, "--config", config, "--json")...)}
	c.Stdout, c.Stderr = &c.out, &c.err
	if err := b.start[place](c.Cmd); err != nil {
		t.Fatal(err)
	}
	return c
}

// killAll kills processes, in any order, and waits for their ends. The training must not have ended
// before.
func killAll(t *testing.T, server *child, all ...*child) {
	t.Helper()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, c := range all {
		_ = c.Process.Kill()
	}
	for _, c := range all {
		_ = c.Wait()
	}
	if strings.Contains(server.out.String(), `"result"`) {
		t.Fatal("training has ended before the kill")
	}
}

// reference returns the weights' hash of the same training in this process.
func (b *killBed) reference(t *testing.T) string {
	t.Helper()
	cfg, err := node.StoreConfig(b.config)
	if err != nil {
		t.Fatal(err)
	}
	store, err := ps.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	training, err := node.TrainConfig(b.config)
	if err != nil {
		t.Fatal(err)
	}
	var sources []data.Source
	for _, w := range b.config.Workers {
		src, err := node.OpenSource(b.config, b.config.Shard(w.ID))
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		sources = append(sources, src)
	}
	if _, err := train.Reference(t.Context(), store, sources, training); err != nil {
		t.Fatal(err)
	}
	sum := store.Hash()
	return hex.EncodeToString(sum[:])
}

// weightsOf waits for a server and its workers to end, and returns the weights' hash.
func weightsOf(t *testing.T, server *child, workers []*child) string {
	t.Helper()
	for i, w := range workers {
		if err := w.Wait(); err != nil {
			t.Errorf("worker %d: %v\n%s", i+1, err, &w.err)
		}
	}
	if err := server.Wait(); err != nil {
		t.Fatalf("server: %v\n%s", err, &server.err)
	}
	var result struct {
		Result struct {
			Weights string `json:"weights_sha256"`
		}
	}
	decodeLast(t, server.out.String(), &result)
	return result.Result.Weights
}

// train starts a server and the workers.
func (b *killBed) train(t *testing.T) (server *child, workers []*child) {
	t.Helper()
	server = b.run(t, theServer, "ps")
	for i := range b.config.Workers {
		workers = append(workers, b.worker(t, i))
	}
	return server, workers
}

// worker starts a worker, by its index.
func (b *killBed) worker(t *testing.T, i int) *child {
	t.Helper()
	return b.run(t, firstWorker+i, "worker", "--id", strconv.Itoa(int(b.config.Workers[i].ID)))
}

// runSwitch runs the switch until the test ends.
func (b *killBed) runSwitch(t *testing.T) {
	t.Helper()
	sw := b.run(t, theSwitch, "switch")
	t.Cleanup(func() {
		_ = sw.Process.Signal(os.Interrupt)
		if err := sw.Wait(); err != nil {
			t.Errorf("switch: %v\n%s", err, &sw.err)
		}
	})
}

var backends = []string{cluster.BackendUDP, cluster.BackendAFXDP}

// One epoch, and a second one resumed from its checkpoint, equal two epochs at once, bit for bit.
func TestResumedEpochEqualsTwoEpochs(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			bed := newKillBed(t, backend)
			bed.runSwitch(t)
			for _, epochs := range []int{1, 2} {
				bed.config.Model.Epochs = epochs
				if err := bed.config.Write(bed.path); err != nil {
					t.Fatal(err)
				}
				server, workers := bed.train(t)
				if got, want := weightsOf(t, server, workers), bed.reference(t); got != want {
					t.Errorf("%d epochs: weights %s, the reference's %s", epochs, got, want)
				}
			}
		})
	}
}

// A server that is killed at any moment and restarted, with its workers, ends with the weights of
// an undisturbed training.
func TestKilledServerGoesOn(t *testing.T) {
	t.Parallel()
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) {
			bed := newKillBed(t, backend)
			want := bed.reference(t)
			bed.runSwitch(t)
			seed := uint64(time.Now().UnixNano())
			rng := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			begun := 0 // runs that found a checkpoint
			for n := range *kills + 1 {
				server, workers := bed.train(t)
				last := n == *kills
				if !last {
					// A lease of the server killed before may have to end first.
					waitTraining(t, server)
					if n == 0 { // so that at least one run continues from a checkpoint
						bed.waitCheckpoint(t, server)
					} else {
						time.Sleep(time.Duration(rng.Int64N(int64(700 * time.Millisecond))))
					}
					_ = server.Process.Kill()
					for _, w := range workers {
						_ = w.Process.Signal(os.Interrupt)
					}
					for _, w := range append(workers, server) {
						_ = w.Wait()
					}
				} else if got := weightsOf(t, server, workers); got != want {
					t.Errorf("weights %s, the reference's %s", got, want)
				}
				if _, line, found := strings.Cut(server.err.String(), "continues from a checkpoint"); found {
					line, _, _ = strings.Cut(line, "\n")
					t.Logf("run %d continued:%s", n+1, line)
					begun++
				}
			}
			if begun == 0 {
				t.Error("no run went on from a checkpoint")
			}
			if left, _ := filepath.Glob(bed.config.Server.Checkpoint + "*"); len(left) != 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// waitCheckpoint waits until a server has written its first checkpoint.
func (b *killBed) waitCheckpoint(t *testing.T, server *child) {
	t.Helper()
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(b.config.Server.Checkpoint); err == nil {
			return
		}
	}
	t.Fatalf("the server writes no checkpoint:\n%s", &server.err)
}

// waitTraining waits until a server, a switch or an agent announces that it serves.
func waitTraining(t *testing.T, server *child) {
	t.Helper()
	for deadline := time.Now().Add(40 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(server.out.String(), `"ready"`) {
			return
		}
	}
	t.Fatalf("%v does not serve:\n%s", server.Args[1:], &server.err)
}

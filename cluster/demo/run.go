// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/train/weights"
)

// HotScalars is the number of hot parameters that the demo requests: the largest number that the
// paper puts on a switch (§5.2).
const HotScalars = 60_000

// pushRate is about how many rows a worker pushes in a second on a machine of two CPUs.
const pushRate = 500_000

// Run runs a demo. It leaves nothing behind: no file, process, interface or namespace, even when
// ctx ends in the middle.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Epochs = o.recipe().Epochs
	// The processes of the cluster inherit it. They share this machine's processors, and each frame
	// wakes one.
	if err := sys.BatchProcess(); err != nil {
		o.Log.Debug("processes preempt each other", "error", err)
	}
	files, err := newWorkspace()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.closeWorkspace()) }()

	c, err := o.config(files.dir)
	if err != nil {
		return nil, err
	}
	hot, rows, err := o.prepare(c)
	if err != nil {
		return nil, err
	}
	if rows < o.Workers {
		return nil, fmt.Errorf("%d training rows for %d workers: give --workers at most %d, or more rows", rows, o.Workers,
			rows)
	}
	node.AdviseStaleness(o.Log, c, o.Workers, rows)
	data, err := o.heldOut(c)
	if err != nil {
		return nil, err
	}
	held := *c
	held.Data = data
	heldOut, err := node.LoadTest(&held)
	if err != nil {
		return nil, err
	}
	if o.Out != "" && len(c.Servers) == 0 { // learning curves, which cost some training time
		c.Data = data
	}
	b, err := openBed(ctx, c, o.Workers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.closeBed()) }()
	path := filepath.Join(files.dir, "cluster.yaml")
	if err := c.Write(path); err != nil {
		return nil, err
	}
	run := &run{options: o, config: c, path: path, bed: b, rows: rows, unit: "samples"}
	if err := run.trainCluster(ctx); err != nil {
		return nil, err
	}
	result = run.sumResult(hot)
	if err := run.judgeWeights(ctx, heldOut, result); err != nil {
		return nil, err
	}
	return result, o.keep(c, result)
}

// resultFile is the result's name in Options.Out.
const resultFile = "result.json"

// keep copies the useful files of the demo to the user's folder.
func (o Options) keep(c *cluster.Config, result *Result) error {
	if o.Out == "" {
		return nil
	}
	write := func(name string, f func(io.Writer) error) error {
		path := filepath.Join(o.Out, name)
		err := file.Replace(path, ".tmp", f)
		if err == nil {
			err = file.Give(path)
		}
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		return nil
	}
	err := write(filepath.Base(c.Job.HotSet), func(w io.Writer) error {
		in, err := os.Open(c.Job.HotSet)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	})
	if err != nil {
		return err
	}
	store, attachment, err := trained(c)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := write(weightsFile, func(w io.Writer) error { return store.WriteCheckpoint(w, attachment) }); err != nil {
		return err
	}
	return write(resultFile, func(w io.Writer) error {
		line, err := report.MarshalJSON(result)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := json.Indent(&text, append(line, '\n'), "", "  "); err != nil {
			return err
		}
		_, err = text.WriteTo(w)
		return err
	})
}

// weightsFile is the name of a checkpoint.
const weightsFile = "weights.libra"

// trained reads the checkpoints of all servers.
func trained(c *cluster.Config) (*ps.Store, []byte, error) {
	var paths []string
	for _, s := range c.AllServers() {
		paths = append(paths, s.Checkpoint)
	}
	return weights.ReadCheckpoints(paths...)
}

// setCheckpoints gives each server a checkpoint in a folder, of the end of the training; the name
// is that of a single server's.
func setCheckpoints(c *cluster.Config, dir, name string) {
	var atEnd time.Duration
	c.Server.Checkpoint, c.Server.CheckpointEvery = filepath.Join(dir, name), &atEnd
	c.Servers = slices.Clone(c.Servers)
	for i := range c.Servers {
		c.Server = cluster.Server{}
		c.Servers[i].Checkpoint = filepath.Join(dir, fmt.Sprintf("%d-%s", i, name))
		c.Servers[i].CheckpointEvery = &atEnd
	}
}

// config returns the cluster's configuration without addresses.
func (o Options) config(dir string) (*cluster.Config, error) {
	r := o.recipe()
	if o.Optimizer == ps.SGD.String() {
		r.Optimizer = ps.Optimizer{Method: ps.SGD, LearningRate: r.Optimizer.LearningRate}
	}
	if o.Model == "lr" { // whose initial weights are zero
		r.Factors, r.Scale = 0, 0
	}
	c := &cluster.Config{
		Backend: o.Backend,
		Job: cluster.Job{ID: 1, HotSet: filepath.Join(dir, "hot.libra"), Sync: o.Sync, Arithmetic: o.Arithmetic,
			Harvest: o.Harvest, Staleness: r.Staleness, Accumulate: r.Accumulate},
		Switch: cluster.Switch{Plane: o.Plane, LaneAligned: o.LaneAligned, Stripes: o.stripes()},
		Model: cluster.Model{
			Kind: o.Model, Task: o.Task, Factors: r.Factors, Epochs: r.Epochs, Batch: r.Batch, Seed: o.Seed,
			Optimizer:          r.Optimizer.Method.String(),
			LearningRate:       float64(r.Optimizer.LearningRate),
			InitialAccumulator: float64(r.Optimizer.InitialAccumulator),
			InitScale:          float64(r.Scale),
		},
		Codec:  o.fields(),
		Data:   cluster.Data{Train: o.Data, Window: o.Window},
		Faults: o.Faults,
	}
	for id := 2; id <= o.Shares; id++ {
		c.Job.IDs = append(c.Job.IDs, uint16(id))
	}
	addSwitches(c, o.Switches, o.Tree)
	if o.Servers > 1 {
		c.Servers = make([]cluster.Server, o.Servers)
	}
	setCheckpoints(c, dir, weightsFile)
	if o.Faults.Any() {
		c.Faults.Seed = o.Seed
	}
	model, err := node.Model(c.Model)
	if err != nil {
		return nil, err
	}
	dim := model.Dim()
	if o.Data == "" {
		c.Data.Synthetic = &cluster.Synthetic{Rows: cmp.Or(o.Rows, SyntheticRows), Seed: o.Seed, HotShare: SyntheticShare,
			Hot: HotScalars / dim}
	} else if abs, err := filepath.Abs(o.Data); err == nil {
		c.Data.Train = abs
	}
	if o.Capture != "" {
		if c.Capture, err = filepath.Abs(o.Capture); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	if o.Plane == cluster.PlaneP4 {
		c.Switch.P4.Runtime = "unix:" + filepath.Join(dir, "p4runtime")
		c.Silence = time.Minute // bmv2 is slow, and also carries the control connections
	}
	c.SetDefaults()
	return c, nil
}

// prepare finds the hot set and writes it to the file of the configuration. It also returns the
// number of training rows.
func (o Options) prepare(c *cluster.Config) (hot *packer.HotSet, rows int, err error) {
	model, err := node.Model(c.Model)
	if err != nil {
		return nil, 0, err
	}
	src, err := node.OpenSource(c, data.Shard{})
	if err != nil {
		return nil, 0, err
	}
	defer src.Close()
	options := node.HotSetOptions{Rate: o.HotRate, Seed: o.Seed, Dim: model.Dim(),
		Rows: cmp.Or(o.HotRows, HotScalars/model.Dim()), AtMost: o.HotRows == 0}
	if o.AutoHot {
		options.Rows, options.Auto = 0, &heat.Auto{Workers: o.Workers, Rate: pushRate, Period: c.Job.Harvest}
	}
	hot, err = node.BuildHotSet(src, options)
	if err != nil {
		return nil, 0, err
	}
	o.Log.Info("hot set found by sampling", "rows", hot.Len(), "scalars", hot.Slots(), "share_of_updates",
		fmt.Sprintf("%.3f", hot.Meta().Share()))
	if hot.Len() < o.HotRows {
		o.Log.Warn("fewer rows are hot than asked for: the training data have no more keys", "rows", hot.Len(), "hot_rows", o.HotRows)
	}
	giveRoom(c, hot)
	return hot, src.Rows(), packer.SaveHotSet(c.Job.HotSet, hot)
}

// run is a running cluster.
type run struct {
	options Options
	config  *cluster.Config
	path    string
	bed     *bed
	rows    int    // of the training data
	unit    string // of the progress

	mu       sync.Mutex
	progress []train.Progress // by worker, from 0
	workers  []node.WorkerResult
	servers  []node.ServerResult
	server   node.ServerResult // of all
	elapsed  time.Duration
	// serverCPU is the CPU time of the servers' processes.
	serverCPU time.Duration
}

// trainCluster starts the processes in the order of their dependencies and waits until all have
// done their work.
func (r *run) trainCluster(ctx context.Context) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	r.progress = make([]train.Progress, r.options.Workers)
	r.workers = make([]node.WorkerResult, r.options.Workers)

	if r.config.Switch.Plane == cluster.PlaneP4 {
		stop, startErr := r.startP4Switch(ctx)
		if startErr != nil {
			return startErr
		}
		// After the daemon, which removes its jobs from the switch.
		defer func() { err = errors.Join(err, stop()) }()
	}
	group := proc.NewGroup(ctx, proc.Config{Stderr: r.options.Logs, Failures: proc.NewFailures(isConsequence)})
	start := func(name string, host int, service bool, onLine func([]byte), args ...string) (*proc.Child, error) {
		args = append(args, "--config", r.path, "--json")
		return group.Start(proc.Spec{
			Name: name, Cmd: exec.Command(self, args...), Start: r.bed.startOn(host), Service: service, OnLine: onLine,
		})
	}
	err = r.runAll(ctx, start)
	// The group knows the failures of all, and their cause.
	if failed := group.Stop(); failed != nil {
		return failed
	}
	return err
}

// starter starts a child; host is as in bed.startOn.
type starter func(name string, host int, service bool, onLine func([]byte), args ...string) (*proc.Child, error)

func (r *run) runAll(ctx context.Context, start starter) error {
	for _, p := range switchProcesses(r.config) {
		sw, err := start(p.name, p.host, true, nil, p.args...)
		if err != nil {
			return err
		}
		if err := ready(ctx, p.name, sw); err != nil {
			return err
		}
	}
	servers, err := r.startServers(ctx, start)
	if err != nil {
		return err
	}
	begin := time.Now()
	var workers []*proc.Child
	for i := range r.options.Workers {
		id := strconv.Itoa(i + 1)
		child, err := start("worker "+id, len(servers)+i, false, r.workerLine(i), "worker", "--id", id)
		if err != nil {
			return err
		}
		workers = append(workers, child)
	}
	stop := r.watchProgress()
	defer stop()
	for _, child := range workers {
		if err := child.Wait(ctx); err != nil {
			return err
		}
	}
	r.elapsed = time.Since(begin)
	for _, server := range servers {
		if err := server.Wait(ctx); err != nil {
			return err
		}
		r.serverCPU += server.CPUTime()
	}
	return r.sumServers()
}

// startServers starts the parameter servers.
func (r *run) startServers(ctx context.Context, start starter) (servers []*proc.Child, err error) {
	n := len(r.config.AllServers())
	r.servers = make([]node.ServerResult, n)
	for i := range n {
		name := "ps"
		if n > 1 {
			name = fmt.Sprint("ps ", i)
		}
		child, err := start(name, i, false, r.serverLine(i), "ps", "--index", strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		if err := ready(ctx, name, child); err != nil {
			return nil, err
		}
		servers = append(servers, child)
	}
	return servers, nil
}

// sumServers sums the reports of the servers. The weights are those of all together.
func (r *run) sumServers() error {
	r.server = r.servers[0]
	if len(r.servers) == 1 {
		return nil
	}
	for _, s := range r.servers[1:] {
		r.server.Rows += s.Rows
		r.server.ColdFrames += s.ColdFrames
		r.server.Overrun += s.Overrun
		r.server.LostAnswers += s.LostAnswers
	}
	store, _, err := trained(r.config)
	if err != nil {
		return err
	}
	hash := store.Hash()
	r.server.WeightsSHA256 = hex.EncodeToString(hash[:])
	return nil
}

// ready waits until a process reports that it serves.
func ready(ctx context.Context, name string, child *proc.Child) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("%s is not ready after %v", name, startLimit))
	defer cancel()
	return child.Ready(ctx, nil)
}

// workerLine returns the function that processes a worker's JSON lines.
func (r *run) workerLine(i int) func([]byte) {
	return func(line []byte) {
		var msg struct {
			Progress *train.Progress
			Result   *node.WorkerResult
		}
		if json.Unmarshal(line, &msg) != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if msg.Progress != nil {
			r.progress[i] = *msg.Progress
		}
		if msg.Result != nil {
			r.workers[i] = *msg.Result
			r.progress[i].Samples, r.progress[i].Loss = msg.Result.Samples, msg.Result.Loss
		}
	}
}

// serverLine returns the function that processes a server's JSON lines.
func (r *run) serverLine(i int) func([]byte) {
	return func(line []byte) {
		r.mu.Lock()
		defer r.mu.Unlock()
		takeServerLine(line, &r.servers[i])
	}
}

// takeServerLine takes the result from a line of a server, if the line has it.
func takeServerLine(line []byte, result *node.ServerResult) {
	var msg struct{ Result *node.ServerResult }
	if json.Unmarshal(line, &msg) == nil && msg.Result != nil {
		*result = *msg.Result
	}
}

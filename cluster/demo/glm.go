// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/train/glm"
)

// GLM describes the training of a generalised linear model, and its cluster: a switch, and workers
// that hold a part of the columns each.
type GLM struct {
	Training glm.Config
	// Data is a libfm or libsvm file; without it there is a synthetic click log of Rows rows, 0 for
	// node.DefaultGLMRows.
	Data string
	Rows int
	// Workers is the number of workers, each in its own process.
	Workers int
	// Backend is cluster.BackendAFXDP or cluster.BackendUDP.
	Backend string
	// Acked makes the job one of mode acked.
	Acked bool
	// Faults are injected at the workers.
	Faults cluster.Faults
	// Capture, if set, is a folder for the frames of all workers.
	Capture string
	// Out, if set, is the file of the weights, in a Format of package weights.
	Out, Format string

	// Stderr receives the progress.
	Stderr io.Writer
	// Logs, if not nil, receives the logs of the processes.
	Logs io.Writer
	Log  *slog.Logger
}

// GLMResult is the outcome of the training of a generalised linear model.
type GLMResult struct {
	Backend      string  `json:"backend"`
	Acked        bool    `json:"acked"` // in mode acked, not sync
	Data         string  `json:"data"`
	Workers      int     `json:"workers"`
	Objective    string  `json:"objective"`
	Bits         int     `json:"bits"`
	Batch        int     `json:"batch"`
	MicroBatch   int     `json:"rows_per_operation"`
	LearningRate float64 `json:"learning_rate"`
	Seed         uint64  `json:"seed"`

	Rows    int         `json:"rows"`
	Columns int         `json:"columns"`
	Epochs  []glm.Epoch `json:"epochs"`
	// EpochEnds are the times from the start of the training until the first worker ends each epoch.
	EpochEnds []float64 `json:"epoch_ends_s"`
	// Seconds is the time of the slowest worker, without reading data and collecting the model.
	Seconds             float64 `json:"duration_s"`
	SamplesPerSecond    float64 `json:"samples_per_s"`
	Operations          uint64  `json:"operations"` // all-reduces of the training
	OperationsPerSecond float64 `json:"operations_per_s"`
	Repeated            uint64  `json:"repeated"` // frames that workers sent again
	FaultsDropped       uint64  `json:"faults_dropped"`
	FaultsDuplicated    uint64  `json:"faults_duplicated"`
	FaultsReordered     uint64  `json:"faults_reordered"`
	WeightsSHA256       string  `json:"weights_sha256"` // of all columns
}

// Validate reports the first invalid option.
func (g GLM) Validate() error {
	if err := g.Training.Validate(); err != nil { // its fields have the names of the flags
		return fmt.Errorf("--%w", err)
	}
	switch {
	case g.Workers < 1 || g.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: it must be from 1 to %d", g.Workers, maxWorkers)
	case g.Rows < 0 || g.Rows > 0 && g.Data != "":
		return fmt.Errorf("--rows %d: a positive number, for the synthetic log only, so without --data", g.Rows)
	case g.Backend != cluster.BackendAFXDP && g.Backend != cluster.BackendUDP:
		return fmt.Errorf("--backend %q is neither %q nor %q", g.Backend, cluster.BackendAFXDP, cluster.BackendUDP)
	}
	return checkFaults(g.Faults)
}

// RunGLM trains a generalised linear model. It leaves nothing behind: no file, process, interface
// or namespace, even when ctx ends in the middle.
func RunGLM(ctx context.Context, g GLM) (_ *GLMResult, err error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	files, err := newWorkspace()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.closeWorkspace()) }()
	c := &cluster.Config{Backend: g.Backend, Job: cluster.Job{ID: 1}, Faults: g.Faults}
	for _, path := range []*string{&g.Data, &g.Out, &g.Capture} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return nil, fmt.Errorf("demo: %w", err)
		}
	}
	c.Capture = g.Capture
	b, err := openBed(ctx, c, g.Workers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.closeBed()) }()
	r := &glmRun{
		GLM: g, bed: b, path: filepath.Join(files.dir, "cluster.yaml"), workers: make([]node.GLMResult, g.Workers),
	}
	if err := c.Write(r.path); err != nil {
		return nil, err
	}
	return r.runProcesses(ctx)
}

// glmRun is a running training.
type glmRun struct {
	GLM
	bed  *bed
	path string

	mu       sync.Mutex
	workers  []node.GLMResult
	progress *report.Progress // of the first worker; nil before the training
}

// runProcesses starts the processes and waits until all have done their work.
func (r *glmRun) runProcesses(ctx context.Context) (*GLMResult, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	group := proc.NewGroup(ctx, proc.Config{Stderr: r.Logs, Failures: proc.NewFailures(isConsequence)})
	err = r.runAll(ctx, group, self)
	// The group knows the failures of all, and their cause.
	if failed := group.Stop(); failed != nil {
		err = failed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.progress != nil {
		r.progress.Finish()
	}
	if err != nil {
		return nil, err
	}
	return r.sumReports()
}

func (r *glmRun) runAll(ctx context.Context, group *proc.Group, self string) error {
	sw, err := group.Start(proc.Spec{
		Name: "switch", Cmd: exec.Command(self, "switch", "--config", r.path, "--json"), Start: r.bed.startOn(-1),
		Service: true,
	})
	if err != nil {
		return err
	}
	if err := ready(ctx, "switch", sw); err != nil {
		return err
	}
	var workers []*proc.Child
	for i := range r.Workers {
		id := strconv.Itoa(i + 1)
		cmd := exec.Command(self, append([]string{"glm", "--config", r.path, "--id", id, "--json"},
			r.workerArguments()...)...)
		cmd.Env = r.workerEnvironment()
		child, err := group.Start(proc.Spec{Name: "worker " + id, Cmd: cmd, Start: r.bed.startOn(i), OnLine: r.workerLine(i)})
		if err != nil {
			return err
		}
		workers = append(workers, child)
	}
	for _, child := range workers {
		if err := child.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// workerArguments are the flags of every worker.
func (r *glmRun) workerArguments() []string {
	t := r.Training
	args := []string{
		"--objective", t.Objective.String(), "--bits", strconv.Itoa(t.Bits), "--batch", strconv.Itoa(t.Batch),
		"--micro-batch", strconv.Itoa(t.MicroBatch), "--epochs", strconv.Itoa(t.Epochs),
		"--learning-rate", strconv.FormatFloat(t.LearningRate, 'g', -1, 64), "--seed", strconv.FormatUint(t.Seed, 10),
	}
	if r.Data != "" {
		args = append(args, "--data", r.Data)
	} else {
		args = append(args, "--rows", strconv.Itoa(cmp.Or(r.Rows, node.DefaultGLMRows)))
	}
	if r.Acked {
		args = append(args, "--acked")
	}
	if r.Out != "" {
		args = append(args, "--out", r.Out, "--format", r.Format)
	}
	return args
}

// workerEnvironment makes the workers together use as many processors as there are, unless
// GOMAXPROCS is set: one goroutine of each does all of its work.
func (r *glmRun) workerEnvironment() []string {
	env := os.Environ()
	if _, given := os.LookupEnv("GOMAXPROCS"); !given {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(max(1, runtime.GOMAXPROCS(0)/r.Workers)))
	}
	return env
}

// workerLine returns the function that processes a worker's JSON lines.
func (r *glmRun) workerLine(i int) func([]byte) {
	return func(line []byte) {
		var msg struct {
			Progress *glm.Progress
			Result   *node.GLMResult
		}
		if json.Unmarshal(line, &msg) != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if msg.Result != nil {
			r.workers[i] = *msg.Result
		}
		if p := msg.Progress; p != nil && i == 0 { // workers take each step together
			if r.progress == nil {
				r.progress = report.NewProgress(r.Stderr, int64(p.Total), "samples")
			}
			r.progress.Update(int64(p.Samples), fmt.Sprintf("epoch %d/%d", p.Epoch+1, r.Training.Epochs),
				fmt.Sprintf("loss %.4f", p.Loss))
		}
	}
}

// sumReports sums the reports of the workers.
func (r *glmRun) sumReports() (*GLMResult, error) {
	first, t := r.workers[0], r.Training
	if first.Model == nil {
		return nil, errors.New("demo: worker 1 has reported no model")
	}
	result := &GLMResult{
		Backend: r.Backend, Acked: r.Acked, Data: cmp.Or(r.Data, "synthetic"), Workers: r.Workers,
		Objective: t.Objective.String(), Bits: t.Bits, Batch: t.Batch, MicroBatch: t.MicroBatch,
		LearningRate: t.LearningRate, Seed: t.Seed,
		Rows: first.Rows, Columns: first.Model.Columns, Epochs: first.Epochs, Operations: first.Operations,
		WeightsSHA256: first.Model.WeightsSHA256,
	}
	for _, end := range first.EpochEnds {
		result.EpochEnds = append(result.EpochEnds, end.Seconds())
	}
	for _, w := range r.workers {
		result.Seconds = max(result.Seconds, w.Elapsed.Seconds())
		result.Repeated += w.Repeated
		result.FaultsDropped += w.Dropped
		result.FaultsDuplicated += w.Duplicated
		result.FaultsReordered += w.Reordered
	}
	result.SamplesPerSecond = float64(first.Rows*t.Epochs) / result.Seconds
	result.OperationsPerSecond = float64(first.Operations) / result.Seconds
	return result, nil
}

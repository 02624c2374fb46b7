// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/report"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/wire"
)

// Programs describes workers of any language, and the cluster on which they train: a switch, a
// server, and hosts with an agent each.
type Programs struct {
	Coding
	Lines

	// Command is the command of every worker.
	Command []string
	// Hosts is the number of hosts, and Workers the number of all workers, distributed evenly.
	Hosts, Workers int
	// Job is the name of the job at the agents.
	Job string
	// Dim is the number of floats of a row.
	Dim int
	// HotRows makes the keys from 0 to HotRows-1 hot; with HotSet, a file, it is not used. 0 means
	// DefaultHotRows. With Sync it means only the row of key 2^64-1: a harvest per step costs more
	// than the network saves on so few hosts.
	HotRows int
	HotSet  string
	// Sync ends each step with a barrier of all workers. Otherwise Harvest is the period of steps;
	// 0 means the default.
	Sync    bool
	Harvest time.Duration
	// Switches is the number of switches among which a HotSet with counts is divided; 0 means 1.
	Switches int
	// Optimizer is "adagrad" or "sgd", with its learning rate; 0 means the default. With "none"
	// there are no weights.
	Optimizer    string
	LearningRate float64
	// Backend is cluster.BackendAFXDP or cluster.BackendUDP.
	Backend string
	// Seed of the initial weights.
	Seed uint64
	// Record, if set, is a new folder for a trace of what the workers push (package trace).
	Record string

	// Stdout receives the workers' output, line by line. Stderr receives their standard error, and
	// the progress.
	Stdout, Stderr io.Writer
	// Logs, if not nil, receives the logs of the cluster's processes.
	Logs io.Writer
	Log  *slog.Logger
}

// ProgramsResult is the outcome, and the JSON object of 'libra run'.
type ProgramsResult struct {
	Backend   string        `json:"backend"`
	Hosts     int           `json:"hosts"`
	Scheduler *ProgramDone  `json:"scheduler,omitempty"` // of ps-lite
	Servers   []ProgramDone `json:"servers,omitempty"`   // of ps-lite
	Workers   []ProgramDone `json:"workers"`             // by rank; of ps-lite, processes by number
	Seconds   float64       `json:"duration_s"`
	Steps     uint64        `json:"steps"` // committed by the server
	Rows      int           `json:"rows"`  // held by the server
	HotFrames uint64        `json:"hot_frames"`
	HotPairs  uint64        `json:"hot_pairs"` // summed in the network
	// ColdFrames were received by the server.
	ColdFrames    uint64 `json:"cold_frames"`
	WeightsSHA256 string `json:"weights_sha256"` // "" with --optimizer none
}

// ProgramDone is the result of one worker.
type ProgramDone struct {
	Rank       int     `json:"rank"`
	Host       int     `json:"host"` // from 1 on
	Seconds    float64 `json:"duration_s"`
	CPUSeconds float64 `json:"cpu_s"`
}

// Validate reports the first invalid option.
func (p Programs) Validate() error {
	switch {
	case len(p.Command) == 0:
		return errors.New("no command: give it after --, as in 'libra run -- python3 train.py'")
	case p.Hosts < 1 || p.Hosts > maxWorkers:
		return fmt.Errorf("--hosts %d: it must be from 1 to %d", p.Hosts, maxWorkers)
	case p.Workers < p.Hosts || p.Workers%p.Hosts != 0:
		return fmt.Errorf("--workers %d on %d hosts: each host runs as many, so give a multiple of --hosts", p.Workers,
			p.Hosts)
	case p.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: the limit is %d", p.Workers, maxWorkers)
	case p.Dim < 1 || p.Dim > maxDim:
		return fmt.Errorf("--dim %d: it must be from 1 to %d", p.Dim, maxDim)
	case p.HotRows < 0:
		return fmt.Errorf("--hot-rows %d: the number must not be negative", p.HotRows)
	case p.HotSet == "" && p.HotRows > packer.MaxHotRows(p.Dim):
		return fmt.Errorf("--hot-rows %d: a job has at most %d rows of %d scalars", p.HotRows, packer.MaxHotRows(p.Dim),
			p.Dim)
	case p.Job == "" || len(p.Job) > 63:
		return fmt.Errorf("--job %q is %d bytes long: it must be 1 to 63", p.Job, len(p.Job))
	case p.Switches > 1 && p.HotSet == "":
		return fmt.Errorf("--switches %d: a plan needs to know how often rows are updated, so give a --hot-set of 'libra hotset learn'", p.Switches)
	case p.Harvest < 0:
		return fmt.Errorf("--harvest %v: the time must be positive", p.Harvest)
	case p.Harvest != 0 && p.Sync:
		return fmt.Errorf("--harvest %v: with --sync every step is harvested, so leave one of them out", p.Harvest)
	case p.Optimizer == ps.None.String() && !p.Sync:
		return errors.New("--optimizer none: it keeps no weights, only the sums of steps that workers take together: add --sync, or choose adagrad or sgd")
	case p.Optimizer == ps.None.String() && p.LearningRate != 0:
		return fmt.Errorf("--learning-rate %g: --optimizer none changes none, so leave one of them out", p.LearningRate)
	}
	return errors.Join(checkSwitches(p.Switches), p.checkCoding(), p.checkLines(p.Backend))
}

// DefaultHotRows is the default of HotRows.
const DefaultHotRows = 1024

// maxDim is the dimension of a factorisation machine with the most factors.
const maxDim = 65

// RunPrograms starts a cluster, runs the command once for each worker, and ends the cluster when
// all workers have ended. The first worker that fails ends the others; the error is then a
// [*WorkerError]. It leaves nothing behind: no file, process, interface or namespace, even when ctx
// ends in the middle.
func RunPrograms(ctx context.Context, p Programs) (result *ProgramsResult, err error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Command[0], err = exec.LookPath(p.Command[0]); err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	files, err := newWorkspace()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.closeWorkspace()) }()
	c, err := p.config(files.dir)
	if err != nil {
		return nil, err
	}
	if err := p.beginRecord(); err != nil {
		return nil, err
	}
	b, err := openBed(ctx, c, p.Hosts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.closeBed()) }()
	if err := p.limit(b, len(c.AllServers())); err != nil {
		return nil, err
	}
	r := &programs{Programs: p, config: c, dir: files.dir, path: filepath.Join(files.dir, "cluster.yaml"), bed: b,
		done: make([]ProgramDone, p.Workers)}
	if err := c.Write(r.path); err != nil {
		return nil, err
	}
	return r.runProcesses(ctx)
}

// config returns the cluster's configuration without addresses, and writes the hot set.
func (p Programs) config(dir string) (*cluster.Config, error) {
	c := &cluster.Config{
		Backend: p.Backend,
		Job:     cluster.Job{ID: 1, HotSet: p.HotSet, Sync: p.Sync, Harvest: p.Harvest},
		Codec:   p.fields(),
		Model:   cluster.Model{Kind: "lr", Optimizer: p.Optimizer, LearningRate: p.LearningRate, Seed: p.Seed},
	}
	if p.Backend == cluster.BackendAFXDP {
		// interfaces of a bed accept such frames, and pulls and sums of steps use equally long ones
		c.Switch.Stripes = wire.MaxStripes
	}
	addSwitches(c, p.Switches, false)
	if p.Dim > 1 {
		c.Model.Kind, c.Model.Factors = "fm", p.Dim-1
	}
	c.SetDefaults()
	if p.HotSet != "" {
		hot, err := packer.LoadHotSet(p.HotSet)
		if err == nil && hot.Dim() != p.Dim {
			err = fmt.Errorf("--hot-set %s: its rows have %d floats, and --dim is %d", p.HotSet, hot.Dim(), p.Dim)
		}
		if most := packer.MaxHotRows(p.Dim); err == nil && hot.Len() > most {
			err = fmt.Errorf("--hot-set %s: it has %d rows, and a job has at most %d of %d scalars", p.HotSet, hot.Len(),
				most, p.Dim)
		}
		if err != nil {
			return nil, err
		}
		giveRoom(c, hot)
		c.Job.HotSet, err = filepath.Abs(p.HotSet)
		return c, err
	}
	rows := p.HotRows
	if rows == 0 && !p.Sync {
		rows = DefaultHotRows
	}
	keys := make([]uint64, rows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	if rows == 0 { // a hot set must not be empty
		keys = []uint64{math.MaxUint64}
	}
	hot, err := packer.NewHotSet(p.Dim, keys, nil, packer.Meta{})
	if err != nil {
		return nil, fmt.Errorf("--hot-rows %d: %w", p.HotRows, err)
	}
	giveRoom(c, hot)
	c.Job.HotSet = filepath.Join(dir, "hot.libra")
	return c, packer.SaveHotSet(c.Job.HotSet, hot)
}

// programs is a running cluster.
type programs struct {
	Programs
	config *cluster.Config
	dir    string
	path   string
	bed    *bed
	plain  bool // PyTorch's store does without libuv

	mu     sync.Mutex
	done   []ProgramDone
	server node.ServerResult
}

// runProcesses starts all processes in the order of their dependencies.
func (p *programs) runProcesses(ctx context.Context) (result *ProgramsResult, err error) {
	logs := map[string]io.Writer{"services": p.Logs, "agents": p.Logs, "workers": p.Stderr}
	err = p.bed.inGroups(ctx, []string{"services", "agents", "workers"}, logs, func(ctx context.Context, g *groups) error {
		result, err = p.runAll(ctx, g)
		return err
	})
	return result, exitOf(err, func(name string) bool { return strings.HasPrefix(name, workerPrefix) })
}

// workerPrefix is the prefix of the names of workers, and of no other process.
const workerPrefix = "rank "

func workerName(rank int) string { return workerPrefix + strconv.Itoa(rank) }

func (p *programs) runAll(ctx context.Context, g *groups) (*ProgramsResult, error) {
	plain := make(chan bool, 1)
	go func() { plain <- lacksLibuv(ctx, p.Command[0]) }()
	if err := g.startSwitches(ctx, p.config, p.path); err != nil {
		return nil, err
	}
	server, err := g.startReady(ctx, "services", 0, proc.Spec{Name: "ps", Cmd: g.libraCommand("ps", "--config", p.path),
		OnLine: p.serverLine})
	if err != nil {
		return nil, err
	}
	for host := 1; host <= p.Hosts; host++ {
		file, err := p.agentFile(host)
		if err != nil {
			return nil, err
		}
		if err := g.startAgent(ctx, host, host, p.Hosts, "--config", file, "--record", p.Record); err != nil {
			return nil, err
		}
	}
	master, err := p.masterAddress()
	if err != nil {
		return nil, err
	}
	if p.plain = <-plain; p.plain {
		p.Log.Info("this PyTorch was built without libuv", "set", withoutLibuv+"=0")
	}
	begin := time.Now()
	var workers []*proc.Child
	for rank := range p.Workers {
		host := 1 + rank/p.perHost()
		cmd := exec.Command(p.Command[0], p.Command[1:]...)
		cmd.Env = p.workerEnvironment(rank, master)
		child, err := g.startProcess("workers", host, proc.Spec{Name: workerName(rank), Cmd: cmd, Plain: true,
			OnLine: p.linePrinter(rank)})
		if err != nil {
			return nil, err
		}
		workers = append(workers, child)
	}
	if err := p.awaitWorkers(ctx, workers, begin); err != nil {
		return nil, err
	}
	result := &ProgramsResult{Backend: p.Backend, Hosts: p.Hosts, Workers: p.done, Seconds: time.Since(begin).Seconds()}
	if err := g.all["agents"].Stop(); err != nil {
		return nil, err
	}
	if err := p.finishRecord(workers); err != nil {
		return nil, err
	}
	if err := server.Wait(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.server
	result.Steps, result.Rows, result.WeightsSHA256 = s.Steps, s.Rows, s.WeightsSHA256
	result.HotFrames, result.HotPairs, result.ColdFrames = s.HotFrames, s.HotPairs, s.ColdFrames
	return result, nil
}

// awaitWorkers waits for all workers, and shows how many have ended.
func (p *programs) awaitWorkers(ctx context.Context, workers []*proc.Child, begin time.Time) error {
	progress := report.NewProgress(p.Stderr, int64(p.Workers), "workers")
	defer progress.Finish()
	ended := make(chan error, len(workers))
	for rank, child := range workers {
		go func() {
			err := child.Wait(ctx)
			if err == nil {
				p.done[rank] = ProgramDone{
					Rank: rank, Host: 1 + rank/p.perHost(), Seconds: time.Since(begin).Seconds(),
					CPUSeconds: child.CPUTime().Seconds(),
				}
			}
			ended <- err
		}()
	}
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for done := 0; done < len(workers); {
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			done++
		case <-tick.C:
		}
		progress.Update(int64(done), time.Since(begin).Round(time.Second).String())
	}
	return nil
}

func (p *programs) perHost() int { return p.Workers / p.Hosts }

// socketPath returns the path of the socket of a host's agent.
func (p *programs) socketPath(host int) string {
	return filepath.Join(p.dir, fmt.Sprintf("agent-%d.sock", host))
}

func (p *programs) agentFile(host int) (path string, err error) {
	text, err := yaml.Marshal(&cluster.Agent{
		Socket: p.socketPath(host),
		Jobs:   []cluster.AgentJob{{Name: p.Job, Cluster: p.path, Worker: uint16(host), Finish: true}},
	})
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	path = filepath.Join(p.dir, fmt.Sprintf("agent-%d.yaml", host))
	return path, os.WriteFile(path, text, 0o600)
}

// masterPort is torchrun's. In a namespace it is free.
const masterPort = 29500

// masterAddress returns the address at which rank 0 may listen for the others.
func (p *programs) masterAddress() (netip.AddrPort, error) {
	if p.bed.net != nil {
		return netip.AddrPortFrom(p.config.Workers[0].Address, masterPort), nil
	}
	port, err := quietPort()
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), err
}

// workerEnvironment returns the variables that torchrun sets for a worker, and the socket of its
// agent.
func (p *programs) workerEnvironment(rank int, master netip.AddrPort) []string {
	host := rank / p.perHost()
	number := strconv.Itoa
	env := os.Environ()
	defaults := map[string]string{
		"GLOO_SOCKET_IFNAME": "lo", // a host's name does not resolve to an address of the bed
		"PYTHONUNBUFFERED":   "1",  // lines arrive when they are printed
	}
	if p.bed.net != nil {
		defaults["GLOO_SOCKET_IFNAME"] = p.config.Workers[host].Interface
	}
	if p.Workers > 1 {
		defaults["OMP_NUM_THREADS"] = "1"
	}
	if p.plain {
		defaults[withoutLibuv] = "0"
	}
	for name, value := range defaults {
		if _, given := os.LookupEnv(name); !given {
			env = append(env, name+"="+value)
		}
	}
	for _, v := range [][2]string{
		{"RANK", number(rank)}, {"WORLD_SIZE", number(p.Workers)},
		{"LOCAL_RANK", number(rank % p.perHost())}, {"LOCAL_WORLD_SIZE", number(p.perHost())},
		{"GROUP_RANK", number(host)}, {"GROUP_WORLD_SIZE", number(p.Hosts)},
		{"ROLE_NAME", "default"}, {"ROLE_RANK", number(rank)}, {"ROLE_WORLD_SIZE", number(p.Workers)},
		{"MASTER_ADDR", master.Addr().String()}, {"MASTER_PORT", number(int(master.Port()))},
		{"TORCHELASTIC_RESTART_COUNT", "0"}, {"TORCHELASTIC_MAX_RESTARTS", "0"}, {"TORCHELASTIC_RUN_ID", "none"},
		{"LIBRA_AGENT", p.socketPath(host + 1)}, {"LIBRA_JOB", p.Job},
	} {
		env = append(env, v[0]+"="+v[1])
	}
	return env
}

// linePrinter returns the function that prints a worker's lines. With several workers each line has
// the rank as a prefix.
func (p *programs) linePrinter(rank int) func([]byte) {
	prefix := ""
	if p.Workers > 1 {
		prefix = workerName(rank) + " | "
	}
	return func(line []byte) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_, _ = fmt.Fprintf(p.Stdout, "%s%s\n", prefix, line)
	}
}

// serverLine processes a line of the server.
func (p *programs) serverLine(line []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	takeServerLine(line, &p.server)
}

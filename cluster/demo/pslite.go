// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/packer"
)

// PSLite describes a program of ps-lite as all nodes of a job, whose hot pairs a switch and the
// hosts' agents sum (docs/pslite.md).
type PSLite struct {
	// Command is the command of every process. Its arguments that are [RoleArgument] become the role.
	Command []string
	// Hosts is the number of hosts, among which scheduler, servers and workers are dealt out in this
	// order.
	Hosts int
	// Servers and Workers are the numbers of them in ps-lite. Customers is the number of workers that
	// a process is.
	Servers, Workers, Customers int
	// HotSet is the file of the hot set; without it there are no hot pairs, no agents and no switch.
	HotSet string
	// Van, if set, is the van's library, libra_van.so, to be preloaded. Otherwise it is linked into
	// the program.
	Van string
	// Backend is cluster.BackendAFXDP or cluster.BackendUDP. Namespaces makes each host a namespace
	// also with the latter.
	Backend    string
	Namespaces bool
	// Harvest is the time between harvests that no pull asked for; 0 means the default.
	Harvest time.Duration
	// Faults are injected at the agents.
	Faults cluster.Faults

	// Stdout receives the processes' output, Stderr their standard error, line by line: calls of Write
	// do not overlap, except between both.
	Stdout, Stderr io.Writer
	// Logs, if not nil, receives the logs of switch and agents.
	Logs io.Writer
}

// RoleArgument is the argument of a command in whose place each process has its role: scheduler,
// server or worker.
const RoleArgument = "{role}"

const (
	psLiteJob      = "hot" // name of the range, the van's default
	psLiteExponent = -30   // the van's default
)

// Validate reports the first invalid option.
func (p PSLite) Validate() error {
	switch {
	case len(p.Command) == 0:
		return errors.New("no command: give it after --, as in 'libra run --pslite -- ./program'")
	case p.Servers < 1 || p.Servers > maxWorkers:
		return fmt.Errorf("--servers %d: it must be from 1 to %d", p.Servers, maxWorkers)
	case p.Workers < 1 || p.Workers > maxWorkers:
		return fmt.Errorf("--workers %d: it must be from 1 to %d", p.Workers, maxWorkers)
	case p.Customers < 1 || p.Workers%p.Customers != 0:
		return fmt.Errorf("--customers %d of %d workers: each process is as many workers, so give a divisor of --workers",
			p.Customers, p.Workers)
	case p.Hosts < 1 || p.Hosts > len(p.nodes()):
		return fmt.Errorf("--hosts %d: it must be from 1 to %d, a host for each process", p.Hosts, len(p.nodes()))
	case p.Harvest < 0:
		return fmt.Errorf("--harvest %v: the time must be positive", p.Harvest)
	case p.Backend == cluster.BackendAFXDP && p.HotSet != "" && p.Servers > 1:
		return fmt.Errorf("--servers %d with --backend afxdp: an AF_XDP link takes an interface of each host for each server, and a host of this network has one: give --servers 1, or --backend udp --namespaces",
			p.Servers)
	case p.HotSet == "" && (p.Faults.Any() || p.Harvest != 0):
		return errors.New("--loss, --duplicate, --reorder and --harvest concern hot pairs: give --hot-set, or leave them out")
	}
	return checkFaults(p.Faults)
}

// psLiteNode is one process.
type psLiteNode struct {
	role   string
	number int // of the process among those of its role, from 0 on; it is not ps-lite's rank
	host   int // from 1 on
}

func (n psLiteNode) String() string {
	if n.role == "scheduler" {
		return n.role
	}
	return n.role + " " + strconv.Itoa(n.number)
}

// nodes returns all processes: the scheduler first.
func (p PSLite) nodes() (nodes []psLiteNode) {
	for _, role := range []struct {
		name  string
		count int
	}{{"scheduler", 1}, {"server", p.Servers}, {"worker", p.Workers / max(1, p.Customers)}} {
		for i := range role.count {
			nodes = append(nodes, psLiteNode{role.name, i, 1 + len(nodes)%max(1, p.Hosts)})
		}
	}
	return nodes
}

// RunPSLite starts switch and agents, runs the command once for each process of ps-lite, and ends
// the others when all of these have ended. The first that fails ends all; the error is then a
// [*WorkerError] which names it. It leaves nothing behind, as [RunPrograms].
func RunPSLite(ctx context.Context, p PSLite) (result *ProgramsResult, err error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Command[0], err = exec.LookPath(p.Command[0]); err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	if p.Van != "" {
		if p.Van, err = filepath.Abs(p.Van); err == nil {
			_, err = os.Stat(p.Van)
		}
		if err != nil {
			return nil, fmt.Errorf("--van: %w: make it with 'make pslite'", err)
		}
	}
	files, err := newWorkspace()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.closeWorkspace()) }()
	r := &psLite{PSLite: p, dir: files.dir, path: filepath.Join(files.dir, "cluster.yaml"), memoryMiB: 64}
	if err := r.makeConfig(); err != nil {
		return nil, err
	}
	open := openBed
	if p.Namespaces {
		open = openNetwork
	}
	if r.bed, err = open(ctx, r.config, p.Hosts); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.bed.closeBed()) }()
	if err := r.config.Write(r.path); err != nil {
		return nil, err
	}
	return r.runProcesses(ctx)
}

// psLite is a running job.
type psLite struct {
	PSLite
	config    *cluster.Config
	dir       string
	path      string // of the cluster file
	memoryMiB int    // that an agent shares with a client
	bed       *bed
	printing  sync.Mutex
}

// makeConfig makes the configuration without addresses.
func (p *psLite) makeConfig() error {
	exponent := psLiteExponent
	p.config = &cluster.Config{
		Backend: p.Backend, Faults: p.Faults,
		Job: cluster.Job{ID: 1, Exponent: &exponent, Harvest: p.Harvest},
	}
	if p.HotSet == "" {
		return nil
	}
	hot, err := packer.LoadHotSet(p.HotSet)
	if err != nil {
		return fmt.Errorf("--hot-set: %w", err)
	}
	if most := packer.MaxHotRows(hot.Dim()); hot.Len() > most {
		return fmt.Errorf("--hot-set %s: it has %d rows, and a job has at most %d of %d scalars", p.HotSet, hot.Len(), most,
			hot.Dim())
	}
	// Two harvests of a server, or the pushes of a worker; both have a whole hot set at most.
	p.memoryMiB = max(p.memoryMiB, 2*hot.Len()*(8+4*hot.Dim())>>20+4)
	giveSlots(p.config, p.Servers*hot.Slots())
	p.HotSet, err = filepath.Abs(p.HotSet)
	p.config.Job.HotSet = p.HotSet
	return err
}

// runProcesses starts all processes in the order of their dependencies.
func (p *psLite) runProcesses(ctx context.Context) (result *ProgramsResult, err error) {
	logs := map[string]io.Writer{"services": p.Logs, "agents": p.Logs, "programs": p.Stderr}
	names := []string{"services", "agents", "programs"}
	err = p.bed.inGroups(ctx, names, logs, func(ctx context.Context, g *groups) error {
		result, err = p.runAll(ctx, g)
		return err
	})
	return result, exitOf(err, func(name string) bool {
		return slices.ContainsFunc(p.nodes(), func(n psLiteNode) bool { return n.String() == name })
	})
}

func (p *psLite) runAll(ctx context.Context, g *groups) (*ProgramsResult, error) {
	if p.HotSet != "" {
		if err := g.startSwitches(ctx, p.config, p.path); err != nil {
			return nil, err
		}
		for host := 1; host <= p.Hosts; host++ {
			file, err := p.agentFile(host)
			if err != nil {
				return nil, err
			}
			if err := g.startAgent(ctx, host, host-1, p.Hosts, "--config", file); err != nil {
				return nil, err
			}
		}
	}
	root := netip.AddrPortFrom(p.config.Workers[0].Address, masterPort)
	if p.bed.net == nil {
		port, err := quietPort()
		if err != nil {
			return nil, err
		}
		root = netip.AddrPortFrom(root.Addr(), port)
	}
	begin := time.Now()
	var children []*proc.Child
	nodes := p.nodes()
	for _, n := range nodes {
		cmd := exec.Command(p.Command[0], p.processArguments(n)...)
		cmd.Env = p.processEnvironment(n, root)
		child, err := g.startProcess("programs", n.host-1, proc.Spec{Name: n.String(), Cmd: cmd, Plain: true, OnLine: p.linePrinter(n)})
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	result := &ProgramsResult{Backend: p.Backend, Hosts: p.Hosts, Workers: []ProgramDone{}}
	done := make([]ProgramDone, len(children))
	var waiting errgroup.Group
	for i, child := range children {
		waiting.Go(func() error {
			err := child.Wait(ctx)
			if err == nil {
				done[i] = ProgramDone{Rank: nodes[i].number, Host: nodes[i].host, Seconds: time.Since(begin).Seconds(),
					CPUSeconds: child.CPUTime().Seconds()}
			}
			return err
		})
	}
	if err := waiting.Wait(); err != nil {
		return nil, err
	}
	for i, n := range nodes {
		result.add(n, done[i])
	}
	result.Seconds = time.Since(begin).Seconds()
	return result, nil
}

// add adds a process that has ended.
func (r *ProgramsResult) add(n psLiteNode, done ProgramDone) {
	switch n.role {
	case "scheduler":
		r.Scheduler = &done
	case "server":
		r.Servers = append(r.Servers, done)
	default:
		r.Workers = append(r.Workers, done)
	}
}

// processArguments returns the arguments of a process.
func (p *psLite) processArguments(n psLiteNode) []string {
	args := slices.Clone(p.Command[1:])
	for i := range args {
		if args[i] == RoleArgument {
			args[i] = n.role
		}
	}
	return args
}

// processEnvironment returns the variables of a process: those of ps-lite, and those of the van.
func (p *psLite) processEnvironment(n psLiteNode, root netip.AddrPort) []string {
	set := map[string]string{
		"DMLC_ROLE": n.role, "DMLC_NUM_SERVER": strconv.Itoa(p.Servers), "DMLC_NUM_WORKER": strconv.Itoa(p.Workers),
		"DMLC_PS_ROOT_URI": root.Addr().String(), "DMLC_PS_ROOT_PORT": strconv.Itoa(int(root.Port())),
		"DMLC_NODE_HOST":   p.config.Workers[n.host-1].Address.String(),
		"DMLC_PS_VAN_TYPE": "libra",
	}
	if p.Van != "" {
		set["LD_PRELOAD"] = p.Van
	}
	if p.HotSet != "" {
		set["LIBRA_HOT_SET"], set["LIBRA_AGENT"], set["LIBRA_JOB"] = p.HotSet, p.socketPath(n.host), psLiteJob
		set["LIBRA_HOT_EXPONENT"] = strconv.Itoa(psLiteExponent)
	}
	env := os.Environ()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		env = append(env, name+"="+set[name])
	}
	return env
}

func (p *psLite) socketPath(host int) string {
	return filepath.Join(p.dir, fmt.Sprintf("agent-%d.sock", host))
}

// agentFile writes the file of a host's agent, whose range has a job for each server.
func (p *psLite) agentFile(host int) (path string, err error) {
	text, err := yaml.Marshal(&cluster.Agent{Socket: p.socketPath(host), Jobs: []cluster.AgentJob{{
		Name: psLiteJob, Cluster: p.path, Workers: slices.Repeat([]uint16{uint16(host)}, p.Servers), MemoryMiB: p.memoryMiB,
	}}})
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	path = filepath.Join(p.dir, fmt.Sprintf("agent-%d.yaml", host))
	return path, os.WriteFile(path, text, 0o600)
}

// linePrinter returns the function that prints a process's lines.
func (p *psLite) linePrinter(n psLiteNode) func([]byte) {
	return func(line []byte) {
		p.printing.Lock()
		defer p.printing.Unlock()
		_, _ = fmt.Fprintf(p.Stdout, "%s | %s\n", n, line)
	}
}

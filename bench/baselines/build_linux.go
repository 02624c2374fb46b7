// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Program is a baseline's source.
type Program struct {
	name      string // name of the processes
	source    string
	compiler  []string
	libraries []string
	// Install is what makes it possible to build the program on Debian.
	Install string
}

//go:embed xdp.c
var xdpSource string

//go:embed kv_zmq.cc
var keyValueSource string

//go:embed connections_zmq.cc
var connectionsSource string

//go:embed allreduce_mpi.c
var allreduceSource string

//go:embed allreduce_gloo.cc
var glooSource string

//go:embed zfp.c
var zfpSource string

// XDP moves frames through AF_XDP on libxdp; see bench/engine.
var XDP = Program{
	name: "xdp", source: xdpSource,
	compiler: []string{"cc", "-O3", "-Wall", "-x", "c"}, libraries: []string{"-lxdp", "-lbpf", "-lelf"},
	Install: "apt-get install gcc libc6-dev libxdp-dev libbpf-dev libelf-dev",
}

// KeyValue pushes key-value messages over ZeroMQ; see bench/push.
var KeyValue = Program{
	name: "kv_zmq", source: keyValueSource,
	compiler: []string{"c++", "-O2", "-std=c++20", "-Wall", "-x", "c++"}, libraries: []string{"-lzmq", "-pthread"},
	Install: "apt-get install g++ libzmq3-dev",
}

// Connections sends requests over ZeroMQ connections; see bench/latency.
var Connections = Program{
	name: "connections_zmq", source: connectionsSource,
	compiler: []string{"c++", "-O2", "-std=c++20", "-Wall", "-x", "c++"}, libraries: []string{"-lzmq"},
	Install: "apt-get install g++ libzmq3-dev",
}

// Allreduce adds vectors by MPI; see bench/allreduce and bench/ring.
var Allreduce = Program{
	name: "allreduce_mpi", source: allreduceSource,
	compiler: []string{"mpicc", "-O2", "-Wall", "-x", "c"},
	Install:  "apt-get install openmpi-bin libopenmpi-dev",
}

// Gloo adds vectors by the library of PyTorch; see bench/allreduce.
var Gloo = Program{
	name: "allreduce_gloo", source: glooSource,
	compiler: []string{"c++", "-O2", "-std=c++17", "-Wall", "-x", "c++"}, libraries: []string{"-lgloo", "-pthread"},
	Install: "apt-get install g++ libgloo-dev",
}

// ZFP shortens gradients; see bench/codec.
var ZFP = Program{
	name: "zfp", source: zfpSource,
	compiler: []string{"cc", "-O3", "-Wall", "-x", "c"}, libraries: []string{"-lzfp"},
	Install: "apt-get install gcc libc6-dev libzfp-dev",
}

// ErrBuild is wrapped by Build's error where the program cannot be compiled. The
// message carries the compiler's first complaint.
var ErrBuild = errors.New("baselines: cannot build the program")

// Executable is a program that was built. It lives in memory, so that nothing has
// to be removed, however the process ends.
type Executable struct{ memory *sys.Shared }

// Build compiles the program.
func (p *Program) Build(ctx context.Context) (_ *Executable, err error) {
	compiler, err := exec.LookPath(p.compiler[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBuild, err)
	}
	dir, err := os.MkdirTemp("", "libra-baselines-")
	if err != nil {
		return nil, fmt.Errorf("baselines: directory to compile in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, p.name)
	cmd := exec.CommandContext(ctx, compiler, slices.Concat(p.compiler[1:], []string{"-", "-o", path}, p.libraries)...)
	cmd.Stdin = strings.NewReader(p.source)
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("baselines: build %s: %w", p.name, context.Cause(ctx))
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrBuild, complaint(string(out)), err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("baselines: read the compiled program: %w", err)
	}
	return inMemory(p.name, program)
}

// inMemory makes an executable of a file's contents.
func inMemory(name string, contents []byte) (*Executable, error) {
	memory, err := sys.NewShared(name, len(contents))
	if err != nil {
		return nil, fmt.Errorf("baselines: %w", err)
	}
	copy(memory.Mem, contents)
	return &Executable{memory}, nil
}

// Missing returns what a report says of a baseline whose program could not be built for an error
// that wraps ErrBuild; nil for other errors.
func (p *Program) Missing(baseline string, err error) *experiment.Unavailable {
	if !errors.Is(err, ErrBuild) {
		return nil
	}
	return &experiment.Unavailable{Baseline: baseline, Reason: err.Error(), Install: p.Install}
}

// Command returns the command that runs the program, for processes that this one
// starts.
func (e *Executable) Command(args ...string) []string {
	// The path is looked up in the child before exec closes the descriptor.
	return append([]string{fmt.Sprintf("/proc/self/fd/%d", e.memory.File.Fd())}, args...)
}

// Path returns a path of the program for any process, as long as this one runs.
func (e *Executable) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), e.memory.File.Fd())
}

// Close removes the program.
func (e *Executable) Close() error { return e.memory.Close() }

// complaint returns the line of a compiler's output that says what is wrong.
func complaint(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	tells := func(l string) bool { return strings.Contains(l, "error") || strings.Contains(l, "cannot find") }
	return lines[max(0, slices.IndexFunc(lines, tells))]
}

// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/linux/testbed"
)

// Operations are the all-reduces that a program makes, one at a time. It checks their sums.
type Operations struct {
	Workers int
	Width   int // values of an operation
	WarmUp  int // operations before those that are measured
	Number  int
}

// Times are how long operations took at the first worker, in ns.
type Times struct {
	P1   float64 `json:"p1_ns"`
	P50  float64 `json:"p50_ns"`
	P99  float64 `json:"p99_ns"`
	Mean float64 `json:"mean_ns"`
}

// BuildMPI compiles Allreduce. Where OpenMPI is not installed, the error wraps ErrBuild.
func BuildMPI(ctx context.Context) (*Executable, error) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBuild, err)
	}
	return Allreduce.Build(ctx)
}

// RunMPI runs Allreduce with ranks on this machine, which communicate over the loopback interface,
// or through shared memory. Ranks share the CPUs, and are bound to none: that is how they were
// fastest.
func RunMPI(ctx context.Context, program *Executable, o Operations, shared bool) (Times, error) {
	by := []string{"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}
	if shared {
		by = []string{"--mca", "btl", "vader,self"}
	}
	return runMPI(ctx, program, o, sys.OwnThread, append(by, "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"))
}

// RunMPIOn runs Allreduce with each rank on a host of a bed. Ranks communicate by TCP over its
// network.
func RunMPIOn(ctx context.Context, program *Executable, o Operations, bed *testbed.Bed) (_ Times, err error) {
	// mpirun runs at the switch, and starts what belongs to a host by this, in place of ssh. Daemons
	// of the same host name would use the same folder.
	agent := "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
	var names []string
	for _, h := range bed.Hosts()[:o.Workers] {
		names = append(names, h.Name)
		agent += fmt.Sprintf("%s) at=%s;;\n", h.Name, h.NamespacePath())
	}
	agent += `esac
exec nsenter --net=$at unshare --uts sh -c 'echo $0 >/proc/sys/kernel/hostname && eval "$*"' $host "$@"
`
	script, err := inMemory("mpi-agent", []byte(agent))
	if err != nil {
		return Times{}, err
	}
	defer func() { err = errors.Join(err, script.Close()) }()
	return runMPI(ctx, program, o, bed.Switch().Do, []string{
		"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_exclude", "lo", "--mca", "mpi_yield_when_idle", "1",
		"--mca", "plm_rsh_agent", script.Path(), "--mca", "plm_rsh_no_tree_spawn", "1",
		"--mca", "orte_leave_session_attached", "1", "--host", strings.Join(names, ","),
	})
}

func runMPI(ctx context.Context, program *Executable, o Operations, thread func(func() error) error,
	by []string) (Times, error) {
	return o.run(ctx, thread, slices.Concat([]string{"mpirun", "--allow-run-as-root", "--bind-to", "none"}, by,
		[]string{"-np", strconv.Itoa(o.Workers), program.Path()})...)
}

// RunGloo runs Gloo.
func RunGloo(ctx context.Context, program *Executable, o Operations) (Times, error) {
	return o.run(ctx, sys.OwnThread, program.Path(), strconv.Itoa(o.Workers))
}

// run runs a command, whose last arguments are the operations, from a thread that lives as long.
func (o Operations) run(ctx context.Context, thread func(func() error) error, command ...string) (t Times, err error) {
	command = append(command, strconv.Itoa(o.Width), strconv.Itoa(o.WarmUp), strconv.Itoa(o.Number))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // mpirun ends its ranks
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = child.EndLimit
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := thread(cmd.Run); err != nil {
		if ctx.Err() != nil {
			return t, context.Cause(ctx)
		}
		return t, fmt.Errorf("baselines: %s: %w: %s", filepath.Base(command[0]), err, strings.TrimSpace(complaints.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &t); err != nil {
		return t, fmt.Errorf("baselines: %s printed %q: %w", filepath.Base(command[0]), out.String(), err)
	}
	return t, nil
}

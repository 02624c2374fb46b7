// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"github.com/libra-ina/libra/internal/linux/proc"
)

// groups are the processes of a cluster with programs of users, in groups that depend on each
// other.
type groups struct {
	bed  *bed
	self string // this program
	all  map[string]*proc.Group
}

// inGroups calls run, which starts processes in groups of these names, and then ends the groups in
// the opposite order: agents that are asked to end have finished, and then so has the server. A
// failure in one group ends the others. Logs are where the groups' standard error goes.
func (b *bed) inGroups(ctx context.Context, names []string, logs map[string]io.Writer,
	run func(ctx context.Context, g *groups) error) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g := &groups{bed: b, self: self, all: map[string]*proc.Group{}}
	failures := proc.NewFailures(isConsequence)
	for _, name := range names {
		g.all[name] = proc.NewGroup(ctx, proc.Config{Stderr: logs[name], Failed: cancel, Failures: failures})
	}
	err = run(ctx, g)
	failures.Await()
	first := context.Cause(ctx) // it explains what follows
	for i := len(names) - 1; i >= 0; i-- {
		if stopped := g.all[names[i]].Stop(); err == nil {
			err = stopped
		}
	}
	if first != nil {
		err = first
	}
	return err
}

// startProcess starts a process of a group on a host, see [bed.startOn].
func (g *groups) startProcess(group string, host int, spec proc.Spec) (*proc.Child, error) {
	spec.Start = g.bed.startOn(host)
	return g.all[group].Start(spec)
}

// libraCommand returns the command of a process of Libra.
func (g *groups) libraCommand(args ...string) *exec.Cmd {
	return exec.Command(g.self, append(args, "--json")...)
}

// startReady starts a process of Libra as startProcess does, and waits until it is ready.
func (g *groups) startReady(ctx context.Context, group string, host int, spec proc.Spec) (*proc.Child, error) {
	child, err := g.startProcess(group, host, spec)
	if err == nil {
		err = ready(ctx, spec.Name, child)
	}
	return child, err
}

// startAgent starts an agent of several with flags, at a place of [bed.startOn].
func (g *groups) startAgent(ctx context.Context, number, place, agents int, flags ...string) error {
	cmd := g.libraCommand(append([]string{"agent"}, flags...)...)
	cmd.Env = agentEnvironment(agents)
	_, err := g.startReady(ctx, "agents", place, proc.Spec{Name: "agent " + strconv.Itoa(number), Cmd: cmd, Service: true})
	return err
}

// agentEnvironment makes the agents of all hosts together use as many processors as there are,
// unless GOMAXPROCS is set. One goroutine of an agent does all the work of a job, and sleeps at
// less cost in a process with one processor; the monitor of Go's scheduler, which handles the
// others, took a fifth of the agents' time.
func agentEnvironment(hosts int) []string {
	env := os.Environ()
	if _, given := os.LookupEnv("GOMAXPROCS"); !given {
		env = append(env, "GOMAXPROCS="+strconv.Itoa(max(1, runtime.GOMAXPROCS(0)/hosts)))
	}
	return env
}

// WorkerError is the failure of a user's program, whose exit status is Code.
type WorkerError struct {
	Code int
	Err  error
}

func (e *WorkerError) Error() string { return e.Err.Error() }
func (e *WorkerError) Unwrap() error { return e.Err }

// exitOf makes an error whose cause is the exit status of a user's program a [*WorkerError].
func exitOf(err error, isProgram func(name string) bool) error {
	// Of several failures, the cause is the first that errors.As finds.
	var exit *proc.ExitError
	if errors.As(err, &exit) && exit.Code > 0 && isProgram(exit.Name) {
		return &WorkerError{Code: exit.Code, Err: err}
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Child is one process of a [Group].
type Child struct {
	group   *Group
	spec    Spec
	cmd     *exec.Cmd
	stdout  lineWriter
	stderr  lineWriter
	lastErr tail

	ready      chan struct{} // closed at the ready line
	readyValue json.RawMessage

	done    chan struct{} // closed when the process has ended and its output is read
	err     error         // valid after done: why the group fails
	stopped bool          // valid after done: the group ended before the child

	mu     sync.Mutex
	reaped bool // its process id may now belong to another process
	killed bool // the grace period had expired
}

func newChild(g *Group, spec Spec) *Child {
	c := &Child{
		group: g,
		spec:  spec,
		cmd:   spec.Cmd,
		ready: make(chan struct{}),
		done:  make(chan struct{}),
	}
	c.lastErr.n = g.cfg.Tail
	c.stdout.emit = c.handleStdout
	c.stderr.emit = c.handleStderr
	c.cmd.Stdout = &c.stdout
	c.cmd.Stderr = &c.stderr
	c.cmd.WaitDelay = pipeDelay
	if c.cmd.SysProcAttr == nil {
		c.cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// The terminal sends the SIGINT of a Ctrl-C to the foreground group, and so to the parent
	// alone.
	c.cmd.SysProcAttr.Setpgid = true
	DieWithParent(c.cmd)
	return c
}

// Pid returns the process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// CPUTime returns the CPU time that the child has used, once Wait has returned.
func (c *Child) CPUTime() time.Duration {
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

// Ready waits for the child's ready line and decodes its value into the variable that into points
// to; nil ignores the value. It fails if the child, the group or ctx ends first.
func (c *Child) Ready(ctx context.Context, into any) error {
	select {
	case <-c.ready:
	case <-c.done:
		select {
		case <-c.ready:
		default:
			return c.endedBeforeReady()
		}
	case <-c.group.ctx.Done():
		return fmt.Errorf("proc: %s is not ready: %w", c.spec.Name, context.Cause(c.group.ctx))
	case <-ctx.Done():
		return fmt.Errorf("proc: %s is not ready: %w", c.spec.Name, context.Cause(ctx))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(c.readyValue, into); err != nil {
		return fmt.Errorf("proc: %s: value of the ready line %s: %w", c.spec.Name, c.readyValue, err)
	}
	return nil
}

func (c *Child) endedBeforeReady() error {
	if c.err != nil {
		return c.err
	}
	if c.stopped {
		return fmt.Errorf("proc: %s is not ready: %w", c.spec.Name, context.Cause(c.group.ctx))
	}
	return c.exitError("before it was ready")
}

// Done is closed when the process has ended and all of its output has been processed.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits for the child's end. It returns nil if the child ended by itself with status 0;
// otherwise its failure, or the earlier cause of the group's end (ErrStopped after Stop), or the
// cause of ctx's end.
func (c *Child) Wait(ctx context.Context) error {
	select {
	case <-c.done:
	case <-ctx.Done():
		return fmt.Errorf("proc: wait for %s: %w", c.spec.Name, context.Cause(ctx))
	}
	if c.err == nil && c.stopped {
		return fmt.Errorf("proc: %s was ended: %w", c.spec.Name, context.Cause(c.group.ctx))
	}
	return c.err
}

// supervise reads the child's output until its end and determines how it ended.
func (c *Child) supervise() {
	defer c.group.running.Done()
	endRest(c.cmd.Process)
	// The result comes from the process state: the other errors of Wait concern pipes, which the
	// child's own descendants may keep open.
	_ = c.cmd.Wait()
	c.mu.Lock()
	c.reaped = true
	killed := c.killed
	c.mu.Unlock()
	c.stdout.flush()
	c.stderr.flush()

	c.stopped = c.group.ctx.Err() != nil
	c.err = c.judge(killed)
	switch {
	case c.err == nil:
	case c.stopped: // it is no cause
		c.group.fail(c.err)
	default:
		c.group.childFailed(c.err)
	}
	c.group.cfg.Failures.count(c.spec.Service, -1)
	close(c.done)
}

func (c *Child) judge(killed bool) error {
	state := c.cmd.ProcessState
	switch {
	case killed:
		return &KilledError{Name: c.spec.Name, Grace: c.group.cfg.Grace}
	// it does not handle the signal that asked it to end
	case c.stopped && (state.Success() || endedBy(state) == syscall.SIGTERM):
		return nil
	case state.Success() && c.spec.Service:
		return c.exitError("but has to run until it is stopped")
	case state.Success():
		return nil
	default:
		return c.exitError("")
	}
}

func (c *Child) exitError(when string) *ExitError {
	state := c.cmd.ProcessState
	e := &ExitError{Name: c.spec.Name, Code: state.ExitCode(), When: when, Stderr: c.lastErr.snapshot()}
	if by := endedBy(state); by >= 0 {
		e.Signal = by.String()
	}
	return e
}

// endedBy returns the signal that ended a process, or -1.
func endedBy(state *os.ProcessState) syscall.Signal {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal()
	}
	return -1
}

// terminate asks the child's process group to end.
func terminate(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGTERM) }

// kill ends the child's process group.
func kill(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

// signal calls send unless the process has ended.
func (c *Child) signal(send func(*os.Process)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		send(c.cmd.Process)
	}
}

// Signal sends a signal to the child and its process group, unless it has ended.
func (c *Child) Signal(s syscall.Signal) {
	c.signal(func(p *os.Process) { _ = syscall.Kill(-p.Pid, s) })
}

// kill ends a child whose grace period has expired.
func (c *Child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		c.killed = true
		kill(c.cmd.Process)
	}
}

func (c *Child) handleStdout(line []byte) {
	if value, ok := parseReady(line); ok && !c.spec.Plain {
		select {
		case <-c.ready: // a second ready line is an ordinary line
		default:
			c.readyValue = value
			close(c.ready)
			return
		}
	}
	if c.spec.OnLine != nil {
		c.spec.OnLine(line)
	}
}

func (c *Child) handleStderr(line []byte) {
	c.lastErr.add(line)
	if c.group.stderr != nil {
		c.group.stderr.writeLine(c.spec.Name+" | ", line)
	}
}

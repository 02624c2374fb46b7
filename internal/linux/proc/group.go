// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// Defaults of [Config].
const (
	DefaultTail  = 20
	DefaultGrace = 5 * time.Second
)

// pipeDelay is how long a dead child's output is still read while one of its descendants holds the
// pipe open.
const pipeDelay = time.Second

// Config holds a group's options; its zero value is usable.
type Config struct {
	// Stderr receives the children's standard error, line by line, with the prefix "name | ". Nil:
	// the lines are only kept for error messages.
	Stderr io.Writer
	// Tail is the number of last lines of standard error that an error shows;
	// 0 means DefaultTail.
	Tail int
	// Grace is the time between the request to stop (SIGTERM) and SIGKILL;
	// 0 means DefaultGrace.
	Grace time.Duration
	// Failed is called with the group's failure, before other children are stopped for it. It must
	// not call the group. Nil: only Wait and Stop return it.
	Failed func(error)
	// Failures are shared by groups whose children depend on each other; nil: the group's own.
	Failures *Failures
}

// Spec describes a child.
type Spec struct {
	// Name of the child in prefixes and errors.
	Name string
	// Cmd is the command. The group sets its Stdout, Stderr, WaitDelay, process group and
	// parent-death signal.
	Cmd *exec.Cmd
	// Start starts Cmd, for example in other namespaces, from a thread that outlives the child (see
	// [Thread]). Nil: the group's own thread starts it.
	Start func(*exec.Cmd) error
	// Service is true for a child that has to run until the group is stopped: if it ends earlier,
	// even with status 0, the group fails.
	Service bool
	// Plain is true for a child whose lines are all output: none of them is a ready line.
	Plain bool
	// OnLine receives the lines that the child writes to standard output, without the ready line,
	// one at a time. It must not keep line. Nil: they are dropped.
	OnLine func(line []byte)
}

// Group is a set of children that end together: a failure stops the others, after a short time for
// those that it ends anyway, see [Failures]. A group ends with Wait or Stop, one of which must be
// called.
//
// Start, Stop and the children's methods may be called from several goroutines.
type Group struct {
	cfg    Config
	stderr *lockedWriter
	thread *Thread

	// ctx ends when the children have to stop, with the reason as its cause.
	ctx    context.Context
	cancel context.CancelCauseFunc

	running sync.WaitGroup // children
	stopper chan struct{}  // closed when stopAll has returned

	mu       sync.Mutex
	children []*Child
	err      error // why the group failed
}

// NewGroup returns an empty group. When ctx ends, the group stops its children as Stop does.
func NewGroup(ctx context.Context, cfg Config) *Group {
	cfg.Tail = cmp.Or(cfg.Tail, DefaultTail)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	if cfg.Failures == nil {
		cfg.Failures = NewFailures(nil)
	}
	g := &Group{cfg: cfg, thread: NewThread(), stopper: make(chan struct{})}
	if cfg.Stderr != nil {
		g.stderr = &lockedWriter{w: cfg.Stderr}
	}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(g.ctx, cfg.Failures.settle) // nobody waits for children that are being stopped
	go g.stopAll()
	return g
}

// Start starts a child. If the group is ending, it fails with the group's first error, or
// ErrStopped.
func (g *Group) Start(spec Spec) (*Child, error) {
	c := newChild(g, spec)
	start := spec.Start
	if start == nil {
		start = func(cmd *exec.Cmd) error { return g.thread.Run(cmd.Start) }
	}

	// The lock is held during the start so that stopAll sees every child that was started before
	// the group's end.
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return nil, fmt.Errorf("proc: %s is not started: %w", spec.Name, context.Cause(g.ctx))
	}
	if err := start(c.cmd); err != nil {
		return nil, fmt.Errorf("proc: start %s: %w", spec.Name, err)
	}
	g.children = append(g.children, c)
	g.cfg.Failures.count(spec.Service, 1)
	g.running.Add(1)
	go c.supervise()
	return c, nil
}

// Wait waits until every child has ended and returns the failure: an [ExitError], a [FailuresError]
// if several children failed, a [KilledError], or the cause of the context's end. It returns nil if
// all succeeded. Start must not be called after it.
func (g *Group) Wait() error {
	g.running.Wait()
	g.cfg.Failures.Await()
	g.cancel(ErrStopped)
	<-g.stopper
	g.thread.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Stop terminates the running children, kills those that have not ended after the grace period, and
// then does what Wait does. A child that ends by the termination signal has succeeded. After a
// failure, it first waits until the cause is known.
func (g *Group) Stop() error {
	g.cfg.Failures.Await()
	g.cancel(ErrStopped)
	return g.Wait()
}

// fail records why the group failed and stops the children.
func (g *Group) fail(err error) {
	g.mu.Lock()
	first := g.err == nil
	if first {
		g.err = err
	}
	g.mu.Unlock()
	if first && g.cfg.Failed != nil {
		g.cfg.Failed(err)
	}
	g.cancel(err)
}

// childFailed has the group fail once the cause is known.
func (g *Group) childFailed(err error) {
	g.cfg.Failures.add(err, g.fail)
}

// stopAll waits for the group's end and then stops its children.
func (g *Group) stopAll() {
	defer close(g.stopper)
	<-g.ctx.Done()
	g.mu.Lock()
	if cause := context.Cause(g.ctx); g.err == nil && !errors.Is(cause, ErrStopped) {
		g.err = cause
	}
	children := g.children
	g.mu.Unlock()

	for _, c := range children {
		c.signal(terminate)
	}
	tick := time.NewTicker(g.cfg.Grace / looks)
	defer tick.Stop()
	if !allEnd(children, tick.C) {
		for _, c := range children {
			c.kill()
		}
	}
}

// looks is how often a group looks during the grace period whether its children have ended.
const looks = 10

// allEnd waits until all children have ended, and returns false if they have not after that number
// of ticks. It does not count time: children that were suspended together with this process had
// none to end.
func allEnd(children []*Child, look <-chan time.Time) bool {
	left := looks
	for _, c := range children {
		for ended := false; !ended; {
			select {
			case <-c.done:
				ended = true
			case <-look:
				if left--; left == 0 {
					return false
				}
			}
		}
	}
	return true
}

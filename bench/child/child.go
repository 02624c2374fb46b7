// SPDX-License-Identifier: Apache-2.0

// Package child runs the processes of a benchmark: it starts them where they
// belong, hands each its configuration, asks them for what they know, and ends
// them. A failure carries the process's last lines of standard error.
//
// # The protocol
//
// A child is this executable with a hidden command, or another program that
// speaks the same protocol:
//
//   - Its last argument is its configuration as JSON, if it has one.
//   - When it is ready it writes the line {"ready":…} to standard output.
//   - Each line of standard input is a request, {"id":1,"op":"mark","arg":…}.
//     The line {"id":1,"value":…} or {"id":1,"error":"…"}, of at most 64 KiB,
//     answers it. Answers may
//     come in any order. Other lines go to [Spec.OnLine].
//   - It ends, with status 0, when its standard input does or on SIGTERM.
//
// The parent uses [Start], [Child.Ask] and [Child.Stop]; a child written in Go
// uses [Main] and [Serve].
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
)

// ReadyLimit bounds the time from a child's start until it is ready: some compute for seconds
// before, and have a small part of their CPU where other programs keep it busy. One that ends
// instead is noticed at once.
const ReadyLimit = 2 * time.Minute

// EndLimit bounds the time that a child takes to end after it was told to.
const EndLimit = time.Minute

// WithEndLimit returns a context that ends after [EndLimit].
func WithEndLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, EndLimit, fmt.Errorf("still runs after %v", EndLimit))
}

// Command sets the command that starts a benchmark's children, if it is empty: to this
// executable's hidden command "bench NAME child".
func Command(command *[]string, name string) error {
	if len(*command) > 0 {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("child: find this executable, which is to run the processes of bench %s: %w", name, err)
	}
	*command = []string{self, "bench", name, "child"}
	return nil
}

// Spec describes a child.
type Spec struct {
	// Name of the child in errors.
	Name string
	// Command is the program and its arguments, without the configuration.
	Command []string
	// Config is appended to Command as one argument in JSON; nil: nothing is.
	// A child of [Main] needs one.
	Config any
	// CPU is the only one that a child of [Main] runs on; nil or negative: it runs
	// on all.
	CPU *int
	// Files become the child's descriptors from 3 on.
	Files []*os.File
	// Start starts the command elsewhere than in the caller's namespaces; see
	// [proc.Spec].
	Start func(*exec.Cmd) error
	// Service is true for a child that has to run until its group is stopped.
	Service bool
	// OnLine receives lines of standard output that are no answers, one at a
	// time. It may not keep line. Nil: they are dropped.
	OnLine func(line []byte)
}

// settings is the argument of a child of [Main].
type settings[C any] struct {
	CPU    *int `json:"cpu,omitempty"`
	Config C    `json:"config"`
}

// request is a line to a child, answer one from it.
type request struct {
	ID  int64           `json:"id"`
	Op  string          `json:"op"`
	Arg json.RawMessage `json:"arg,omitempty"`
}

type answer struct {
	ID    int64           `json:"id"`
	Value json.RawMessage `json:"value,omitempty"`
	Error string          `json:"error,omitempty"`
}

// Child is a process of a benchmark. Its methods may be called from several
// goroutines.
type Child struct {
	*proc.Child
	spec  Spec
	cmd   *exec.Cmd
	input io.WriteCloser

	lastID  atomic.Int64
	waiting sync.Map // request ID to the channel of its answer
}

// Start starts a child in a group. The group ends with its Stop or Wait.
func Start(g *proc.Group, s Spec) (*Child, error) {
	argv := s.Command
	if s.Config != nil {
		text, err := json.Marshal(settings[any]{CPU: s.CPU, Config: s.Config})
		if err != nil {
			return nil, fmt.Errorf("child: configuration of %s: %w", s.Name, err)
		}
		argv = slices.Concat(argv, []string{string(text)})
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.ExtraFiles = s.Files
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("child: %s: %w", s.Name, err)
	}
	c := &Child{spec: s, cmd: cmd, input: input}
	c.Child, err = g.Start(proc.Spec{Name: s.Name, Cmd: cmd, Start: s.Start, Service: s.Service, OnLine: c.dispatchLine})
	if err != nil {
		return nil, errors.Join(err, input.Close())
	}
	return c, nil
}

// Ready waits until the child is ready, for [ReadyLimit] at most.
func (c *Child) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ReadyLimit, fmt.Errorf("not ready after %v", ReadyLimit))
	defer cancel()
	return c.Child.Ready(ctx, nil)
}

// Launch starts a child and waits until it is ready. It returns one that does not become so, too.
func Launch(ctx context.Context, g *proc.Group, s Spec) (*Child, error) {
	c, err := Start(g, s)
	if err != nil {
		return nil, err
	}
	return c, c.Ready(ctx)
}

// Failed returns why the child ended by itself; nil while it runs.
func (c *Child) Failed() error {
	select {
	case <-c.Done():
		return c.Wait(context.Background())
	default:
		return nil
	}
}

func (c *Child) dispatchLine(line []byte) {
	var a answer
	if json.Unmarshal(line, &a) == nil {
		if waiter, ok := c.waiting.LoadAndDelete(a.ID); ok {
			waiter.(chan answer) <- a
			return
		}
	}
	if c.spec.OnLine != nil {
		c.spec.OnLine(line)
	}
}

// Ask sends a request and decodes the answer's value into the variable that into
// points to. arg is nil without an argument, into without a value. Requests may
// overlap. Ask fails with the child's error where that refused or has ended.
func (c *Child) Ask(ctx context.Context, op string, arg, into any) error {
	r, answers := request{ID: c.lastID.Add(1), Op: op}, make(chan answer, 1)
	if arg != nil {
		var err error
		if r.Arg, err = json.Marshal(arg); err != nil {
			return fmt.Errorf("child: ask %s to %s: %w", c.spec.Name, op, err)
		}
	}
	c.waiting.Store(r.ID, answers)
	defer c.waiting.Delete(r.ID)
	if err := json.NewEncoder(c.input).Encode(r); err != nil {
		select {
		case <-c.Done(): // which explains more
		case <-ctx.Done():
			return fmt.Errorf("child: ask %s to %s: %w", c.spec.Name, op, err)
		}
	}
	var a answer
	select {
	case a = <-answers:
	case <-ctx.Done():
		return fmt.Errorf("child: %s does not %s: %w", c.spec.Name, op, context.Cause(ctx))
	case <-c.Done():
		select {
		case a = <-answers: // Done comes after the last line of output.
		default:
			if err := c.Wait(ctx); err != nil {
				return fmt.Errorf("child: asked to %s: %w", op, err)
			}
			return fmt.Errorf("child: %s has ended; it was asked to %s", c.spec.Name, op)
		}
	}
	if a.Error != "" {
		return fmt.Errorf("child: %s, asked to %s: %s", c.spec.Name, op, a.Error)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(a.Value, into); err != nil {
		return fmt.Errorf("child: %s, asked to %s, answers %s: %w", c.spec.Name, op, a.Value, err)
	}
	return nil
}

// Stop closes the child's standard input and waits for its end, for [EndLimit] at
// most.
func (c *Child) Stop(ctx context.Context) error {
	ctx, cancel := WithEndLimit(ctx)
	defer cancel()
	// Closing fails only for a child that has ended: Wait knows why.
	_ = c.input.Close()
	return c.Wait(ctx)
}

// Kill ends the child with SIGKILL and waits for its end. It returns nil if that
// signal ended the child, else the child's own failure.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("child: kill %s: %w", c.spec.Name, err)
	}
	err := c.Wait(context.Background())
	if exit, ok := errors.AsType[*proc.ExitError](err); ok && exit.Signal == syscall.SIGKILL.String() {
		return nil
	}
	return err
}

// errTold is why the context of a child ends that was told to end.
var errTold = errors.New("child: told to end")

// Main is the body of a child's hidden command: it moves the process to its CPU
// and calls run with the configuration that [Start] appended to the arguments.
// ctx ends on SIGTERM; run may then return [context.Cause] of it or nil.
func Main[C any](args []string, run func(ctx context.Context, c C) error) error {
	var s settings[C]
	if len(args) == 0 || json.Unmarshal([]byte(args[len(args)-1]), &s) != nil {
		return errors.New("child: this command is for a benchmark to call, with a configuration in JSON")
	}
	if s.CPU != nil {
		if err := sys.PinProcess(*s.CPU); err != nil {
			return err
		}
	}
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(context.Background())
	context.AfterFunc(terminated, func() { cancel(errTold) })
	if err := run(ctx, s.Config); !errors.Is(err, errTold) {
		return err
	}
	return nil
}

// Handler does what a request asks for and returns the answer's value. Requests
// are handled concurrently. ctx ends when the child is told to end, and with the
// context of [Serve].
type Handler func(ctx context.Context, op string, arg json.RawMessage) (any, error)

// Unknown is a [Handler]'s error for a request that it does not know.
func Unknown(op string) error { return fmt.Errorf("child: no operation %q", op) }

// Serve announces that the child is ready and answers requests. It returns when
// all handlers have, nil after the end of standard input or SIGTERM, else the
// cause of ctx's end.
func Serve(ctx context.Context, handle Handler) error { return serve(ctx, os.Stdin, os.Stdout, handle) }

func serve(ctx context.Context, in io.Reader, out io.Writer, handle Handler) error {
	if err := proc.AnnounceReady(out, true); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	requests := make(chan request)
	go func() {
		defer cancel(errTold)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			var r request
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue // the parent gives up what is not answered
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	var (
		answering sync.WaitGroup
		writing   sync.Mutex // one line at a time
	)
	for {
		select {
		case r := <-requests:
			// On a goroutine of its own: the parent may ask what another request
			// waits for.
			answering.Go(func() {
				a := respond(ctx, r, handle)
				writing.Lock()
				defer writing.Unlock()
				_ = json.NewEncoder(out).Encode(a) // a parent that is gone needs no answer
			})
		case <-ctx.Done():
			answering.Wait()
			if cause := context.Cause(ctx); !errors.Is(cause, errTold) {
				return cause
			}
			return nil
		}
	}
}

func respond(ctx context.Context, r request, handle Handler) answer {
	value, err := handle(ctx, r.Op, r.Arg)
	var text []byte
	if err == nil {
		text, err = json.Marshal(value)
	}
	if err != nil {
		return answer{ID: r.ID, Error: err.Error()}
	}
	return answer{ID: r.ID, Value: text}
}

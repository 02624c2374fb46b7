package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/libra-ina/libra/internal/proc"
)

// startLimit bounds the time until a server's process is ready, on a machine
// that does a lot besides.
const startLimit = 30 * time.Second

// process is the far end of link "process": the echo server.
type process struct {
	link    *link
	command []string
	thread  *proc.Thread // starts the process; it must outlive it

	mu      sync.Mutex
	group   *proc.Group
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	waiting map[int]chan reply
	nextID  int

	incarnation int           // how many processes were started
	exited      chan struct{} // closed when the current process is gone
	exitErr     error
}

func (p *process) start(ctx context.Context) error {
	argv := slices.Concat(p.command, []string{"-interface", farName, "-queues", strconv.Itoa(p.link.queues)})
	cmd := exec.Command(argv[0], argv[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("soak: %w", err)
	}
	group := proc.NewGroup(ctx, proc.Config{})
	child, err := group.Start(proc.Spec{
		Name: "soak server", Cmd: cmd, Service: true, OnLine: p.line,
		Start: func(cmd *exec.Cmd) error {
			return p.thread.Run(func() error { return p.link.far.Do(cmd.Start) })
		},
	})
	if err != nil {
		return errors.Join(err, group.Stop(), stdin.Close())
	}
	ready, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("soak: the server is not ready after %v", startLimit))
	defer cancel()
	if err := child.Ready(ready, nil); err != nil {
		return errors.Join(err, group.Stop(), stdin.Close())
	}
	exited := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.group, p.cmd, p.stdin, p.exited = group, cmd, stdin, exited
	p.waiting = map[int]chan reply{}
	p.incarnation++
	go func() {
		err := group.Wait()
		p.mu.Lock()
		p.exitErr = err
		p.mu.Unlock()
		close(exited)
	}()
	return nil
}

// line takes a reply.
func (p *process) line(line []byte) {
	var r reply
	if json.Unmarshal(line, &r) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.waiting[r.ID]; c != nil {
		delete(p.waiting, r.ID)
		c <- r
	}
}

// ask asks the server for something.
func (p *process) ask(ctx context.Context, op string, queue int) (reply, error) {
	p.mu.Lock()
	p.nextID++
	r, c, exited := request{ID: p.nextID, Op: op, Queue: queue}, make(chan reply, 1), p.exited
	p.waiting[r.ID] = c
	stdin := p.stdin
	p.mu.Unlock()
	if err := json.NewEncoder(stdin).Encode(r); err != nil {
		return reply{}, errors.Join(fmt.Errorf("soak: ask the server to %s: %w", op, err), p.failed())
	}
	select {
	case r := <-c:
		if r.Error != "" {
			return r, fmt.Errorf("soak: server, asked to %s: %s", op, r.Error)
		}
		return r, nil
	case <-exited:
		return reply{}, p.failed()
	case <-ctx.Done():
		return reply{}, fmt.Errorf("soak: the server does not %s: %w", op, context.Cause(ctx))
	}
}

// stop kills the process, as outright as can be.
func (p *process) stop() error {
	p.mu.Lock()
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()
	if err := cmd.Process.Kill(); err != nil {
		return fmt.Errorf("soak: kill the server: %w", err)
	}
	<-exited
	p.mu.Lock()
	defer p.mu.Unlock()
	var exit *proc.ExitError
	if errors.As(p.exitErr, &exit) && exit.Signal == syscall.SIGKILL.String() {
		p.exitErr = nil
	}
	return p.exitErr
}

// relinked does nothing: the server finds out and recovers by itself.
func (p *process) relinked() error { return nil }

func (p *process) account(ctx context.Context) (*Account, Memory, error) {
	r, err := p.ask(ctx, opAccount, 0)
	if err != nil {
		return nil, Memory{}, err
	}
	r.Account.incarnation = p.incarnation
	return r.Account, r.Memory, nil
}

func (p *process) status(ctx context.Context) string {
	// It asks its ports in turn.
	limit := statusLimit * time.Duration(p.link.queues+1)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	r, err := p.ask(ctx, opStatus, 0)
	if err != nil {
		return err.Error()
	}
	return r.Status
}

// failed says why the process ended if it should not have.
func (p *process) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		if p.exitErr == nil {
			return errors.New("soak: the server has ended")
		}
		return p.exitErr
	default:
		return nil
	}
}

// close ends the process.
func (p *process) close() error {
	p.mu.Lock()
	group, exited := p.group, p.exited
	p.mu.Unlock()
	if group == nil {
		return nil
	}
	// SIGTERM, and SIGKILL if that is ignored. That it does not end by itself is
	// no failure any more.
	_ = group.Stop()
	<-exited
	return nil
}

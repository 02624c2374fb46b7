// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/internal/file"
)

// Agent serves the clients of a host.
type Agent struct {
	cfg      Config
	listener *net.UnixListener
	unlock   func() error
	instance uint64
	jobs     map[string]*job
	ranges   map[string][]*rangeJob

	ctx      context.Context // of opening jobs of ranges; it ends with Close
	cancel   context.CancelFunc
	watching sync.WaitGroup // goroutines that end jobs of ranges

	clients  atomic.Uint32 // numbers assigned so far
	refused  tally         // by code
	logQueue *logQueue

	mu         sync.Mutex
	handshakes map[*net.UnixConn]pendingHandshake // connections without a session
	closed     bool
	running    sync.WaitGroup // handshakes in progress
}

// Listen opens the agent's socket and starts its jobs. [Agent.Serve] accepts clients.
func Listen(cfg Config) (_ *Agent, err error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	log, queue := limitLog(cfg.Log)
	cfg.Log = log
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("agent: this host is big-endian: agents run on little-endian hosts only")
	}
	a := &Agent{cfg: cfg, logQueue: queue, jobs: map[string]*job{}, handshakes: map[*net.UnixConn]pendingHandshake{}}
	a.ranges = newRanges(a, cfg.Ranges)
	a.ctx, a.cancel = context.WithCancel(context.Background())
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	a.instance = binary.NativeEndian.Uint64(random[:])
	if cfg.Turn == nil {
		if err := a.openSocket(); err != nil {
			a.cancel()
			return nil, fmt.Errorf("agent: %w", err)
		}
	}
	for _, j := range cfg.Jobs {
		if a.jobs[j.Name], err = newJob(j, cfg.Log.With("job", j.Name), cfg.Turn); err != nil {
			delete(a.jobs, j.Name)
			return nil, errors.Join(fmt.Errorf("agent: job %s: %w", j.Name, err), a.Close())
		}
	}
	return a, nil
}

// TrySocket returns the socket error with which [Listen] would fail; "" is the default path, as in
// [Config]. Call it before joining jobs: a host that joins and then fails ends the jobs that need
// every worker.
func TrySocket(path string) error {
	if path == "" {
		path = agentproto.DefaultSocket
	}
	a := &Agent{cfg: Config{Socket: path, Mode: 0o600}}
	if err := a.openSocket(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return errors.Join(a.listener.Close(), a.unlock())
}

// openSocket opens the socket. With the lock held, an existing socket is left over from an
// agent that has ended.
func (a *Agent) openSocket() (err error) {
	path := a.cfg.Socket
	if a.unlock, err = file.Lock(path, ".lock"); err != nil {
		if errors.Is(err, file.ErrLocked) {
			return fmt.Errorf("socket %s: another agent serves it: stop that one, or configure another socket", path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("socket %s: its directory does not exist: make it, or configure another socket", path)
		}
		return fmt.Errorf("socket %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.unlock())
		}
	}()
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != fs.ModeSocket {
			return fmt.Errorf("socket %s: the file is not a socket: remove it, or configure another path", path)
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("socket %s, left behind: %w", path, err)
		}
	}
	a.listener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		if longest := len(syscall.RawSockaddrUnix{}.Path) - 1; len(path) > longest {
			return fmt.Errorf("socket %s: path is %d bytes long; the limit is %d: configure a shorter one: %w",
				path, len(path), longest, err)
		}
		return fmt.Errorf("socket %s: %w", path, err)
	}
	if err := os.Chmod(path, a.cfg.Mode); err != nil {
		return errors.Join(fmt.Errorf("socket %s: %w", path, err), a.listener.Close())
	}
	return nil
}

// Serve accepts clients until ctx ends, the agent is closed, all jobs have ended and there are no
// ranges, or the socket fails. It returns an error only in the last two cases.
func (a *Agent) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for _, j := range a.jobs {
			select {
			case <-j.cfg.Worker.Done():
			case <-ctx.Done():
				return
			}
		}
		if len(a.ranges) > 0 {
			return
		}
		cancel(errJobsEnded)
	}()
	if a.listener == nil {
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), errJobsEnded) {
			return a.jobsEnded()
		}
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = a.listener.Close() })
	defer stop()
	for {
		conn, err := a.listener.AcceptUnix()
		if err == nil && ctx.Err() != nil { // it was accepted while the listener was being closed
			_ = conn.Close()
		}
		switch {
		case errors.Is(context.Cause(ctx), errJobsEnded):
			return a.jobsEnded()
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ECONNABORTED):
			a.cfg.Log.Warn("a client could not be taken", "error", err)
			time.Sleep(acceptPause)
			continue
		case err != nil:
			return fmt.Errorf("agent: socket %s: %w", a.cfg.Socket, err)
		}
		a.running.Go(func() { a.handshake(conn) })
	}
}

// lastAnswers bounds the time for answers that are being sent when the agent closes.
const lastAnswers = time.Second

// acceptPause is the pause in accepting clients when descriptors have run out.
const acceptPause = 10 * time.Millisecond

var errJobsEnded = errors.New("all jobs have ended")

func (a *Agent) jobsEnded() error {
	errs := []error{errors.New("agent: all jobs have ended")}
	for name, j := range a.jobs {
		errs = append(errs, fmt.Errorf("job %s: %w", name, j.cfg.Worker.Err()))
	}
	return errors.Join(errs...)
}

// OpenStep returns the step of a job that is due on this host, and whether it is torn: parties
// pushed in it and have ended before its end. After Close it is final, and the caller is to make
// sure that such a step is dropped.
func (a *Agent) OpenStep(job string) (step uint64, torn bool) { return a.jobs[job].barrier.openStep() }

// Close ends all sessions, reports the reason to clients, and removes the socket. It returns when
// all pushes are acknowledged or the workers have ended, and the log is written.
func (a *Agent) Close() error {
	a.mu.Lock()
	again := a.closed
	a.closed = true
	for conn, g := range a.handshakes {
		if g.helloReceived { // it gets an answer
			_ = conn.SetWriteDeadline(time.Now().Add(lastAnswers))
		} else {
			_ = conn.Close()
		}
	}
	a.mu.Unlock()
	if again {
		return nil
	}
	var err error
	if a.listener != nil {
		if err = a.listener.Close(); errors.Is(err, net.ErrClosed) { // by Serve
			err = nil
		}
	}
	a.cancel()
	runs := a.closeRanges()
	for _, j := range a.jobs { // before waiting for the last answers, which a client may fail to read
		err = errors.Join(err, j.closeJob(agentproto.AgentClosed))
	}
	for _, run := range runs {
		err = errors.Join(err, run.endRun(agentproto.AgentClosed))
	}
	a.running.Wait()
	for _, run := range a.closeRanges() { // joined by a handshake that was in progress
		err = errors.Join(err, run.endRun(agentproto.AgentClosed))
	}
	a.watching.Wait()
	a.logQueue.waitWritten()
	if a.unlock != nil {
		err = errors.Join(err, a.unlock())
	}
	return err
}

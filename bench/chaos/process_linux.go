// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"

	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/train"
)

// process is a place in a cluster, in which one process after the other runs.
type process struct {
	name string
	host *testbed.Node
	args []string
	// service is true for a process that runs until it is stopped.
	service bool

	// Guarded by the life's mutex.
	child    *proc.Child // nil while none runs
	ending   bool        // child was told to end, or killed
	finished bool        // its work is done: it is not started again
}

// startProcess starts a process in its place.
func (r *running) startProcess(p *process) (*proc.Child, error) {
	group := proc.NewGroup(context.Background(), proc.Config{Stderr: logOf{r, p}})
	r.mu.Lock()
	child, err := group.Start(proc.Spec{Name: p.name, Cmd: exec.Command(r.self, p.args...), Start: p.host.Start,
		OnLine: func(line []byte) { r.takeLine(p, line) }})
	if err != nil {
		r.mu.Unlock()
		return nil, errors.Join(err, group.Stop())
	}
	p.child, p.ending = child, false
	r.mu.Unlock()
	r.traceLine("%s runs, process %d", p.name, child.Pid())
	r.ends.Go(func() {
		<-child.Done()
		r.ended(p, group.Wait())
	})
	return child, nil
}

// ended notes how a process has ended.
func (r *running) ended(p *process, err error) {
	r.mu.Lock()
	told := p.ending
	p.child = nil
	p.finished = err == nil && !told
	r.mu.Unlock()
	if err == nil && !told && p.service {
		err = fmt.Errorf("%s ended by itself, and should run until it is stopped", p.name)
	}
	switch {
	case told:
		r.traceLine("%s has ended", p.name)
	case err == nil:
		r.happens("%s has finished", p.name)
	default:
		r.traceLine("%s ENDED: %v", p.name, err)
		r.failSoon(err)
	}
}

// signal sends a signal to the process in a place, and reports whether there is one. With a signal
// that ends it, it returns when the process has ended, or ctx.
func (r *running) signal(ctx context.Context, p *process, s syscall.Signal) bool {
	r.mu.Lock()
	child := p.child
	ends := s == syscall.SIGKILL || s == syscall.SIGTERM
	if child != nil && ends {
		p.ending = true
	}
	r.mu.Unlock()
	if child == nil {
		return false
	}
	child.Signal(s)
	if ends {
		select {
		case <-child.Done():
		case <-ctx.Done():
		}
	}
	return true
}

// takeLine reads a line that a process has printed.
func (r *running) takeLine(p *process, line []byte) {
	var msg struct {
		Progress *train.Progress
		Result   json.RawMessage
	}
	if json.Unmarshal(line, &msg) != nil {
		return
	}
	if msg.Progress != nil {
		r.reached(msg.Progress.Step)
	}
	if msg.Result == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p == r.server {
		var result node.ServerResult
		if json.Unmarshal(msg.Result, &result) == nil {
			r.report.Weights, r.report.Steps = result.WeightsSHA256, result.Steps
		}
		return
	}
	var result node.WorkerResult
	if json.Unmarshal(msg.Result, &result) == nil {
		r.report.Dropped += result.Dropped
		r.report.Duplicated += result.Duplicated
		r.report.Reordered += result.Reordered
	}
}

// logOf takes the lines of a process's log, each in one call, with its name.
type logOf struct {
	r *running
	p *process
}

func (l logOf) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	l.r.traceLine("%s", text)
	if l.p == l.r.server {
		l.r.serverSays(text)
	}
	return len(line), nil
}

// What the server's log says of fences and rewinds (docs/failures.md).
const (
	saysFenced  = "the job goes on without its aggregator"
	saysMoves   = "the job moves to another aggregator"
	saysAgain   = "the job goes on at an aggregator again"
	saysRewinds = "all workers join again and repeat the open step"
)

// serverSays follows where the job is.
func (r *running) serverSays(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case strings.Contains(line, saysFenced), strings.Contains(line, saysMoves):
		r.report.Fences++
	case strings.Contains(line, saysRewinds):
		r.report.Rewinds++
	case strings.Contains(line, saysAgain):
		_, at, _ := strings.Cut(line, "control=")
		at, _, _ = strings.Cut(at, " ")
		if control, err := netip.ParseAddrPort(at); err == nil {
			for i, p := range r.aggregators {
				if p.host.IP == control.Addr() {
					r.holder = i
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// opposite is the far end of a link, which sends packets back.
type opposite interface {
	startEnd(ctx context.Context) error
	stopEnd() error      // as abruptly as there is a way to
	linkReplaced() error // after the link was made anew
	// countFrames counts the frames at this end; nil where there are none.
	countFrames(ctx context.Context) (*account, error)
	describeEnd(ctx context.Context) string
	whyEnded() error // why it ended by itself
	closeEnd() error
}

// process is the far end of link "process": the echo server.
type process struct {
	link    *link
	command []string
	thread  *proc.Thread // starts the process, and outlives it
	group   *proc.Group  // the server's processes; nil before the first start
	server  *child.Child
}

func (p *process) startEnd(ctx context.Context) (err error) {
	p.group = proc.NewGroup(ctx, proc.Config{})
	p.server, err = child.Launch(ctx, p.group, child.Spec{
		Name: "soak server", Command: p.command, Config: serverConfig{Interface: farName, Queues: p.link.queues},
		Service: true,
		Start: func(cmd *exec.Cmd) error {
			return p.thread.Run(func() error { return p.link.far.Do(cmd.Start) })
		},
	})
	return err
}

func (p *process) stopEnd() error {
	err := p.server.Kill()
	_ = p.group.Wait() // it failed by that signal
	return err
}

// linkReplaced does nothing: the server finds out and recovers by itself.
func (p *process) linkReplaced() error { return nil }

func (p *process) countFrames(ctx context.Context) (*account, error) {
	var a account
	return &a, p.server.Ask(ctx, opAccount, nil, &a)
}

// queueCommand asks the server to do something with a queue.
func (p *process) queueCommand(op string) func(context.Context, *link, int) error {
	return func(ctx context.Context, _ *link, q int) error { return p.server.Ask(ctx, op, q, nil) }
}

func (p *process) describeEnd(ctx context.Context) (s string) {
	// It asks its ports in turn.
	limit := statusLimit * time.Duration(p.link.queues+1)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %v", limit))
	defer cancel()
	if err := p.server.Ask(ctx, opStatus, nil, &s); err != nil {
		return err.Error()
	}
	return s
}

func (p *process) whyEnded() error { return p.server.Failed() }

// closeEnd ends the process: by SIGTERM, and by SIGKILL if that is ignored. How it
// ends does not matter any more.
func (p *process) closeEnd() error {
	if p.group != nil {
		_ = p.group.Stop()
	}
	return nil
}

// reflector is the far end of link "xdp": a program that sends packets back.
type reflector struct {
	link     *link
	prog     *ebpf.Program
	attached *afxdp.Attachment
}

func (r *reflector) startEnd(context.Context) (err error) {
	if r.prog == nil {
		if r.prog, err = loadReflector(); err != nil {
			return err
		}
	}
	return r.link.far.Do(func() error {
		r.attached, err = afxdp.Attach(afxdp.AttachConfig{Interface: farName, Program: r.prog, Mode: afxdp.AttachNative})
		return err
	})
}

func (r *reflector) stopEnd() error { return r.attached.Close() }

func (r *reflector) linkReplaced() error { return r.link.far.Do(r.attached.Reattach) }

// countFrames counts nothing: no frame stays at this end.
func (r *reflector) countFrames(context.Context) (*account, error) { return nil, nil }

func (r *reflector) describeEnd(context.Context) string { return "an XDP program" }

func (r *reflector) whyEnded() error { return nil }

func (r *reflector) closeEnd() error {
	return errors.Join(experiment.Close(r.attached), r.prog.Close())
}

func loadReflector() (*ebpf.Program, error) {
	return load("soak_reflect", asm.Instructions{asm.Mov.Imm(asm.R0, harness.XDPTx), asm.Return()})
}

// load loads an XDP program for packets of the soak.
func load(name string, body asm.Instructions) (*ebpf.Program, error) {
	return harness.LoadXDP(name, 0, etherType, bodyAt, body)
}

// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// makeTrouble carries out all troubles, in the order of their steps.
func (r *running) makeTrouble(ctx context.Context) error {
	for i, t := range r.life.Troubles {
		r.enter("waits for step %d, for trouble %d of %d: %v", t.Step, i+1, len(r.life.Troubles), t)
		if err := r.waitStep(ctx, t.Step); err != nil {
			return err
		}
		if !sleep(ctx, t.After) {
			return context.Cause(ctx)
		}
		if err := r.befall(ctx, t); err != nil {
			return fmt.Errorf("%v: %w", t, err)
		}
	}
	return nil
}

// place returns the process of a role, as it is now.
func (r *running) place(role Role) *process {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch role {
	case Holder:
		return r.aggregators[r.holder]
	case Spare:
		return r.aggregators[1-r.holder]
	case Server:
		return r.server
	}
	for i, w := range r.workers {
		if role == Worker(i+1) {
			return w
		}
	}
	return nil
}

// claim reports whether a trouble may have something, and has it until release. Two at once cannot
// have one process, or one link.
func (r *running) claim(what ...string) (release func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range what {
		if r.claimed[w] {
			return nil, false
		}
	}
	for _, w := range what {
		r.claimed[w] = true
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, w := range what {
			delete(r.claimed, w)
		}
	}, true
}

// befall begins a trouble, and has it end by itself later.
func (r *running) befall(ctx context.Context, t Trouble) error {
	on := r.place(t.On)
	claims := []string{on.name}
	var with *process
	switch t.Kind {
	case PairKill:
		with = r.place(t.To)
		claims = append(claims, with.name)
	case Partition, Flap, MTU, MAC:
		claims = []string{"link of " + on.name}
	}
	release, ok := r.claim(claims...)
	if !ok {
		r.skip(t, "another trouble has it")
		return nil
	}
	r.happens("TROUBLE in step %d: %v (%s)", t.Step, t, strings.Join(claims, ", "))
	end, err := r.begin(ctx, t, on, with)
	if end == nil || err != nil {
		release()
		return err
	}
	r.mu.Lock()
	r.report.Happened[t.Kind]++
	r.mu.Unlock()
	r.ends.Go(func() {
		defer release()
		if !sleep(ctx, t.Lasts) {
			return
		}
		if err := end(); err != nil && ctx.Err() == nil {
			r.fail(fmt.Errorf("the end of %v: %w", t, err))
			return
		}
		r.happens("END of %v", t)
	})
	return nil
}

// begin does what a trouble does to a process, and returns how it ends; nil if there was nothing to
// be done.
func (r *running) begin(ctx context.Context, t Trouble, on, with *process) (end func() error, err error) {
	switch t.Kind {
	case SwitchKill, WorkerKill, ServerKill:
		return r.kill(ctx, t, on)
	case PairKill:
		return r.kill(ctx, t, on, with)
	case SwitchRestart:
		if !r.signal(ctx, on, syscall.SIGTERM) {
			r.skip(t, "it does not run")
			return nil, nil
		}
		return func() error { return r.again(on) }, nil
	case SwitchPause, WorkerPause, ServerPause:
		if !r.signal(ctx, on, syscall.SIGSTOP) {
			r.skip(t, "it does not run")
			return nil, nil
		}
		return func() error { r.signal(ctx, on, syscall.SIGCONT); return nil }, nil
	case SwitchDrain:
		return r.drain(ctx), nil
	case Partition:
		return on.host.Misdirect(r.place(t.To).host)
	case Flap:
		return func() error { return on.host.SetCable(true) }, on.host.SetCable(false)
	case MTU:
		return func() error { return on.host.SetMTU(r.mtu) }, on.host.SetMTU(t.MTU)
	case MAC:
		r.addresses++
		mac := net.HardwareAddr{0x02, 0x4c, 0x42, 0x02, byte(r.addresses >> 8), byte(r.addresses)}
		return func() error { return nil }, on.host.SetMAC(mac)
	}
	return nil, fmt.Errorf("unknown kind of trouble %q", t.Kind)
}

// kill kills processes at once.
func (r *running) kill(ctx context.Context, t Trouble, all ...*process) (end func() error, err error) {
	killed := 0
	for _, p := range all {
		if r.signal(ctx, p, syscall.SIGKILL) {
			killed++
		}
	}
	if killed == 0 {
		r.skip(t, "it does not run")
		return nil, nil
	}
	r.mu.Lock()
	r.report.Kills += killed
	r.mu.Unlock()
	return func() error {
		for _, p := range all {
			if err := r.again(p); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// again starts what a trouble has ended, unless its work was done.
func (r *running) again(p *process) error {
	r.mu.Lock()
	needed := p.child == nil && !p.finished
	r.mu.Unlock()
	if !needed {
		return nil
	}
	_, err := r.startProcess(p)
	return err
}

// drain has an operator move the job. That may be refused, such as between two generations.
func (r *running) drain(ctx context.Context) (end func() error) {
	done := make(chan struct{})
	var said bytes.Buffer
	cmd := exec.Command(r.self, "switch", "drain", "--config", r.path)
	cmd.Stdout, cmd.Stderr = &said, &said
	r.ends.Go(func() {
		defer close(done)
		err := r.server.host.Start(cmd)
		if err == nil {
			err = cmd.Wait()
		}
		r.traceLine("drain: %v: %s", err, strings.TrimSpace(said.String()))
	})
	return func() error {
		select {
		case <-done:
		case <-ctx.Done():
		}
		return nil
	}
}

func (r *running) skip(t Trouble, why string) {
	r.mu.Lock()
	r.report.Skipped++
	r.mu.Unlock()
	r.traceLine("no %v: %s", t, why)
}

// sleep reports whether ctx has not ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

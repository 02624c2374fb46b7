package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/testbed"
)

// Bounds of a program's life beside the measurement.
const (
	startLimit = 15 * time.Second
	endLimit   = 10 * time.Second
)

// command returns the command of a peer that follows the control memory.
func (h *harness) command(cfg *peerConfig) *exec.Cmd {
	if cfg.name == PeerLibxdp {
		argv := h.xdp.Command(cfg.iface, string(cfg.test), strconv.Itoa(cfg.cpu))
		return exec.Command(argv[0], argv[1:]...)
	}
	argv := slices.Concat(h.cfg.PeerCommand, cfg.args())
	return exec.Command(argv[0], argv[1:]...)
}

// child is the process of a peer that follows the control memory.
type child struct {
	control *control
	group   *proc.Group
	process *proc.Child
	release func() error

	mu    sync.Mutex
	drops map[string]uint64
}

// startChild starts a program at a node and waits until it is ready.
func startChild(ctx context.Context, cmd *exec.Cmd, at *testbed.Node, frame []byte) (*child, error) {
	ctl, file, err := newControl()
	if err != nil {
		return nil, err
	}
	defer file.Close() // the child has its own descriptor
	ctl.frameLen = uint32(copy(ctl.frame[:], frame))
	cmd.ExtraFiles = []*os.File{file} // becomes controlFD

	c := &child{control: ctl, group: proc.NewGroup(ctx, proc.Config{Grace: endLimit})}
	c.release = sync.OnceValue(ctl.unmap)
	c.process, err = c.group.Start(proc.Spec{Name: filepath.Base(cmd.Args[0]), Cmd: cmd, Start: at.Start, OnLine: c.line})
	if err == nil {
		ready, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("engine: not ready after %v", startLimit))
		err = c.process.Ready(ready, nil)
		cancel()
	}
	if err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// line takes the drops from the program's output.
func (c *child) line(line []byte) {
	if drops, ok := parseDrops(line); ok {
		c.mu.Lock()
		c.drops = drops
		c.mu.Unlock()
	}
}

func (c *child) begin() error {
	c.control.phase.Store(phaseMeasure)
	return nil
}

func (c *child) end() error {
	c.control.phase.Store(phaseStop)
	return nil
}

func (c *child) received() (uint64, error) { return c.control.received.Load(), nil }

func (c *child) finish(ctx context.Context) (n notes, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, endLimit, fmt.Errorf("engine: still runs %v after the test", endLimit))
	defer cancel()
	if err := c.process.Wait(ctx); err != nil {
		return n, err
	}
	if err := c.group.Wait(); err != nil {
		return n, err
	}
	at := c.control.at
	n.cpu = usage{user: at[1].user - at[0].user, kernel: at[1].kernel - at[0].kernel}
	n.roundTrip = append(n.roundTrip, c.control.recorded()...)
	c.mu.Lock()
	n.drops = c.drops
	c.mu.Unlock()
	return n, c.release()
}

// kill ends the process at once. Its errors are those of a process that is
// ended by force.
func (c *child) kill() {
	c.control.phase.Store(phaseStop)
	_ = errors.Join(c.group.Stop(), c.release())
}

package push

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/libra-ina/libra/internal/proc"
	"github.com/libra-ina/libra/internal/testbed"
	"github.com/libra-ina/libra/wire"
)

// Bounds of a process's life beside the measurement.
const (
	startLimit = 20 * time.Second
	endLimit   = 20 * time.Second
)

// zmqPeerName is the name of the C++ program's processes.
const zmqPeerName = "kv_zmq"

// process is a peer's process.
type process struct {
	*proc.Child
	input io.WriteCloser
	marks chan mark
}

// start starts a peer's process at a node.
func start(g *proc.Group, name string, cmd *exec.Cmd, at *testbed.Node, files ...*os.File) (*process, error) {
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("push: %s: %w", name, err)
	}
	cmd.ExtraFiles = files
	p := &process{input: input, marks: make(chan mark, 4)}
	p.Child, err = g.Start(proc.Spec{Name: name, Cmd: cmd, Start: at.Start, OnLine: func(line []byte) {
		var m mark
		if json.Unmarshal(line, &m) == nil && m.At != 0 {
			p.marks <- m
		}
	}})
	return p, err
}

// order sends a command. An error means that the process has ended; what it
// ended with comes from its group.
func (p *process) order(command string) {
	_, _ = io.WriteString(p.input, command+"\n")
}

// next waits for the process's next mark.
func (p *process) next(ctx context.Context) (mark, error) {
	for {
		select {
		case m := <-p.marks:
			return m, nil
		case <-ctx.Done():
			return mark{}, context.Cause(ctx)
		}
	}
}

// cluster is a server and its workers, all of one peer.
type cluster struct {
	group   *proc.Group
	ctx     context.Context // ends when the group's first process fails
	end     context.CancelFunc
	server  *process
	workers []*process
	sums    *shared
}

// launch starts a cluster and waits until it is ready to push.
func (h *harness) launch(ctx context.Context, peer string, workers int) (_ *cluster, err error) {
	c := &cluster{}
	if c.sums, err = newShared("libra-bench-sums", sumsSize); err != nil {
		return nil, err
	}
	c.ctx, c.end = context.WithCancel(ctx)
	c.group = proc.NewGroup(c.ctx, proc.Config{Grace: endLimit})
	defer func() {
		if err != nil {
			err = errors.Join(err, c.kill())
		}
	}()
	ready, cancel := context.WithTimeoutCause(c.ctx, startLimit, fmt.Errorf("push: not ready after %v", startLimit))
	defer cancel()
	command, at := h.serverCommand(peer, workers)
	if c.server, err = start(c.group, peer+" server", command, at, h.load.file, c.sums.file); err != nil {
		return nil, err
	}
	if err := c.server.Ready(ready, nil); err != nil {
		return nil, err
	}
	for i := range workers {
		command, at := h.workerCommand(peer, workers, i)
		p, err := start(c.group, fmt.Sprintf("%s worker %d", peer, i), command, at, h.load.file)
		if err != nil {
			return nil, err
		}
		c.workers = append(c.workers, p)
	}
	for _, p := range c.workers {
		if err := p.Ready(ready, nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (h *harness) serverCommand(peer string, workers int) (*exec.Cmd, *testbed.Node) {
	at := h.bed.net.Host(0)
	switch peer {
	case PeerHash:
		return h.zmqCommand("server", cpu(0), "hash"), at
	case PeerTable:
		return h.zmqCommand("server", cpu(0), "table"), at
	}
	cfg := peerConfig{
		Role: roleServer, CPU: cpu(0), Interface: at.Interface, Local: netip.AddrPortFrom(at.IP, wire.DefaultPort),
		Control: h.bed.controlAddress(), Workers: workers, FirstWorker: h.bed.net.Host(1).IP, Harvest: h.cfg.Harvest,
	}
	return h.libraCommand(&cfg), at
}

func (h *harness) workerCommand(peer string, workers, worker int) (*exec.Cmd, *testbed.Node) {
	server, sw := h.bed.net.Host(0), h.bed.net.Switch()
	if peer != PeerLibra {
		// The loopback device carries 64 KiB segments without a switch in between.
		return h.zmqCommand("worker", cpu(worker+1), strconv.Itoa(worker), strconv.Itoa(h.work.batch)), server
	}
	at := h.bed.net.Host(worker + 1)
	cfg := peerConfig{
		Role: roleWorker, CPU: cpu(worker + 1), Interface: at.Interface, Local: netip.AddrPortFrom(at.IP, wire.DefaultPort),
		Control: h.bed.controlAddress(), Aggregator: netip.AddrPortFrom(sw.IP, wire.DefaultPort),
		Workers: workers, Worker: worker, Batch: h.work.batch, Server: netip.AddrPortFrom(server.IP, wire.DefaultPort),
	}
	return h.libraCommand(&cfg), at
}

func (h *harness) libraCommand(cfg *peerConfig) *exec.Cmd {
	arg, err := json.Marshal(cfg)
	if err != nil {
		panic(err) // numbers, strings and addresses have a JSON form
	}
	return exec.Command(h.cfg.PeerCommand[0], append(h.cfg.PeerCommand[1:len(h.cfg.PeerCommand):len(h.cfg.PeerCommand)], string(arg))...)
}

func (h *harness) zmqCommand(role string, cpu int, args ...string) *exec.Cmd {
	// The path is looked up in the child before exec closes the descriptor.
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", h.zmqPeer.Fd()), append([]string{role, strconv.Itoa(cpu), strconv.Itoa(zmqPort)}, args...)...)
	cmd.Args[0] = zmqPeerName
	return cmd
}

// all returns the workers and, last, the server.
func (c *cluster) all() []*process {
	return append(c.workers[:len(c.workers):len(c.workers)], c.server)
}

// marks asks all processes for a mark at about the same time.
func (c *cluster) marks(ctx context.Context) ([]mark, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, endLimit, errors.New("push: a process does not answer"))
	defer cancel()
	for _, p := range c.all() {
		p.order(commandMark)
	}
	var marks []mark
	for _, p := range c.all() {
		m, err := p.next(ctx)
		if err != nil {
			return nil, err
		}
		marks = append(marks, m)
	}
	return marks, nil
}

// finish ends the workers, then the server, and returns how often each worker
// pushed in all.
func (c *cluster) finish(ctx context.Context) (pushes []uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, endLimit, fmt.Errorf("push: still runs after %v", endLimit))
	defer cancel()
	for _, p := range c.workers {
		p.order(commandStop)
	}
	for _, p := range c.workers {
		if err := p.Wait(ctx); err != nil {
			return nil, err
		}
		m, err := p.next(ctx)
		if err != nil {
			return nil, err
		}
		pushes = append(pushes, m.Pushes)
	}
	c.server.order(commandStop)
	if err := c.server.Wait(ctx); err != nil {
		return nil, err
	}
	return pushes, c.group.Wait()
}

// kill ends what still runs and releases the sums' memory.
func (c *cluster) kill() error {
	defer c.end()
	_ = c.group.Stop() // what failed first has been reported
	return c.sums.close()
}

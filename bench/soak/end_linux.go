// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sync/errgroup"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// Sizes of an end. The rings have an entry for each of a queue's frames, so that
// the RX ring cannot fill up: a frame that the kernel cannot deliver stays with
// it, where it cannot be counted.
const (
	framesEach = 1024 // frames of a queue
	fillEach   = 512
	ringSize   = 1024
	batch      = 64
)

// retry is the time between two tries of what may succeed later.
const retry = 5 * time.Millisecond

// patience bounds the wait for what the kernel has not yet released of a
// predecessor: the queue of a closed socket, the program of a killed process.
const patience = 30 * time.Second

// end is one end of a link that package afxdp serves: a UMEM, a program and a
// port for each queue.
type end struct {
	ifname string
	umem   *afxdp.UMEM
	ports  []*port

	mu      sync.Mutex // guards what the ports share
	program *afxdp.Attachment
	index   int // index of the interface that the program is on

	stamping *ebpf.Program // used in place of the built-in program; nil for that one
	sockets  *ebpf.Map     // sockets to which the program redirects
}

// role is what a port does with packets. Its methods run on the port's
// goroutine.
type role interface {
	// movePackets moves some, or waits for some.
	movePackets() error
	// isSettled reports whether nothing is on its way.
	isSettled() bool
	// describeWait describes what it waits for.
	describeWait() string
}

// openEnd opens an end in the calling thread's namespace, with package afxdp's
// own program or one that notes in every packet when it arrived. The caller gives
// the ports their roles.
func openEnd(ctx context.Context, ifname string, queues int, stamps bool) (_ *end, err error) {
	e := &end{ifname: ifname}
	defer experiment.Undo(&err, e.Close)
	if e.umem, err = afxdp.NewUMEM(afxdp.UMEMConfig{Frames: queues * framesEach}); err != nil {
		return nil, err
	}
	attachment := afxdp.AttachConfig{Interface: ifname, Match: afxdp.MatchEtherType(etherType)}
	if stamps {
		if e.stamping, e.sockets, err = loadStamping(queues); err != nil {
			return nil, err
		}
		attachment = afxdp.AttachConfig{Interface: ifname, Program: e.stamping}
	}
	for deadline := time.Now().Add(patience); ; {
		e.program, err = afxdp.Attach(attachment)
		if err == nil {
			break
		}
		if !errors.Is(err, afxdp.ErrProgramAttached) || time.Now().After(deadline) || experiment.Sleep(ctx, retry) != nil {
			return nil, err
		}
	}
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	e.index = ifi.Index
	if !stamps {
		e.sockets = e.program.XSKMap()
	}
	for queue := range queues {
		pool, err := e.umem.NewPool(framesEach)
		if err != nil {
			return nil, err
		}
		p := &port{end: e, queue: queue, pool: pool, calls: make(chan func(), 1)}
		if err := p.openSocket(ctx); err != nil {
			return nil, err
		}
		e.ports = append(e.ports, p)
	}
	return e, nil
}

// loadStamping loads a program that notes when a packet arrives and redirects it
// to the socket of its queue, and the map of these sockets.
func loadStamping(queues int) (*ebpf.Program, *ebpf.Map, error) {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "soak_sockets", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("soak: make a map of sockets: %w", err)
	}
	prog, err := load("soak_stamp", asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.HostTo(asm.BE, asm.R0, asm.DWord),
		asm.StoreMem(asm.R7, arrivedAt, asm.R0, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, harness.MdRxQueue, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Imm(asm.R3, harness.XDPPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	})
	if err != nil {
		return nil, nil, errors.Join(err, sockets.Close())
	}
	return prog, sockets, nil
}

// reattachProgram puts the program on the interface if that was replaced. An interface
// that is gone again is no error: the port finds out.
func (e *end) reattachProgram() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	ifi, err := net.InterfaceByName(e.ifname)
	if err != nil || ifi.Index == e.index {
		return nil
	}
	if err = e.program.Reattach(); err == nil {
		e.index = ifi.Index
	} else if errors.Is(err, afxdp.ErrInterfaceGone) {
		return nil
	}
	return err
}

// servePorts serves the ports, each on a thread of its own that in puts in the
// namespace, until ctx is done. It returns the first failure.
func (e *end) servePorts(ctx context.Context, in func(func() error) error) error {
	ports, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() {
		for _, p := range e.ports {
			p.wakePort()
		}
	})
	defer stop()
	for _, p := range e.ports {
		ports.Go(func() error { return in(func() error { return p.runLoop(ctx) }) })
	}
	return ports.Wait()
}

// statusLimit bounds the wait for a port that may be the very one that hangs.
const statusLimit = time.Second

// describePorts describes what every port waits for, first as seen from outside and then,
// if the port answers, which wakes it, by itself.
func (e *end) describePorts(ctx context.Context) string {
	lines := make([]string, len(e.ports))
	for i, p := range e.ports {
		lines[i] = fmt.Sprintf("queue %d %s", i, p.describePlace())
		var waits string
		limited, cancel := context.WithTimeout(ctx, statusLimit)
		if p.runOnLoop(limited, func() { waits = p.role.describeWait() }) == nil {
			lines[i] += ", " + waits
		}
		cancel()
	}
	return strings.Join(lines, "; ")
}

// Close closes what was opened. The ports' goroutines must have ended.
func (e *end) Close() error {
	err := experiment.Close(e.program)
	for _, p := range e.ports {
		err = errors.Join(err, p.sock.Load().Close())
	}
	// Closing the built-in program's map twice does no harm.
	return errors.Join(err, experiment.Close(e.umem), e.stamping.Close(), e.sockets.Close())
}

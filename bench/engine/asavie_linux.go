// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/asavie/xdp"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// asavie is github.com/asavie/xdp, used as in its examples, with the rings
// and batches of the other AF_XDP programs.
type asavie struct {
	cfg     *programConfig
	ifindex int
	prog    *xdp.Program
	sock    *xdp.Socket
}

var _ mover = (*asavie)(nil)

func (p *asavie) openProgram() (err error) {
	device, err := net.InterfaceByName(p.cfg.Interface)
	if err != nil {
		return err
	}
	p.ifindex = device.Index
	opts := &xdp.SocketOptions{
		NumFrames: umemFrames, FrameSize: 2048, FillRingNumDescs: ringSize, CompletionRingNumDescs: ringSize,
		RxRingNumDescs: ringSize, TxRingNumDescs: ringSize,
	}
	for deadline := time.Now().Add(rebind); ; time.Sleep(10 * time.Millisecond) {
		p.sock, err = xdp.NewSocket(p.ifindex, 0, opts)
		// The library does not wrap the kernel's answer.
		if err == nil || !strings.Contains(err.Error(), unix.EBUSY.Error()) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return err
	}
	for i := range umemFrames {
		d := xdp.Desc{Addr: uint64(i) * 2048, Len: uint32(len(p.cfg.frame))}
		copy(p.sock.GetFrame(d), p.cfg.frame)
	}
	if p.cfg.Test == Transmit {
		return nil
	}
	if p.prog, err = xdp.NewProgram(1); err != nil {
		return err
	}
	if err := errors.Join(p.prog.Attach(p.ifindex), p.prog.Register(0, p.sock.FD())); err != nil {
		return err
	}
	p.sock.Fill(p.sock.GetDescs(ringSize))
	return nil
}

// transmitFrames sends up to n frames and takes back what was sent before.
func (p *asavie) transmitFrames(n int) (int, error) {
	descs := p.sock.GetDescs(n)
	for i := range descs {
		descs[i].Len = uint32(len(p.cfg.frame))
	}
	n = p.sock.Transmit(descs)
	p.completeFrames()
	return n, nil
}

func (p *asavie) completeFrames() {
	if n := p.sock.NumCompleted(); n > 0 {
		p.sock.Complete(n)
	}
}

// awaitBatch takes a batch of what came in. It looks at the ring for as long as the other programs
// do before it calls the library's Poll, which always makes a system call.
func (p *asavie) awaitBatch() ([]xdp.Desc, error) {
	n := p.sock.NumReceived()
	for start := time.Now(); n == 0 && time.Since(start) < spin; {
		for i := 0; i < 16 && n == 0; i++ {
			n = p.sock.NumReceived()
		}
	}
	if n == 0 {
		var err error
		if n, _, err = p.sock.Poll(int(idle.Milliseconds())); err != nil {
			return nil, err
		}
	}
	return p.sock.Receive(min(n, batch)), nil
}

func (p *asavie) receiveFrames() (int, error) {
	descs, err := p.awaitBatch()
	p.sock.Fill(descs)
	return len(descs), err
}

func (p *asavie) bounceFrames() (int, error) {
	descs, err := p.awaitBatch()
	for _, d := range descs {
		turnRound(p.sock.GetFrame(d))
	}
	if len(descs) > 0 {
		p.sock.Transmit(descs)
	}
	p.completeFrames()
	p.sock.Fill(p.sock.GetDescs(min(batch, p.sock.NumFreeFillSlots())))
	return len(descs), err
}

func (p *asavie) countDrops() (map[string]uint64, error) {
	st, err := p.sock.Stats()
	k := st.KernelStats
	return map[string]uint64{
		"socket: bad descriptor":  k.Rx_invalid_descs + k.Tx_invalid_descs,
		"socket: RX dropped":      k.Rx_dropped,
		"socket: RX ring full":    k.Rx_ring_full,
		"socket: fill ring empty": k.Rx_fill_ring_empty_descs,
	}, err
}

func (p *asavie) closeProgram() error {
	var err error
	if p.prog != nil {
		err = p.prog.Detach(p.ifindex)
	}
	return errors.Join(err, experiment.Close(p.prog), experiment.Close(p.sock))
}

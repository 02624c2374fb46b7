// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/report/experiment"
)

// libra is package afxdp, used as its documentation says. In the push test it
// is a worker instead, see pushWorker.
type libra struct {
	cfg    *programConfig
	group  *afxdp.Group // group of the one socket
	umem   *afxdp.UMEM
	pool   *afxdp.Pool
	sock   *afxdp.Socket
	parts  []afxdp.Desc  // the fragments of one frame
	out    []afxdp.Desc  // a batch of them; only the frames change
	ready  []afxdp.Frame // whose bytes are the frame's
	descs  []afxdp.Desc  // room for a received batch
	frames []afxdp.Frame // room for completed frames
}

func (p *libra) openProgram() (err error) {
	cfg := afxdp.GroupConfig{Queues: []int{0}, Frames: umemFrames, Socket: socketConfig}
	if p.cfg.jumbo {
		cfg.Socket.MultiBuffer, cfg.UMEM.FrameSize = true, 4096
	}
	if p.cfg.Test == Transmit {
		cfg.Socket.RxFrames = -1
	} else {
		cfg.Match = afxdp.MatchAll()
	}
	if p.group, err = afxdp.OpenAll(p.cfg.Interface, cfg); err != nil {
		return err
	}
	p.prepareFrames(p.group.Sockets()[0])
	return nil
}

// socketConfig is that of all sockets of package afxdp.
var socketConfig = afxdp.Config{
	RxRing: ringSize, TxRing: ringSize, FillRing: ringSize, CompletionRing: ringSize, Spin: spin, BindTimeout: rebind,
}

// prepareFrames cuts the frame into fragments, and writes its beginning into every chunk
// that is not in the fill ring, so that sending copies nothing, as with the
// other AF_XDP programs. Of the later fragments of a jumbo frame only the length matters.
func (p *libra) prepareFrames(s *afxdp.Socket) {
	p.sock, p.umem, p.pool = s, s.UMEM(), s.Pool()
	off, room := p.umem.RxOffset(), p.umem.RxRoom()
	for start := 0; start < len(p.cfg.frame); start += room {
		d := afxdp.Desc{Off: uint16(off), Len: uint32(min(room, len(p.cfg.frame)-start))}
		if start+room < len(p.cfg.frame) {
			d.Flags = afxdp.More
		}
		p.parts = append(p.parts, d)
	}
	for range batch {
		p.out = append(p.out, p.parts...)
	}
	p.descs = make([]afxdp.Desc, max(len(p.out), afxdp.MaxFragments))
	// Room for all completions at once: left in their ring, they would pile up, and
	// the frames in use would outgrow the cache.
	p.frames = make([]afxdp.Frame, ringSize)

	p.ready = make([]afxdp.Frame, p.pool.Available(), umemFrames)
	for _, f := range p.ready[:p.pool.AllocBatch(p.ready)] {
		copy(p.umem.Bytes(f)[off:off+room], p.cfg.frame)
	}
}

// transmitFrames queues up to n frames, wakes the kernel and takes back what it has sent.
func (p *libra) transmitFrames(n int) (int, error) {
	per := len(p.parts)
	n = min(n, len(p.ready)/per) * per
	rest := len(p.ready) - n
	for i, f := range p.ready[rest:] {
		p.out[i].Frame = f
	}
	sent, err := p.sock.Send(p.out[:n])
	if err != nil {
		return 0, err
	}
	// What the ring had no room for stays ready.
	p.ready = p.ready[:rest+copy(p.ready[rest:], p.ready[rest+sent:])]
	if err := p.sock.Kick(); err != nil {
		return 0, err
	}
	done, err := p.sock.Completed(p.frames)
	p.ready = append(p.ready, p.frames[:done]...)
	return sent / per, err
}

// awaitBatch takes a batch of what came in, waiting for it if there is nothing.
func (p *libra) awaitBatch() (descs []afxdp.Desc, packets int, err error) {
	n, err := p.sock.Receive(p.descs)
	if n == 0 && err == nil {
		if _, err = p.sock.Poll(afxdp.EventRx, idle); err == nil {
			n, err = p.sock.Receive(p.descs)
		}
	}
	packets = n
	if p.cfg.jumbo {
		for _, d := range p.descs[:n] {
			if d.Flags&afxdp.More != 0 {
				packets--
			}
		}
	}
	return p.descs[:n], packets, err
}

func (p *libra) receiveFrames() (int, error) {
	descs, packets, err := p.awaitBatch()
	if err != nil {
		return 0, err
	}
	return packets, p.sock.Release(descs)
}

func (p *libra) bounceFrames() (int, error) {
	descs, packets, err := p.awaitBatch()
	if err != nil {
		return 0, err
	}
	start := true // of a packet
	for _, d := range descs {
		if start {
			turnRound(p.umem.Packet(d))
		}
		start = d.Flags&afxdp.More == 0
	}
	for len(descs) > 0 {
		n, err := p.sock.Send(descs)
		if err != nil {
			return 0, err
		}
		descs = descs[n:]
		if err := p.sock.Kick(); err != nil {
			return 0, err
		}
		if err := p.refillSent(); err != nil {
			return 0, err
		}
	}
	return packets, nil
}

// refillSent lends the frames that were sent to the kernel for packets to come in. Those
// that are left over were sent before, hence may be again.
func (p *libra) refillSent() error {
	done, err := p.sock.Completed(p.frames)
	if err != nil {
		return err
	}
	filled, err := p.sock.Fill(p.frames[:done])
	if err != nil {
		return err
	}
	p.ready = append(p.ready, p.frames[filled:done]...)
	return nil
}

func (p *libra) countDrops() (map[string]uint64, error) {
	st, err := p.sock.Stats()
	return socketDrops(st), err
}

func socketDrops(st afxdp.Stats) map[string]uint64 {
	return map[string]uint64{
		"socket: driver refused":  st.TxDropped,
		"socket: bad descriptor":  st.BadDescs + st.Kernel.TxInvalidDescs + st.Kernel.RxInvalidDescs,
		"socket: RX dropped":      st.Kernel.RxDropped,
		"socket: RX ring full":    st.Kernel.RxRingFull,
		"socket: fill ring empty": st.Kernel.FillRingEmpty,
	}
}

func (p *libra) closeProgram() error { return experiment.Close(p.group) }

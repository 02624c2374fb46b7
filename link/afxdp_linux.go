// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/internal/linux/neigh"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/wire"
)

const (
	// payloadAlign is the UMEM headroom that aligns the first stripe of an IPv4 frame, 14+20+8+12
	// bytes into the packet, to a multiple of 8.
	payloadAlign = 2

	// rxFrames is the number of frames for the fill rings of all queues together, rxFramesMin the
	// least for each.
	rxFrames    = 2048
	rxFramesMin = 256

	// frameHead is the size of an Ethernet header and a VLAN tag.
	frameHead = 18
)

// afxdpLink is a [Link] on AF_XDP sockets, one for each receive queue. They share a UMEM, in which
// frames are built and answered in place.
type afxdpLink struct {
	cfg   AFXDPConfig
	local wire.Endpoint
	mtu   int // bytes of an IP packet
	limit int // bytes of a payload
	head  int // bytes before the payload

	at     *afxdp.Attachment // used by the watch once that has begun, and by Join
	follow follower
	umem   *afxdp.UMEM
	pool   *afxdp.Pool
	socks  []*afxdp.Socket
	tx     *afxdp.Socket // one of socks
	poller *afxdp.Poller

	flying  []bool // by frame: in the TX or completion ring
	dropped []bool // by frame: free once the kernel has sent it

	rx    []rxQueue // by socket
	first int       // socket that Receive starts with
	draw  telemetry.Draw
	descs []afxdp.Desc
	index []int // descs[i] belongs to frame index[i] of the batch
	done  []afxdp.Frame

	joined   netip.Addr // group of a job's senders, if any
	member   int        // socket that holds the group membership, if any
	groupMAC [6]byte
	port     int    // socket that reserves the port
	zone     uint32 // index of the interface

	stats  Stats
	tap    *Tap
	closed bool
}

var (
	_ Link    = (*afxdpLink)(nil)
	_ Joiner  = (*afxdpLink)(nil)
	_ Stamper = (*afxdpLink)(nil)
)

func (l *afxdpLink) Local() wire.Endpoint { return l.local }

// Limits returns the largest window: a receiver's rings hold several of them.
func (l *afxdpLink) Limits() Limits {
	return Limits{MaxPayload: l.limit, Window: wire.DefaultWindow}
}

// afxdpPath is a path whose Ethernet address the link keeps up to date, unless the caller gave it.
type afxdpPath struct {
	to       wire.Endpoint
	envelope atomic.Pointer[wire.Envelope]
	used     atomic.Bool // since the watch looked last
}

func (p *afxdpPath) To() wire.Endpoint { return p.to }

func (l *afxdpLink) Path(ctx context.Context, to wire.Endpoint) (Path, error) {
	var err error
	if to.IP, err = peerZone(to.IP.Unmap(), l.zone); err != nil {
		return nil, fmt.Errorf("%w: %v is not an address to send to: %w", ErrConfig, to, err)
	}
	if !to.IP.IsValid() || to.Port == 0 {
		return nil, fmt.Errorf("%w: %v is not an address to send to", ErrConfig, to)
	}
	lookup := to.MAC == [6]byte{}
	if lookup {
		hop, err := neigh.Resolve(ctx, l.follow.interfaceName(), to.IP)
		if err != nil {
			return nil, fmt.Errorf("link: afxdp: %w", err)
		}
		to.MAC = hop.MAC
	}
	e, err := wire.NewEnvelope(l.local, to)
	if err != nil {
		return nil, err
	}
	path := &afxdpPath{to: to}
	path.envelope.Store(e)
	if lookup {
		l.follow.addPath(path, to.MAC)
	}
	return path, nil
}

func (l *afxdpLink) Alloc() (Buf, bool) {
	if l.pool.Available() == 0 {
		l.reapSent()
	}
	f, ok := l.pool.Alloc()
	return Buf(f), ok
}

func (l *afxdpLink) Payload(b Buf) []byte {
	start := l.umem.RxOffset() + l.head
	return l.umem.Bytes(afxdp.Frame(b))[start : start+l.limit : start+l.limit]
}

func (l *afxdpLink) Free(b Buf) {
	if l.flying[b] {
		l.dropped[b] = true
		return
	}
	l.giveBack(afxdp.Frame(b))
}

// giveBack frees a frame that the link owns.
func (l *afxdpLink) giveBack(f afxdp.Frame) {
	if err := l.pool.Free(f); err != nil {
		panic(err) // a buffer was freed twice
	}
}

// reapSent frees the frames that have been sent.
func (l *afxdpLink) reapSent() {
	for {
		n, err := l.tx.Completed(l.done)
		if n == 0 || err != nil {
			return // Receive reports the error
		}
		for _, f := range l.done[:n] {
			l.flying[f] = false
			if l.dropped[f] {
				l.dropped[f] = false
				l.giveBack(f)
			}
		}
	}
}

func (l *afxdpLink) Send(frames []Frame) (int, error) {
	if l.closed {
		return 0, net.ErrClosed
	}
	l.reapSent()
	for taken := 0; ; {
		batch := frames[taken:min(len(frames), taken+batchSize)]
		n, err := l.sendBatch(batch)
		taken += n
		if err != nil || n < len(batch) || taken == len(frames) {
			return taken, errors.Join(err, l.kickSend())
		}
	}
}

// sendBatch seals frames in place and puts them in the TX ring.
func (l *afxdpLink) sendBatch(frames []Frame) (int, error) {
	l.descs, l.index = l.descs[:0], l.index[:0]
	off := l.umem.RxOffset()
	for i, f := range frames {
		if l.flying[f.Buf] {
			continue // from an earlier batch or from this one
		}
		l.flying[f.Buf] = true
		packet := l.umem.Bytes(afxdp.Frame(f.Buf))[off : off+l.head+f.Len]
		if f.Retx {
			wire.MarkRetx(packet[l.head:])
		}
		to := f.To.(*afxdpPath)
		if !to.used.Load() {
			to.used.Store(true)
		}
		to.envelope.Load().Seal(packet)
		l.descs = append(l.descs, afxdp.Desc{Frame: afxdp.Frame(f.Buf), Off: uint16(off), Len: uint32(len(packet))})
		l.index = append(l.index, i)
	}
	n, err := l.tx.Send(l.descs)
	for _, d := range l.descs[n:] {
		l.flying[d.Frame] = false
	}
	if err != nil {
		return 0, err
	}
	l.showFrames(Outbound, l.descs[:n])
	l.stats.Sent += uint64(n)
	if n < len(l.descs) {
		return l.index[n], nil
	}
	return len(frames), nil
}

// kickSend starts the transmission.
func (l *afxdpLink) kickSend() error { return l.absorbError(l.tx.Kick()) }

// absorbError keeps an error that may be over before the peer is given up: an interface that is
// down may come up again, one that is gone may be created again, and a program that another process
// has detached, without which some drivers send nothing, is attached again. It only sets
// Stats.LastError.
func (l *afxdpLink) absorbError(err error) error {
	switch {
	case errors.Is(err, afxdp.ErrInterfaceGone):
		l.follow.lost.Store(true)
	case errors.Is(err, afxdp.ErrNoProgram):
		l.follow.watch.Look()
	case !errors.Is(err, afxdp.ErrLinkDown):
		return err
	}
	l.stats.LastError = err
	return nil
}

func (l *afxdpLink) Wait(limit time.Duration) error {
	ready, err := l.poller.Poll(afxdp.EventRx, limit) // net.ErrClosed after Close
	for _, r := range ready {
		if err == nil {
			err = l.absorbError(r.Err)
		}
	}
	return err
}

// StampArrivals implements [Stamper]. The program was loaded when the link was opened: the process
// may have given up the privileges since.
func (l *afxdpLink) StampArrivals(sample int) bool { return sample != 0 && sample == l.cfg.Sample }

// Watch implements [Watcher].
func (l *afxdpLink) Watch(fd int) bool {
	l.poller.Watch(fd)
	return true
}

func (l *afxdpLink) Wake() { l.tx.Wake() }

func (l *afxdpLink) Stats() Stats {
	s := l.stats
	s.LastError = l.follow.explainError(s.LastError)
	for _, sock := range l.socks {
		if k, err := sock.Stats(); err == nil { // else it is closed, and l.stats has its counters
			s.SendError += k.TxDropped
			s.Overrun += k.Kernel.RxDropped + k.Kernel.RxRingFull
		}
	}
	return s
}

// Close detaches the program before it closes the sockets, so that frames go to the kernel instead
// of to sockets that do not answer.
func (l *afxdpLink) Close() error {
	if l.closed {
		return nil
	}
	l.stats = l.Stats()
	l.closed = true
	l.tap.closeListeners()
	errs := []error{l.follow.endFollowing()}
	if l.at != nil {
		errs = append(errs, l.at.Close())
	}
	for _, s := range l.socks {
		errs = append(errs, s.Close())
	}
	if l.poller != nil {
		errs = append(errs, l.poller.Close())
	}
	if l.umem != nil {
		errs = append(errs, l.umem.Close())
	}
	errs = append(errs, l.leaveQueue(), os.NewSyscallError("close", unix.Close(l.port)))
	return errors.Join(errs...)
}
